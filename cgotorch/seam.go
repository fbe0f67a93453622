package cgotorch

import (
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

func init() {
	seam.Register(seam.Core[*Exec, *Tensor, Device, *Error](inner{}))
}

// inner is the seam.Core of this package.
type inner struct{}

func (inner) Ready() error                             { return ready() }
func (inner) Check(op string, status *ct.Status) error { return check(op, status) }
func (inner) Caller() string                           { return caller() }
func (inner) Waits(op string)                          { waits(op) }
func (inner) Device(d Device) ct.Device                { return d.c() }

func (inner) StreamName(id uint64) (string, bool) {
	name, ok := streams.names.Load(id)
	if !ok {
		return "", false
	}
	return name.(string), true
}

func (inner) Operator(name string) seam.Operator[*Exec] { return begun{&operator{name: name}} }

// begun is an operator as a seam.Operator.
type begun struct{ *operator }

func (o begun) Schema() (string, error) { return o.schema() }
func (o begun) Begin(x *Exec) any       { return x.call(o.operator) }

func (inner) Prepare(x *Exec, op string, ts []*Tensor) (ct.Exec, []*ct.Tensor) {
	x.check(op)
	handles := make([]*ct.Tensor, len(ts))
	for i, t := range ts {
		x.open(op, t)
		handles[i] = t.h
	}
	return x.c, handles
}

func (inner) Must(x *Exec, op string, status *ct.Status, ts []*Tensor) { x.must(op, status, ts...) }
func (inner) Own(x *Exec, h *ct.Tensor) *Tensor                        { return x.s.own(h) }

func (inner) Explain(x *Exec, place, cure string) {
	e := x.s.err
	if e == nil || e.place != "" {
		return
	}
	if e.place = place; cure != "" {
		message, _, _ := strings.Cut(e.Message, "; ")
		e.Message = message + "; " + cure
	}
}

func (inner) Uncaptured(x *Exec) *Exec { return x.uncaptured() }
func (inner) Version(t *Tensor) int    { return int(t.info().Version) }

func (inner) StorageBytes(t *Tensor) int64 { return t.info().StorageBytes }

func (inner) Failure(x *Exec) *Error { return x.s.err }
func (inner) Watched(x *Exec) bool   { return x.c.Watch != nil }
func (inner) InGraph(x *Exec) bool   { return x.work != nil }

func (inner) Unwatched(x *Exec) *Exec {
	y := *x
	y.c.Watch = nil
	return &y
}

func (inner) Observe(x *Exec, o seam.Observer[*Exec, *Tensor]) {
	x.s.stream.observers = append(x.s.stream.observers, o)
	x.s.observers = append(x.s.observers, o)
}

func (inner) Unobserve(x *Exec, o seam.Observer[*Exec, *Tensor]) bool {
	is := func(other observer) bool { return other == o }
	found := slices.ContainsFunc(x.s.stream.observers, is)
	x.s.stream.observers = slices.DeleteFunc(x.s.stream.observers, is)
	x.s.observers = slices.DeleteFunc(slices.Clone(x.s.observers), is)
	return found
}

func (inner) Values(x *Exec) *seam.Values { return x.values }

func (inner) With(x *Exec, v *seam.Values) *Exec {
	y := *x
	y.values = v
	return &y
}

func (inner) Notes(t *Tensor) **seam.Values { return &t.notes }

func (inner) IsLeaf(t *Tensor) bool {
	info := t.info()
	return info.RequiresGrad != 0 && info.IsLeaf != 0
}

func (inner) HasGrad(t, grad *Tensor) bool { return t.grad == grad }
