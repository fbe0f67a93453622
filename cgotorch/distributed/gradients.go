package distributed

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Gradients reduces the gradients of a model over the ranks of a group, while a backward computes
// them. The collectives run on a stream of the group's, beside the rest of the backward. One
// goroutine at a time uses a Gradients.
type Gradients struct {
	group      *Group
	o          GradientsOptions
	names      []string
	parameters []*cgotorch.Tensor
	h          *ct.Reducer
	plan       call
	missing    []uint8

	// Of each gradient: the number of its last reduction, and what ReducerMissed told then.
	numbers, seen []int64
	last          int64   // the number of the last reduction
	missed, now   []int64 // memory of Reductions
}

// GradientsOptions are the options of [NewGradients].
type GradientsOptions struct {
	// Sum leaves the sum over the ranks in the gradients. The default is the mean, which is the
	// gradient of the mean loss if all ranks have equal batches. A second Backward without ZeroGrad
	// reduces gradients that are reduced already.
	Sum bool
	// Unused gives a parameter that a backward does not reach a gradient of zeros. Without it such
	// a backward fails, and names the parameters. With it nothing is reduced before the end of the
	// backward, because the ranks may reach different parameters.
	Unused bool
	// BucketBytes is the size of the buckets, which are reduced at once, in bytes of the parameters.
	// 0 means 128 MiB. Small buckets begin earlier, but their kernels take multiprocessors from the
	// backward. The first parameters, up to 1 MiB or one large one, are a bucket of their own, which
	// comes last.
	BucketBytes int64
}

// Note [Few buckets]
//
// DistributedDataParallel reduces pieces of 25 MiB, the first of 1 MiB. A captured step of
// ResNet-50 at batch 32 on two H100 lost 0.42 ms with such pieces, 0.32 ms with one piece at the
// end, and 0.25 ms with one piece before the last 1 MiB. At batch 256 the latter two lost 0.36 ms
// and 0.29 to 0.33 ms. An all-reduce of all gradients alone takes 0.23 ms. The kernels of NCCL keep
// multiprocessors while they wait for each other, so early ones cost more than they hide. Kernels
// that need all multiprocessors at once wait for them. Norms take other kernels meanwhile.
const defaultBucketBytes = 128 << 20

// NewGradients returns a Gradients for the parameters of a model that require gradients, and waits
// until all ranks have called it. The parameters are on the group's device. All ranks get the
// weights and buffers of rank 0, as by [Broadcast]. If the model has counters on the host, as batch
// norms have, NewGradients waits for the device. The caller must Close the Gradients before the
// group and the model.
//
// The model keeps its parameters: nn.To, a new layer or another SetRequiresGrad comes before. All
// ranks load a checkpoint, because the optimizer's state is not given to the others.
//
// A weight has one gradient in a backward. A weight that several recomputed segments share has one
// in each, so a Backward may fail with [cgotorch.ErrUnsupported].
//
// NewGradients fails with [cgotorch.ErrInvalidArgument] if the model has no such parameters, or has
// others or other options on another rank. In a captured function it fails with
// [cgotorch.ErrNotCapturable].
func NewGradients(x *cgotorch.Exec, g *Group, model any, o GradientsOptions) (*Gradients, error) {
	r := &Gradients{group: g, o: o}
	if o.BucketBytes <= 0 {
		r.o.BucketBytes = defaultBucketBytes
	}
	if x.Capturing() {
		return nil, fmt.Errorf("distributed: NewGradients: make it before the function that is captured: %w", cgotorch.ErrNotCapturable)
	}
	state := nn.State(model)
	seen := map[*cgotorch.Tensor]bool{}
	for _, p := range state {
		if p.Tensor.RequiresGrad() && !seen[p.Tensor] {
			seen[p.Tensor] = true
			r.names = append(r.names, p.Name)
			r.parameters = append(r.parameters, p.Tensor)
		}
	}
	if len(r.parameters) == 0 {
		return nil, fmt.Errorf("distributed: NewGradients: the model has no parameters that require gradients: %w", cgotorch.ErrInvalidArgument)
	}
	defer g.enter(x, "distributed.NewGradients")()
	if err := g.compare(state, fmt.Sprintf("GradientsOptions{BucketBytes: %d, Sum: %t, Unused: %t}", r.o.BucketBytes, o.Sum, o.Unused)); err != nil {
		return nil, fmt.Errorf("distributed: NewGradients: %w", err)
	}
	g.broadcast(x, state)
	r.plan = of("Gradients", r.parameters...)
	r.missing = make([]uint8, len(r.parameters))
	if g.alone {
		return r, nil
	}
	if err := g.makeSide(); err != nil {
		return nil, err
	}
	_, handles := inside.Core.Prepare(x, "distributed.NewGradients", r.parameters)
	err := inside.Core.Check("distributed.NewGradients", ct.ReducerNew(g.h, &handles[0], int32(len(handles)), r.o.BucketBytes, &r.h))
	if err != nil {
		return nil, err
	}
	if g.world > 1 {
		r.watch()
	}
	return r, nil
}

