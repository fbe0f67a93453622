package cgotorch

import (
	"strings"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

//go:generate go run ./internal/opgen

// Scalar is a number argument of an operator: an int, int64, float64, float32, complex128,
// complex64 or bool. An integer tensor keeps its dtype with an integer Scalar, and does not keep it
// with a float Scalar.
type Scalar any

// Opt is an optional field whose default is not Go's zero value. The zero Opt stands for the
// default. [Set] returns an Opt with another value.
type Opt[T any] struct {
	value T
	set   bool
}

// Set returns an Opt that holds v.
func Set[T any](v T) Opt[T] { return Opt[T]{v, true} }

// Get returns the value, and whether a value is set.
func (o Opt[T]) Get() (T, bool) { return o.value, o.set }

// Or returns the value, or the argument `other` if no value is set.
func (o Opt[T]) Or(other T) T {
	if o.set {
		return o.value
	}
	return other
}

// Reduction is the way in which a loss joins its per-element values. The zero value is the
// mean.
type Reduction int

// The reductions.
const (
	ReductionMean Reduction = iota
	ReductionSum
	ReductionNone
)

// MemoryFormat is the order of a tensor's elements in memory, numbered as in LibTorch.
type MemoryFormat int8

// The memory formats.
const (
	Contiguous     MemoryFormat = 0 // row-major
	Preserve       MemoryFormat = 1 // the format of the input
	ChannelsLast   MemoryFormat = 2 // NHWC in memory, NCHW in shape
	ChannelsLast3D MemoryFormat = 3 // NDHWC in memory, NCDHW in shape
)

// operator is one entry of LibTorch's dispatcher, found on first use.
type operator struct {
	name  string // as in "aten::add.Tensor"
	found atomic.Pointer[foundOperator]
}

type foundOperator struct {
	h     *ct.Op
	guard guard // or nil
}

func (o *operator) find() (*foundOperator, error) {
	if found := o.found.Load(); found != nil {
		return found, nil
	}
	if err := ready(); err != nil {
		return nil, err
	}
	name, overload, _ := strings.Cut(o.name, ".")
	var h *ct.Op
	if err := check(o.name, ct.OpFind(name, overload, &h)); err != nil {
		return nil, err
	}
	found := &foundOperator{h, guardOf(o.name)}
	o.found.Store(found)
	return found, nil
}

// schema returns the schema as LibTorch prints it.
func (o *operator) schema() (string, error) {
	found, err := o.find()
	if err != nil {
		return "", withOverloads(o.name, err)
	}
	var text string
	err = check(o.name, ct.OpSchema(found.h, &text))
	return text, err
}
