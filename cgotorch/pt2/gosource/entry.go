package gosource

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
)

// An entry is the method that a caller of the source calls.
type entry struct {
	*goFunction
	signature []string // the declarations of the parameters
	types     []string // of the results, with names if there are several
	outs      []goArg  // the results of the program
	tensors   int      // the number of results that are tensors
	doc       []string
}

// entry writes Forward or Call.
func (s *writer) entry() error {
	e := &entry{goFunction: s.newFunction(nil, nil)}
	forward, notes := e.parameters()
	more, err := e.results()
	if err != nil {
		return err
	}
	e.checks()
	method := "Call"
	if forward && len(e.types) == 1 && e.tensors == 1 {
		method = "Forward"
	}
	if err := e.body(s.items(0, len(s.nodes), 0)); err != nil {
		return err
	}
	e.comment = ""
	returned, err := e.returns()
	if err != nil {
		return err
	}
	tidy := e.tensors == len(e.types) && e.tensors <= 1
	doc := fmt.Sprintf("%s runs the model. The Do owns its results.", method)
	if len(e.doc) > 0 {
		doc += " " + strings.Join(e.doc, ", ") + "."
	}
	switch {
	case s.freeEarly:
	case tidy:
		doc += " Tensors between are freed at the end of each module."
	default:
		doc += " The tensors of the outermost module live until the end of the Do."
	}
	for _, note := range append(notes, more...) {
		doc += " " + note
	}
	s.functions = slices.Insert(s.functions, 0, &goMethod{name: method, receiver: "Net", text: e.text(e.signature, e.types, returned, tidy), doc: doc})
	return nil
}

// parameters declares the parameters. It reports whether the only one is a tensor.
func (e *entry) parameters() (forward bool, notes []string) {
	forward = true
	for i, v := range e.s.users {
		in := &e.s.p.Signature.Inputs[i]
		if v == nil {
			notes = append(notes, fmt.Sprintf("The program is fixed for %s = %s.", in.Name, in))
			continue
		}
		base := v.base
		if v.kind == goTensor && reserved(base) { // the Exec is x already
			base = "in"
		}
		name := e.define(v, base)
		forward = forward && v.kind == goTensor
		e.signature = append(e.signature, declare(name, v.kind))
		e.doc = append(e.doc, fmt.Sprintf("%s is %s", name, in))
	}
	return forward && len(e.signature) == 1, notes
}

// results declares the results.
func (e *entry) results() (notes []string, err error) {
	paths := e.s.p.Signature.Out.Paths("", nil)
	for i, o := range e.s.outputs {
		if e.s.p.Outputs[i].IsResult() {
			e.outs = append(e.outs, o)
		}
	}
	var names []string
	for i := range e.outs {
		o := &e.outs[i]
		kind, isNumber := o.number()
		switch {
		case isNumber || o.value != nil:
		case o.of == graph.NoList && o.constant == nil:
			notes = append(notes, fmt.Sprintf("The result %s of Python is None, and left out.", paths[i]))
			continue
		default:
			return nil, e.s.cannot("its result %.60s is %.60v", paths[i], o.constant)
		}
		if !isNumber {
			e.tensors++
		}
		e.types = append(e.types, kind.source())
		name := identifier(paths[i], false)
		if paths[i] == "" || name[0] == 'v' && strings.HasPrefix(paths[i], "[") && paths[i][1] >= '0' && paths[i][1] <= '9' {
			name = fmt.Sprintf("result%d", i)
		}
		names = append(names, name)
	}
	if len(e.types) > 1 {
		for i := range names {
			e.types[i] = unique(names[i], e.taken) + " " + e.types[i]
		}
	}
	return notes, nil
}

// checks writes the call of checkSizes, if there is something to check.
func (e *entry) checks() {
	names, declared := make([]string, len(e.s.users)), []string{}
	call := "checkSizes(x"
	for i, v := range e.s.users {
		if v != nil {
			names[i] = e.name(v)
			declared = append(declared, declare(names[i], v.kind))
			call += ", " + names[i]
		}
	}
	if e.s.checks = e.s.check(names, declared); e.s.checks != "" {
		e.line("%s)", call)
	}
}

// returns writes the outputs that are new values of tensors, and returns the results.
func (e *entry) returns() (returned []string, err error) {
	written := map[*goValue]string{} // the tensors that values are written into
	for i, o := range e.s.outputs {
		if text, ok := e.target(i); ok {
			if o.value == nil || o.value.kind != goTensor {
				return nil, e.s.p.File.Bad("output %d is no tensor", i)
			}
			e.line("nn.Copy(x, %s, %s)", text, e.name(o.value))
			written[o.value] = text
		}
	}
	seen := map[string]bool{}
	for i := range e.outs {
		o := &e.outs[i]
		kind, isNumber := o.number()
		text := e.any(*o)
		switch {
		case o.value == nil && !isNumber:
			continue
		case written[o.value] != "" && o.value != nil:
			text = "x.Alias(" + written[o.value] + ")" // a later write may have changed the value itself
		case !isNumber && (o.value.global || o.value.made < 0 || seen[text]):
			text = "x.Alias(" + text + ")" // the caller may close the result
		case o.value == nil:
			text = fmt.Sprintf("%s(%s)", kind.source(), text)
		}
		seen[text] = true
		returned = append(returned, text)
	}
	return returned, nil
}

// target returns the tensor that an output is written to.
func (e *entry) target(i int) (string, bool) {
	switch o := e.s.p.Outputs[i]; {
	case o.Weight >= 0:
		return e.name(e.s.weightValues[o.Weight]), true
	case o.Constant >= 0:
		return e.name(e.s.constantValues[o.Constant]), true
	case o.User >= 0:
		return e.name(e.s.users[o.User]), true
	}
	return "", false
}
