package pickle

import (
	"slices"
	"strings"
)

// call builds what a class or function of Python would return. A class or function
// that is not known gives an Object.
func (u *unpickler) call(of, args any) any {
	name, ok := of.(Global)
	values, ok2 := args.(*List)
	if !ok || !ok2 {
		if o, isObject := of.(*Object); isObject {
			return &Object{Class: o.Class}
		}
		u.fail("it calls a %T", of)
	}
	if attacks(string(name)) {
		u.fail("it calls %s, as a file does that attacks its reader: nothing was run; do not load it in Python", name)
	}
	switch name {
	case "collections.OrderedDict", "builtins.dict":
		d := &Dict{}
		if len(values.Items) == 1 {
			pairs, ok := values.Items[0].(*List)
			if !ok {
				return &Object{Class: string(name)}
			}
			u.spend(len(pairs.Items))
			for _, p := range pairs.Items {
				pair, ok := p.(*List)
				if !ok || len(pair.Items) != 2 {
					u.fail("a dict of pairs that are no pairs")
				}
				u.fill(d, pair.Items)
			}
		}
		return d
	case "_codecs.encode": // how Python 3 writes bytes in protocol 2
		if len(values.Items) > 0 {
			if text, ok := values.Items[0].(string); ok {
				return u.latin1(text)
			}
		}
	case "torch.Size", "builtins.list", "builtins.tuple", "builtins.set":
		if len(values.Items) == 1 {
			if l, ok := values.Items[0].(*List); ok {
				return l
			}
		}
		return &List{}
	}
	if u.build.Call != nil {
		v, ok, err := u.build.Call(name, values.Items)
		if err != nil {
			u.fail("%w", err)
		}
		if ok {
			return v
		}
	}
	return &Object{Class: string(name), Args: values.Items}
}

// setState gives an object its state. Attributes of other values are not needed.
func (u *unpickler) setState(state any) {
	switch o := u.top().(type) {
	case *Object:
		o.State = state
	case nil, bool, int64, float64, string, mark, Global:
		u.fail("it builds a %T", o)
	}
}

// latin1 returns the bytes whose numbers are the characters of a text.
func (u *unpickler) latin1(text string) string {
	// A file encodes each of its strings once, so the results together are no longer than the file.
	if u.bytes += len(text); u.bytes > 2*len(u.in) {
		u.fail("a string is encoded again and again")
	}
	b := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			u.fail("a character that is no byte")
		}
		b = append(b, byte(r))
	}
	return string(b)
}

func (u *unpickler) extend(values ...any) {
	switch l := u.top().(type) {
	case *List:
		l.Items = append(l.Items, values...)
	case *Object:
		items, ok := l.Items.(*List)
		if !ok {
			items = &List{}
			l.Items = items
		}
		items.Items = append(items.Items, values...)
	default:
		u.fail("it adds to a %T", l)
	}
}

func (u *unpickler) fill(d *Dict, pairs []any) {
	if len(pairs)%2 != 0 {
		u.fail("a key without a value")
	}
	for i := 0; i < len(pairs); i += 2 {
		d.Keys, d.Values = append(d.Keys, pairs[i]), append(d.Values, pairs[i+1])
	}
}

func (u *unpickler) fillTop(pairs ...any) {
	switch d := u.top().(type) {
	case *Dict:
		u.fill(d, pairs)
	case *Object:
		items, ok := d.Items.(*Dict)
		if !ok {
			items = &Dict{}
			d.Items = items
		}
		u.fill(items, pairs)
	default:
		u.fail("it sets a value of a %T", d)
	}
}

// global returns the name of a class. The pickle can join stored texts without end, so the length
// of a name is limited.
func (u *unpickler) global(module, name string) Global {
	if len(module)+len(name) > 1000 {
		u.fail("a class whose name has %d bytes", len(module)+len(name))
	}
	return Global(module + "." + name)
}

// attackers are modules and functions of Python that no file of weights calls.
var attackers = []string{
	"os", "posix", "nt", "subprocess", "pty", "shutil", "socket", "runpy", "webbrowser", "importlib", "ctypes",
	"builtins.eval", "builtins.exec", "builtins.compile", "builtins.__import__", "builtins.open", "builtins.execfile", "builtins.input",
}

// attacks reports whether a class or function can run commands or other code.
func attacks(name string) bool {
	if rest, ok := strings.CutPrefix(name, "__builtin__."); ok {
		name = "builtins." + rest
	}
	return slices.ContainsFunc(attackers, func(a string) bool { return name == a || strings.HasPrefix(name, a+".") })
}