// Backward is Exec.Backward of the loss, after which the gradients are the means over all ranks.
// x's stream waits for the collectives on the device. The host does not wait, except on the CPU.
// All ranks must call it. Beside collectives of several ranks, fused norms take kernels that add in
// another order. So last bits may differ from those of Exec.Backward, and with an Overlap from
// those without. With one rank they are equal, if LibTorch's operators are deterministic.
//
// Exec.Backward and Optimizer.Minimize reduce nothing. A step of package optim fails after them,
// and after a Backward that an Exec.Backward has followed. [Group.AllReduce] and [Group.Broadcast]
// of a parameter's Grad reduce it too. A gradient that is not finite on one rank is so on all of
// them.
//
// If a program sums the gradients of several small batches, it calls Exec.Backward for all of them
// but the last, and Backward of the Gradients for the last.
//
// In a group of one rank Backward is Exec.Backward and checks nothing more. Otherwise it fails with
// [cgotorch.ErrInvalidArgument] if it does not reach a parameter and GradientsOptions.Unused is
// false. It fails with [cgotorch.ErrGroupFailed] if the group has failed.
func (r *Gradients) Backward(x *cgotorch.Exec, loss *cgotorch.Tensor) {
	r.BackwardWith(x, cgotorch.BackwardOptions{}, loss)
}

// BackwardWith is [Gradients.Backward] from several roots, with options.
func (r *Gradients) BackwardWith(x *cgotorch.Exec, o cgotorch.BackwardOptions, roots ...*cgotorch.Tensor) {
	const op = "distributed.Gradients.Backward"
	g := r.group
	defer g.enter(x, op)()
	if g.alone {
		x.BackwardWith(o, roots...)
		return
	}
	if len(roots) == 0 {
		x.Fail(op, fmt.Errorf("no loss: give one root or more: %w", cgotorch.ErrInvalidArgument))
	}
	c, handles := inside.Core.Prepare(x, op, roots)
	r.plan.at = inside.Core.Caller()
	undo := g.note(x, r.plan)
	// A failed backward of this rank alone leaves the others waiting for its collectives. If it has
	// made none, the group can go on: all ranks may have failed alike. A capture makes none.
	captured, begun, done := x.Capturing(), false, false
	failed := func() {
		if n := r.counts().Buckets; begun && n > 0 && !captured {
			g.fail("its backward has failed after %d of its collectives", n)
		} else {
			undo()
		}
	}
	end := func(failed int32) *ct.Status {
		done = true
		return ct.ReducerEnd(c, r.h, failed, &r.missing[0])
	}
	defer func() {
		if done {
			return
		}
		// The backward has failed, and panics. If a collective failed, the reason is another rank.
		if !g.explainPanic(x) {
			failed()
		}
		if begun {
			ct.StatusFree(end(1))
		}
	}()
	g.compareCalls(x, op)
	// In a capture the collectives run on a stream of the graph's own, which stands in for the side
	// stream. It joins the capture by this event.
	beside := x.On(g.side)
	fork := x.Record()
	beside.Wait(fork)
	fork.Close()
	side, _ := inside.Core.Prepare(beside, op, nil)
	inside.Core.Must(x, op, ct.ReducerBegin(c, r.h, side.Stream, &handles[0], int32(len(handles)), flag(r.o.Sum), flag(r.o.Unused)), roots)
	begun = true
	x.BackwardWith(o, roots...)
	status := end(0)
	if status != nil && ct.StatusCode(status) != ct.GroupFailed {
		failed()
	}
	if status != nil && ct.StatusCode(status) == ct.InvalidArgument && r.unused() != "" {
		ct.StatusFree(status)
		x.Fail(op, fmt.Errorf("no gradient for %s: the loss does not depend on them, or they were changed after NewGradients, as by nn.To; freeze them with SetRequiresGrad(false) before it, or set GradientsOptions.Unused: %w", r.unused(), cgotorch.ErrInvalidArgument))
	}
	g.must(x, op, status, roots)
	r.mark(x, func(int) bool { return true })
}

func flag(yes bool) int32 {
	if yes {
		return 1
	}
	return 0
}

// unused returns the names of the parameters that the last backward has not reached.
func (r *Gradients) unused() string {
	var names []string
	for i, missing := range r.missing {
		if missing != 0 {
			names = append(names, r.names[i])
		}
	}
	if n := len(names); n > 4 {
		names = append(names[:3], fmt.Sprintf("and %d more", n-3))
	}
	return strings.Join(names, ", ")
}

// counts returns the number of collectives of the last backward, that of those that began before
// its end, and the bytes that they reduced on this rank.
func (r *Gradients) counts() (n ct.ReducerCounts) {
	ct.ReducerCount(r.h, &n)
	return n
}

// Close frees the Gradients. Its collectives must be done. A second Close does nothing.
func (r *Gradients) Close() error {
	if r == nil || r.h == nil {
		return nil
	}
	r.unwatch()
	ct.ReducerFree(r.h)
	r.h = nil
	return nil
}
