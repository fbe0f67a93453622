package dist

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
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
}

// GradientsOptions are the options of [NewGradients].
type GradientsOptions struct {
	// Sum leaves the sum over the ranks in the gradients. The default is the mean, which is the
	// gradient of the mean loss if all ranks have equal batches.
	Sum bool
	// Unused gives a parameter that a backward does not reach a gradient of zeros. Without it such
	// a backward fails, and names the parameters.
	Unused bool
	// BucketBytes is the size of the pieces that are reduced at once, in bytes of the parameters. 0
	// means 128 MiB. Small pieces begin earlier, but their kernels take multiprocessors from the
	// backward.
	BucketBytes int64
}

// Note [Few buckets]
//
// DistributedDataParallel reduces pieces of 25 MiB, the first of 1 MiB. On two H100 a captured step
// of ResNet-50 lost 0.51 ms at batch 32 and 0.66 ms at batch 256 with six such pieces. An
// all-reduce of all its gradients alone takes about 0.2 ms. The kernels of NCCL keep
// multiprocessors while they wait for each other, and the norms of the backward are launches that
// need all of them at once. So the default is one piece for models of this size, which begins when
// the last gradient has arrived.
const defaultBucketBytes = 128 << 20

// NewGradients returns a Gradients for the parameters of a model that require gradients. The
// parameters are on the group's device. It gives all ranks the weights and buffers of rank 0, as
// [Broadcast] does, and enqueues that on x's stream. The caller must Close the Gradients before the
// group and the model.
//
// It fails with [cgotorch.ErrInvalidArgument] if the model has no such parameters, or has others on
// another rank.
func NewGradients(x *cgotorch.Exec, g *Group, model any, o GradientsOptions) (*Gradients, error) {
	r := &Gradients{group: g, o: o}
	if o.BucketBytes <= 0 {
		r.o.BucketBytes = defaultBucketBytes
	}
	seen := map[*cgotorch.Tensor]bool{}
	for _, p := range nn.State(model) {
		if p.Tensor.RequiresGrad() && !seen[p.Tensor] {
			seen[p.Tensor] = true
			r.names = append(r.names, p.Name)
			r.parameters = append(r.parameters, p.Tensor)
		}
	}
	if len(r.parameters) == 0 {
		return nil, fmt.Errorf("dist: NewGradients: the model has no parameters that require gradients: %w", cgotorch.ErrInvalidArgument)
	}
	Broadcast(x, g, model)
	r.plan = of("Gradients", r.parameters...)
	r.plan.at = seam.Caller()
	r.missing = make([]uint8, len(r.parameters))
	if g.h == nil {
		return r, nil
	}
	if err := g.makeSide(); err != nil {
		return nil, err
	}
	_, handles := seam.Core(x, "dist.NewGradients", r.parameters)
	err := seam.Check("dist.NewGradients", ct.ReducerNew(g.h, &handles[0], int32(len(handles)), r.o.BucketBytes, &r.h))
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Broadcast gives all ranks the parameters and buffers of rank 0. It first compares their names,
// dtypes and shapes, and waits for the other ranks for that. Then it enqueues the broadcast on x's
// stream. If the model has counters on the host, as batch norms have, it waits for the device. It
// fails x's Do with [cgotorch.ErrInvalidArgument] if the models of two ranks differ, and names the
// first difference.
func Broadcast(x *cgotorch.Exec, g *Group, model any) {
	state := nn.State(model)
	var tensors []*cgotorch.Tensor
	for _, n := range state {
		tensors = append(tensors, n.Tensor)
	}
	if g.h == nil {
		g.check(x, "dist.Broadcast")
		return
	}
	if err := g.compare(state); err != nil {
		x.Fail("dist.Broadcast", err)
	}
	var counters []*cgotorch.Tensor // which batch norms keep on the host
	tensors = slices.DeleteFunc(tensors, func(t *cgotorch.Tensor) bool {
		if t.Device() == g.device {
			return false
		}
		counters = append(counters, t)
		return true
	})
	g.BroadcastList(x.NoGrad(), tensors, 0)
	if len(counters) > 0 {
		g.broadcastCounters(x, counters)
	}
}

// The method `broadcastCounters` gives all ranks the numbers of rank 0 that lie on the host. It
// waits for the device.
func (g *Group) broadcastCounters(x *cgotorch.Exec, counters []*cgotorch.Tensor) {
	const op = "dist.Broadcast"
	var all []int64
	for _, t := range counters {
		values, err := cgotorch.HostSlice[int64](t)
		if err != nil {
			x.Fail(op, fmt.Errorf("a tensor of the model is not on %v: %w", g.device, err))
		}
		all = append(all, values...)
	}
	x.Tidy(func() *cgotorch.Tensor {
		on := cgotorch.FromSlice(x, all)
		g.Broadcast(x, on, 0)
		all = cgotorch.ToSlice[int64](x, on)
		return nil
	})
	for _, t := range counters {
		values, err := cgotorch.HostSlice[int64](t)
		if err != nil {
			x.Fail(op, err)
		}
		all = all[copy(values, all):]
	}
}

// The method `compare` fails unless the models of all ranks have the same tensors. It waits for the
// other ranks.
func (g *Group) compare(state []nn.Named) error {
	var all []string
	for _, n := range state {
		all = append(all, fmt.Sprintf("%s %v%v, strides %v", n.Name, n.Tensor.DType(), n.Tensor.Shape(), n.Tensor.Strides()))
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	texts, err := g.Exchange(string(text))
	if err != nil {
		return err
	}
	var first []string
	if texts[0] == "" { // rank 0 is a process with torch.distributed
		return nil
	}
	if err := json.Unmarshal([]byte(texts[0]), &first); err != nil {
		return err
	}
	if err := differ(first, all, g.rank); err != nil {
		return err
	}
	for i, other := range texts {
		if other != "" && other != texts[0] {
			return fmt.Errorf("%s has another model than rank 0: see its error: %w", g.names[i], cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}

// The function `differ` returns the first difference between the tensors of rank 0 and those of
// another rank, or nil.
func differ(first, own []string, rank int) error {
	for i := range max(len(first), len(own)) {
		a, b := "nothing more", "nothing more"
		if i < len(first) {
			a = first[i]
		}
		if i < len(own) {
			b = own[i]
		}
		if a != b {
			return fmt.Errorf("rank 0 and rank %d have different models: tensor %d is %s there and %s here: %w", rank, i, a, b, cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}

// Backward is Exec.Backward of the loss, after which the gradients are the means over all ranks.
// x's stream waits for the collectives on the device. The host does not wait, except on the CPU.
// All ranks must call it.
//
// If a program sums the gradients of several small batches, it calls Exec.Backward for all of them
// but the last, and Backward of the Gradients for the last.
//
// Backward fails with [cgotorch.ErrInvalidArgument] if it does not reach a parameter and
// GradientsOptions.Unused is false. It fails with [cgotorch.ErrGroupFailed] if the group has
// failed.
func (r *Gradients) Backward(x *cgotorch.Exec, loss *cgotorch.Tensor) {
	r.BackwardWith(x, cgotorch.BackwardOptions{}, loss)
}

// BackwardWith is [Gradients.Backward] from several roots, with options.
func (r *Gradients) BackwardWith(x *cgotorch.Exec, o cgotorch.BackwardOptions, roots ...*cgotorch.Tensor) {
	const op = "dist.Gradients.Backward"
	g := r.group
	g.check(x, op)
	if g.h == nil {
		x.BackwardWith(o, roots...)
		return
	}
	g.note(x, r.plan)
	g.compareCalls(x, op)
	c, handles := seam.Core(x, op, roots)
	// In a capture the collectives run on a stream of the graph's own, which stands in for the side
	// stream. It joins the capture by this event.
	beside := x.On(g.side)
	fork := x.Record()
	beside.Wait(fork)
	fork.Close()
	side, _ := seam.Core(beside, op, []*cgotorch.Tensor(nil))
	seam.Must(x, op, ct.ReducerBegin(c, r.h, side.Stream, &handles[0], int32(len(handles)), flag(r.o.Sum), flag(r.o.Unused)), roots)
	done := false
	end := func(failed int32) *ct.Status {
		done = true
		return ct.ReducerEnd(c, r.h, failed, &r.missing[0])
	}
	defer func() {
		if !done { // the backward has failed, and panics
			ct.StatusFree(end(1))
		}
	}()
	x.BackwardWith(o, roots...)
	status := end(0)
	if status != nil && ct.StatusCode(status) == ct.InvalidArgument && r.unused() != "" {
		ct.StatusFree(status)
		x.Fail(op, fmt.Errorf("no gradient for %s: the loss does not depend on them; freeze them with SetRequiresGrad(false) before NewGradients, or set GradientsOptions.Unused: %w", r.unused(), cgotorch.ErrInvalidArgument))
	}
	g.must(x, op, status, roots)
}

func flag(yes bool) int32 {
	if yes {
		return 1
	}
	return 0
}

// The method `unused` returns the names of the parameters that the last backward has not reached.
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

// GradientsStats are counts of the last backward of a [Gradients].
type GradientsStats struct {
	Collectives int   // collectives of the last backward
	Early       int   // those that began before the backward had ended
	Bytes       int64 // bytes that they reduced on this rank
}

// Stats returns the counts.
func (r *Gradients) Stats() GradientsStats {
	var n ct.ReducerCounts
	ct.ReducerCount(r.h, &n)
	return GradientsStats{Collectives: int(n.Buckets), Early: int(n.Early), Bytes: n.Bytes}
}

// Close frees the Gradients. Its collectives must be done. A second Close does nothing.
func (r *Gradients) Close() error {
	if r == nil || r.h == nil {
		return nil
	}
	ct.ReducerFree(r.h)
	r.h = nil
	return nil
}
