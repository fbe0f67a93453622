// Package gosource writes Go source of models that torch.export.save has written.
//
//	files, err := gosource.Generate("resnet18.pt2", gosource.Options{Package: "resnet"})
//
// Package pt2 runs such models without source. Source can be read, changed and trained.
package gosource

import (
	"bytes"
	"errors"
	"fmt"
	"go/token"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/export"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// ErrNoSource is wrapped by the errors of [Generate] for a program that [pt2.Load] may run, but
// that Generate cannot write.
var ErrNoSource = errors.New("there is no Go source for it, so use pt2.Load")

// Options choose what [Generate] writes. The zero value writes package net.
type Options struct {
	Package string // the name of the package; "" means net
	Model   string // the name of the program, if the file holds several; "" means the only one

	// FreeEarly closes each tensor behind its last use, as [pt2.Program] does. Without it, tensors
	// live to the end of the method of their module, so the source is shorter and needs more
	// memory.
	FreeEarly bool
}

// Generate returns the Go source of a module that computes what a program computes: the contents
// of files, by their names. It reads no weights and needs no device.
//
// The module is a struct Net with the names of the Python model's state dict, so [nn.Load] and
// package checkpoint fill it. Function New makes it on a device. Its method Forward maps a tensor
// to a tensor. A program with other arguments or results has a method Call instead. Its arguments
// and results are the leaves of Python's. Tensors that are in no state dict are in the file
// constants.safetensors, which the source embeds.
//
// The source calls typed operators where they exist, and other operators by name. It checks the
// sizes of its inputs, and the guards and assertions of the program, as [pt2.Program.Call] does. It
// does not check dtypes.
//
// Generate fails as [pt2.Load] does. It fails with an error that wraps [ErrNoSource] for a program
// with conditions or loops on tensors, for weights that overlap in memory, and for a weight whose
// name no field tag can hold. The error names the node or the weight.
func Generate(path string, o Options) (map[string][]byte, error) {
	if o.Package == "" {
		o.Package = "net"
	}
	if !token.IsIdentifier(o.Package) || o.Package == "_" || reserved(o.Package) {
		return nil, fmt.Errorf("gosource: Options.Package is %.100q: use a name such as net", o.Package)
	}
	f, size, err := torchzip.OpenFile("pt2", path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := export.Read(f, size, path, export.Options{Model: o.Model})
	if err != nil {
		return nil, err
	}
	operators, err := typedOperators()
	if err != nil {
		return nil, err
	}
	s := &writer{p: p, pkg: o.Package, freeEarly: o.FreeEarly, operators: operators, helpers: map[string]bool{}, methods: map[string]*goMethod{}, taken: map[string]bool{}}
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
	if len(s.p.ConstList) > 0 {
		if files[constantsFile], err = s.constants(); err != nil {
			return nil, err
		}
	}
	return files, nil
}

const constantsFile = "constants.safetensors"

// writer writes one program.
type writer struct {
	p         *export.Program
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
func (s *writer) refuse(n *graph.Node, why string) error {
	return s.cannot("node %.100s (%.100s): %s", n.Name, n.Operator, why)
}

func (s *writer) cannot(format string, args ...any) error {
	return fmt.Errorf("gosource: %s: %w: %s", s.p.File.Name, ErrNoSource, fmt.Sprintf(format, args...))
}

// constants returns the file of the tensors that are in no state dict.
func (s *writer) constants() ([]byte, error) {
	var list []safetensors.Tensor
	for i, t := range s.p.ConstList {
		data, err := s.p.Elements(t)
		if errors.Is(err, export.ErrExpanded) {
			return nil, s.cannot("the constant %.100q has more elements than the file", t.Name)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, safetensors.Tensor{Name: s.constantName(i), DType: "U8", Shape: []int64{int64(len(data))}, Data: data})
	}
	var out bytes.Buffer
	if err := safetensors.Write(&out, list, nil); err != nil {
		return nil, fmt.Errorf("gosource: %s: %w", s.p.File.Name, err)
	}
	return out.Bytes(), nil
}

// constantName returns the name of a constant in the file, such as Features.M1.positions.
func (s *writer) constantName(i int) string { return strings.Join(s.constantValues[i].fields, ".") }
