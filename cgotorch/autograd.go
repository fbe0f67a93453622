package cgotorch

import (
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Backward accumulates the gradient of loss into every leaf that requires a gradient. Then it
// frees the autograd graph. loss is a tensor of one element. Backward does not wait.
// [Tensor.Grad] returns the gradient of a leaf.
func (x *Exec) Backward(loss *Tensor) { x.BackwardWith(BackwardOptions{}, loss) }

// BackwardOptions are the options of [Exec.BackwardWith].
type BackwardOptions struct {
	// Grads has one tensor for each root: the gradient of the loss with respect to this root. The
	// backward starts from these gradients. A nil entry stands for the gradient 1, and its root must
	// then have one element. If Grads itself is nil, all entries are nil.
	Grads []*Tensor
	// RetainGraph keeps the autograd graph, so that a later backward can use it again.
	RetainGraph bool
	// Overlap runs gradients of convolutions and linear layers in parallel. If Overlap is nil, these
	// gradients run one after another.
	Overlap *Overlap
}

// BackwardWith is [Exec.Backward] from several roots, with options.
func (x *Exec) BackwardWith(o BackwardOptions, roots ...*Tensor) {
	x.check("Exec.Backward")
	handles := x.handles("Exec.Backward", roots, false)
	grads := x.handles("Exec.Backward", o.Grads, true)
	x.sameLength("Exec.Backward", len(roots), len(grads))
	defer runtime.KeepAlive([2][]*Tensor{roots, o.Grads})
	x.checkRoots("Exec.Backward", roots)
	defer x.holdCaptures("Exec.Backward")()
	if o.Overlap != nil && (o.Overlap.always || x.work == nil || !x.work.serial) {
		x.overlap("Exec.Backward", o.Overlap, func(sides []*ct.Stream) {
			x.differentiated("Exec.Backward", ct.BackwardOverlapping(x.c, first(handles), first(grads), int32(len(handles)), cbool(o.RetainGraph),
				o.Overlap.h, &sides[0], int32(len(sides)), x.work.poolHandle()), roots)
		})
		return
	}
	x.differentiated("Exec.Backward", ct.Backward(x.c, first(handles), first(grads), int32(len(handles)), cbool(o.RetainGraph)), roots)
}

// checkRoots fails for a root with NaN or Inf, if CGOTORCH_CHECK has the word finite. The operator
// that makes a NaN fails before, so no operator has made the root's.
func (x *Exec) checkRoots(op string, roots []*Tensor) {
	if !checkingValues() || x.Capturing() {
		return
	}
	y := x.NoGrad().NoAutocast()
	y.c.Watch = nil
	for _, root := range roots {
		bad := y.Tidy(func() *Tensor { return y.Any(y.LogicalNot(y.IsFinite(root))) })
		if ToSlice[bool](y, bad)[0] {
			x.Fail(op, refuse(op, nil, "%v, from which the gradients come, has NaN or Inf that no operator has made: the data, the weights or memory that nobody has written had it: look for it with x.IsFinite", root))
		}
	}
}

// GradientOptions are the options of [Exec.Gradients].
type GradientOptions struct {
	Grads       []*Tensor // as in [BackwardOptions]
	RetainGraph bool      // as in [BackwardOptions]
	CreateGraph bool      // the gradients themselves can be differentiated
	AllowUnused bool      // an input that no root depends on gives nil instead of an error
}

// Gradients returns, for each input, the gradient of the sum of the roots with respect to this
// input. It accumulates nothing into leaves. It does not wait. The Do owns the gradients.
func (x *Exec) Gradients(roots, inputs []*Tensor, o GradientOptions) []*Tensor {
	x.check("Exec.Gradients")
	rs := x.handles("Exec.Gradients", roots, false)
	ins := x.handles("Exec.Gradients", inputs, false)
	x.checkRoots("Exec.Gradients", roots)
	grads := x.handles("Exec.Gradients", o.Grads, true)
	x.sameLength("Exec.Gradients", len(roots), len(grads))
	out := make([]*ct.Tensor, len(ins))
	defer runtime.KeepAlive([3][]*Tensor{roots, inputs, o.Grads})
	x.differentiated("Exec.Gradients", ct.Gradients(x.c, first(rs), first(grads), int32(len(rs)), first(ins), int32(len(ins)),
		cbool(o.RetainGraph || o.CreateGraph), cbool(o.CreateGraph), cbool(o.AllowUnused), first(out)), roots)
	tensors := make([]*Tensor, len(out))
	for i, h := range out {
		if h != nil {
			tensors[i] = x.s.own(h)
		}
	}
	return tensors
}

func (x *Exec) sameLength(op string, roots, grads int) {
	if grads != 0 && grads != roots {
		x.s.fail(refuse(op, ErrInvalidArgument, "there must be a gradient, or nil, for each root"))
	}
}

func (x *Exec) handles(op string, tensors []*Tensor, allowNil bool) []*ct.Tensor {
	handles := make([]*ct.Tensor, len(tensors))
	for i, t := range tensors {
		if t == nil && allowNil {
			continue
		}
		x.open(op, t)
		handles[i] = t.h
	}
	return handles
}

func first(handles []*ct.Tensor) **ct.Tensor {
	if len(handles) == 0 {
		return nil
	}
	return &handles[0]
}
