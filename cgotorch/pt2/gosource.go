package pt2

import (
	"bytes"
	"errors"
	"fmt"
	"go/token"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// ErrNoGoSource is wrapped by the errors of [GoSource] for a program that [Load] may run, but that
// GoSource cannot write.
var ErrNoGoSource = errors.New("there is no Go source for it, so use pt2.Load")

// GoOptions choose what [GoSource] writes. The zero value writes package net.
type GoOptions struct {
	Package string // the name of the package; "" means net
	Model   string // the name of the program, if the file holds several; "" means the only one

	// FreeEarly closes each tensor behind its last use, as [Program] does. Without it, tensors live to
	// the end of the method of their module, so the source is shorter and needs more memory.
	FreeEarly bool
}

// GoSource returns the Go source of a module that computes what a program computes: the contents
// of files, by their names. It reads no weights and needs no device.
//
// The module is a struct Net with the names of the Python model's state dict, so [nn.Load] and
// package checkpoint fill it. Function New makes it on a device. Its method Forward maps a tensor
// to a tensor. A program with other arguments or results has a method Call instead. Its arguments
// and results are the leaves of Python's. Tensors that are in no state dict are in the file
// constants.safetensors, which the source embeds.
//
// The source calls typed operators where they exist, and other operators by name. It checks the
// sizes of its inputs, and the guards and assertions of the program, as [Program.Call] does. It
// does not check dtypes.
//
// GoSource fails as [Load] does. It fails with an error that wraps [ErrNoGoSource] for a program
// with conditions or loops on tensors, for weights that overlap in memory, and for a weight whose
// name no field tag can hold. The error names the node or the weight.
func GoSource(path string, o GoOptions) (map[string][]byte, error) {
	if o.Package == "" {
		o.Package = "net"
	}
	if !token.IsIdentifier(o.Package) || o.Package == "_" || reserved(o.Package) {
		return nil, fmt.Errorf("pt2: GoOptions.Package is %.100q: use a name such as net", o.Package)
	}
	f, size, err := torchzip.OpenFile("pt2", path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := parse(f, size, path, Options{Model: o.Model})
	if err != nil {
		return nil, err
	}
	operators, err := typedOperators()
	if err != nil {
		return nil, err
	}
	s := &goSource{binder: b, pkg: o.Package, freeEarly: o.FreeEarly, operators: operators, helpers: map[string]bool{}, methods: map[string]*goMethod{}, taken: map[string]bool{}}
	if err := s.modules(); err != nil {
		return nil, err
	}
	if err := s.list(); err != nil {
		return nil, err
	}
	files, err := s.files()
	if err != nil {
		return nil, err
	}
	if len(s.constantList) > 0 {
		if files[constantsFile], err = s.constants(); err != nil {
			return nil, err
		}
	}
	return files, nil
}

const constantsFile = "constants.safetensors"

// A goSource writes one program.
type goSource struct {
	*binder
	pkg       string
	freeEarly bool
	operators map[string][]goOperator
	root      *goModule
	types     []string // the declarations of the structs
	functions []*goMethod
	checks    string // the declaration of checkSizes, or ""
	helpers   map[string]bool
	methods   map[string]*goMethod // by their receivers and texts
	taken     map[string]bool      // names of methods, with their receiver types

	nodes          []*goNode
	ends           [][]*goValue // the tensors that nobody reads behind node i, for FreeEarly
	users          []*goValue   // the inputs that a caller gives; nil for a fixed one
	outputs        []goArg
	constantValues []*goValue
	weightValues   []*goValue
}

// refuse returns the error for a node that has no counterpart in Go.
func (s *goSource) refuse(n *Node, why string) error {
	return s.cannot("node %.100s (%.100s): %s", n.Name, n.Operator, why)
}

func (s *goSource) cannot(format string, args ...any) error {
	return fmt.Errorf("pt2: %s: %w: %s", s.binder.file.Name, ErrNoGoSource, fmt.Sprintf(format, args...))
}

// constants returns the file of the tensors that are in no state dict.
func (s *goSource) constants() ([]byte, error) {
	var list []safetensors.Tensor
	for i, t := range s.constantList {
		data, err := s.values(t)
		if err != nil {
			return nil, err
		}
		list = append(list, safetensors.Tensor{Name: s.constantName(i), DType: "U8", Shape: []int64{int64(len(data))}, Data: data})
	}
	var out bytes.Buffer
	if err := safetensors.Write(&out, list, nil); err != nil {
		return nil, fmt.Errorf("pt2: %s: %w", s.file.Name, err)
	}
	return out.Bytes(), nil
}

// constantName returns the name of a constant in the file, such as Features.M1.positions.
func (s *goSource) constantName(i int) string { return strings.Join(s.constantValues[i].fields, ".") }

// values returns the elements of a tensor, row-major.
func (s *goSource) values(t *storedTensor) ([]byte, error) {
	if t.entry == "" {
		return nil, s.file.Refuse("the tensor %.100q is pickled: it is a tensor subclass or a custom object", t.name)
	}
	size := elementSize(t.dtype)
	section, err := s.file.Section(t.entry)
	if err != nil {
		return nil, err
	}
	if section.Size() < t.span*size {
		return nil, s.file.Bad("the entry %.200s has %d bytes, and the tensor %.100q needs %d", t.entry, section.Size(), t.name, t.span*size)
	}
	storage := make([]byte, t.span*size)
	if _, err := section.ReadAt(storage, 0); err != nil && len(storage) > 0 {
		return nil, s.file.Bad("the entry %.200s: %w", t.entry, err)
	}
	count := int64(1)
	for _, n := range t.shape {
		count *= n
	}
	if count > max(t.span, mostExpanded) {
		return nil, s.cannot("the constant %.100q has %d elements, of which %d are in the file", t.name, count, t.span)
	}
	data := make([]byte, 0, count*size)
	at := make([]int64, len(t.shape))
	for range count {
		place := t.offset
		for d, i := range at {
			place += i * t.strides[d]
		}
		data = append(data, storage[place*size:(place+1)*size]...)
		for d := len(at) - 1; d >= 0; d-- {
			if at[d]++; at[d] < t.shape[d] {
				break
			}
			at[d] = 0
		}
	}
	return data, nil
}

// mostExpanded is the most elements of a constant that repeats its elements.
const mostExpanded = 1 << 20
