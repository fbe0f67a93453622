package dist

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// Sharded is an optimizer whose state is spread over the ranks of a group, as ZeRO-1 does. Each
// rank keeps the momentum, the moments and the float32 masters of 1/World of the elements. A step
// reduces the gradients, so that each rank has the mean of its piece. Then the rank changes its
// piece, and all ranks gather the weights. The results are those of the unsharded optimizer, but
// for rounding.
//
// All ranks make the same calls in the same order. One goroutine at a time uses a Sharded.
type Sharded struct {
	group   *Group
	o       ShardedOptions
	inner   *optim.Optimizer // its parameters are the parts of this rank, see Note [Vectors and parts]
	params  []*cgotorch.Tensor
	names   []string // of the parameters, for messages
	kept    [][]optim.RememberedTensor
	rule    string
	vectors []*vector
	owned   map[int]int      // index in params -> index in the parameters of inner
	spare   *cgotorch.Tensor // the only parameter of inner on a rank that owns no element
	reduced bool             // the parts have their gradients
	closed  bool
}

// ShardedOptions are the options of [NewSharded].
type ShardedOptions struct {
	// Reduced says that [Gradients.Backward] has reduced the gradients. Step then only takes those
	// of its piece. The collectives of the gradients run beside the backward, but move twice the
	// bytes. Without it the gradients are those of a plain Exec.Backward, and Step reduces them.
	Reduced bool
	// Sum takes the sum of the gradients over the ranks in place of the mean. Reduced ignores it.
	Sum bool
	// BucketBytes bounds the weights that a collective moves, and the memory that Step needs for
	// them. A larger parameter is one collective. 0 means 64 MiB.
	BucketBytes int64
}

// NewSharded returns a Sharded for the parameters of the groups, which are those of package optim.
// `make` makes the optimizer, as in
//
//	adamw := func(groups ...optim.Group) (*optim.Optimizer, error) {
//		return optim.NewAdamW(optim.AdamOptions{LR: 1e-3}, groups...)
//	}
//	sharded, err := dist.NewSharded(x, group, dist.ShardedOptions{}, adamw, groups...)
//
// NewSharded calls it twice: to check the groups, and with the pieces of this rank. NewSharded
// waits until all ranks have called it. It gives all ranks the parameters of rank 0, and enqueues
// that on x's stream. [Broadcast] does so for the buffers too. The parameters stay the caller's.
// The caller must Close the Sharded before the group and the parameters.
//
// It fails with the error of `make`. It fails with [cgotorch.ErrInvalidArgument] for a rule that
// looks at whole tensors, as LAMB and Muon do. It fails with the same error if a parameter is not
// dense or not on the group's device, and if the parameters or learning rates of two ranks differ.
// In a captured function it fails with [cgotorch.ErrNotCapturable].
func NewSharded(x *cgotorch.Exec, g *Group, o ShardedOptions, make func(groups ...optim.Group) (*optim.Optimizer, error), groups ...optim.Group) (*Sharded, error) {
	fail := func(format string, args ...any) (*Sharded, error) {
		return nil, fmt.Errorf("dist: NewSharded: "+format, args...)
	}
	if x.Capturing() {
		return fail("make it before the function that is captured: %w", cgotorch.ErrNotCapturable)
	}
	if o.BucketBytes <= 0 {
		o.BucketBytes = 64 << 20
	}
	whole, err := make(groups...)
	if err != nil {
		return nil, err
	}
	defer whole.Close()
	s := &Sharded{group: g, o: o, rule: whole.Rule(), params: whole.Params(), owned: map[int]int{}}
	if !whole.Elementwise() {
		return fail("%s looks at whole tensors, and a rank has only pieces of them: use an elementwise rule, such as AdamW, or the optimizer unsharded: %w", s.rule, cgotorch.ErrInvalidArgument)
	}
	var given []*cgotorch.Tensor
	for i, in := range groups {
		for k, p := range in.Params {
			given = append(given, p)
			s.names = append(s.names, fmt.Sprintf("parameter %d of group %d", k, i))
		}
	}
	if !slices.Equal(s.params, given) {
		return fail("make has given its optimizer other parameters than those of its groups: %w", cgotorch.ErrInvalidArgument)
	}
	for i, p := range s.params {
		if p.Device() != g.device {
			return fail("%s, %s, is on %v, and the group on %v: %w", s.names[i], p, p.Device(), g.device, cgotorch.ErrInvalidArgument)
		}
		if err := dense(p); err != nil {
			return fail("%s: %w", s.names[i], err)
		}
	}
	if err := s.agree(whole, groups); err != nil {
		return fail("%w", err)
	}
	s.kept = slices.Repeat([][]optim.RememberedTensor{nil}, len(s.params))
	for _, r := range whole.Remembers() {
		s.kept[r.Param] = append(s.kept[r.Param], r)
	}
	x = x.NoGrad().NoAutocast()
	g.BroadcastList(x, s.params, 0)
	pieces := s.layOut(x, groups)
	if s.inner, err = make(pieces...); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	var want []*cgotorch.Tensor
	for _, in := range pieces {
		want = append(want, in.Params...)
	}
	if s.inner.Rule() != s.rule || !slices.Equal(s.inner.Params(), want) {
		return nil, errors.Join(fmt.Errorf("dist: NewSharded: make has made another optimizer in its second call: %w", cgotorch.ErrInvalidArgument), s.Close())
	}
	return s, nil
}

// The method `agree` fails unless all ranks have the same parameters, learning rates and decays. It
// waits for the other ranks.
func (s *Sharded) agree(whole *optim.Optimizer, groups []optim.Group) error {
	if s.group.h == nil {
		return nil
	}
	var all []nn.Named
	i := 0
	for k, in := range groups {
		text := fmt.Sprintf(" of %s, learning rate %v, weight decay %v%v, %d bytes at once,", s.rule, whole.LR(k), in.WeightDecay, in.NoWeightDecay, s.o.BucketBytes)
		for _, p := range in.Params {
			all = append(all, nn.Named{Name: s.names[i] + text, Tensor: p})
			i++
		}
	}
	return s.group.compare(all)
}

// The method `layOut` makes the vectors. It returns the groups of this rank's optimizer.
func (s *Sharded) layOut(x *cgotorch.Exec, groups []optim.Group) []optim.Group {
	pieces := slices.Clone(groups)
	first, owned := 0, 0
	for i, in := range groups {
		pieces[i].Params = nil
		all := vectors(in, first, s.group.rank, s.group.world, s.o.BucketBytes)
		for _, v := range all {
			for _, p := range v.parts {
				x.Tidy(func() *cgotorch.Tensor {
					p.tensor = x.Keep(x.Narrow(inMemory(x, s.params[p.param]), 0, int(p.from), int(p.length)))
					return nil
				})
			}
			for _, p := range v.own {
				pieces[i].Params = append(pieces[i].Params, p.tensor)
				s.owned[p.param] = owned
				owned++
			}
		}
		s.vectors = append(s.vectors, all...)
		first += len(in.Params)
	}
	if owned == 0 {
		i := slices.IndexFunc(groups, func(in optim.Group) bool { return len(in.Params) > 0 })
		s.spare = x.Keep(x.Empty(groups[i].Params[0].DType(), 0))
		pieces[i].Params = []*cgotorch.Tensor{s.spare}
	}
	return pieces
}

// Params returns the parameters of all groups, in the order of the groups. They stay the caller's.
func (s *Sharded) Params() []*cgotorch.Tensor { return slices.Clone(s.params) }

// ZeroGrad is [optim.Optimizer.ZeroGrad].
func (s *Sharded) ZeroGrad() {
	for _, p := range s.params {
		if !p.Closed() {
			_ = p.SetGrad(nil) // removing cannot fail
		}
	}
	s.drop()
}

// The method `drop` frees the gradients of the parts.
func (s *Sharded) drop() {
	s.inner.ZeroGrad()
	s.reduced = false
}

// Step changes every parameter that has a gradient, as [optim.Optimizer.Step] does in an unsharded
// optimizer. It reduces the gradients, unless ClipGradNorm has done so. All ranks have the same
// weights afterwards. On CUDA it does not wait. On the CPU it waits for the other ranks.
//
// A parameter without a gradient on one rank has none on all ranks. Otherwise the group fails with
// [cgotorch.ErrGroupFailed] a moment later, with an error that names the parameters. A Step can be
// captured if the optimizer's can. A graph is out of date where [optim.Optimizer.Step] says so.
//
// Step fails as [optim.Optimizer.Step] and [Group.AllReduce] do.
func (s *Sharded) Step(x *cgotorch.Exec) {
	x = s.use(x, "dist.Sharded.Step")
	s.reduce(x)
	s.inner.Step(x)
	for _, v := range s.vectors {
		if v.active && s.group.world > 1 {
			s.gather(x, v)
		}
	}
	s.drop()
}

// The method `use` fails if the Sharded or a parameter is closed. It returns the Exec for the
// operators of op.
func (s *Sharded) use(x *cgotorch.Exec, op string) *cgotorch.Exec {
	stale := func() string {
		if s.closed {
			return "the sharded optimizer was closed"
		}
		for i, p := range s.params {
			if p.Closed() {
				return s.names[i] + " was closed"
			}
		}
		return ""
	}
	if why := stale(); why != "" {
		x.Fail(op, fmt.Errorf("%s: %w", why, cgotorch.ErrClosed))
	}
	s.group.check(x, op)
	x.DependsOn(stale)
	if x.Capturing() {
		x.AtEnd(func() { s.drop() }) // a capture that fails after ClipGradNorm runs its function again
	}
	return x.NoGrad().NoAutocast()
}

// The method `reduce` gives the parts their gradients.
func (s *Sharded) reduce(x *cgotorch.Exec) {
	if s.reduced {
		return
	}
	s.drop()
	s.note(x)
	for _, v := range s.vectors {
		v.active = slices.ContainsFunc(v.params, func(i int) bool { return s.params[i].Grad() != nil })
		if !v.active {
			continue
		}
		x.Tidy(func() *cgotorch.Tensor {
			if s.o.Reduced || s.group.world == 1 {
				s.take(x, v)
			} else {
				s.scatter(x, v)
			}
			return nil
		})
	}
	s.reduced = true
}

// The method `note` tells the other ranks of the step, with the parameters that have no gradient.
func (s *Sharded) note(x *cgotorch.Exec) {
	if s.group.h == nil {
		return
	}
	var missing []string
	for i, p := range s.params {
		if p.Grad() == nil {
			missing = append(missing, s.names[i])
		}
	}
	what := fmt.Sprintf("Sharded step of %d parameters", len(s.params))
	if len(missing) > 0 {
		what += " without gradients of " + strings.Join(missing, ", ")
	}
	s.group.note(x, call{what: what, at: seam.Caller()})
}

// gradient returns the gradient of a parameter in the order of the parameter's memory, or nil.
func (s *Sharded) gradient(x *cgotorch.Exec, i int) *cgotorch.Tensor {
	grad := s.params[i].Grad()
	if grad == nil {
		return nil
	}
	if !alike(grad, s.params[i]) {
		grad = x.CopyInPlace(x.EmptyLike(s.params[i]), grad)
	}
	return inMemory(x, grad)
}

// The method `take` takes gradients that are reduced already.
func (s *Sharded) take(x *cgotorch.Exec, v *vector) {
	for _, p := range v.own {
		if grad := s.gradient(x, p.param); grad != nil {
			s.set(x, p, x.Narrow(grad, 0, int(p.from), int(p.length)))
		}
	}
}

// The method `scatter` reduces the gradients of a vector.
func (s *Sharded) scatter(x *cgotorch.Exec, v *vector) {
	flat := x.Empty(v.dtype, v.piece*int64(s.group.world))
	places := x.SplitWithSizes(flat, v.sizes, 0)
	var to, from, zeros []*cgotorch.Tensor
	for k, i := range v.params {
		if grad := s.gradient(x, i); grad != nil {
			to, from = append(to, places[k]), append(from, grad)
		} else {
			zeros = append(zeros, places[k])
		}
	}
	if padding := len(v.params); v.sizes[padding] > 0 {
		zeros = append(zeros, places[padding])
	}
	if len(zeros) > 0 {
		x.ForeachZeroInPlace(zeros)
	}
	x.ForeachCopyInPlace(to, from)
	op := Mean
	if s.o.Sum {
		op = Sum
	}
	piece := x.SplitWithSizes(s.group.ReduceScatter(x, flat, op), v.mine, 0)
	for k, p := range v.own {
		if s.params[p.param].Grad() != nil {
			s.set(x, p, piece[k])
		}
	}
}

func (s *Sharded) set(x *cgotorch.Exec, p *part, grad *cgotorch.Tensor) {
	if err := p.tensor.SetGrad(grad); err != nil {
		x.Fail("dist.Sharded", err)
	}
}

// The method `gather` copies the other ranks' parts of a vector into the parameters.
func (s *Sharded) gather(x *cgotorch.Exec, v *vector) {
	x.Tidy(func() *cgotorch.Tensor {
		var own []*cgotorch.Tensor
		for _, p := range v.own {
			own = append(own, p.tensor)
		}
		all := x.SplitWithSizes(s.gathered(x, v, v.dtype, own), v.cuts, 0)
		var to, from []*cgotorch.Tensor
		for k, p := range v.parts {
			if p.rank != s.group.rank {
				to, from = append(to, p.tensor), append(from, all[k])
			}
		}
		if len(to) > 0 {
			x.ForeachCopyInPlace(to, from)
		}
		return nil
	})
}

// The method `gathered` returns a vector of all ranks' parts. `own` are those of this rank. A nil
// part is undefined.
func (s *Sharded) gathered(x *cgotorch.Exec, v *vector, dtype cgotorch.DType, own []*cgotorch.Tensor) *cgotorch.Tensor {
	piece := x.Empty(dtype, v.piece)
	places := x.SplitWithSizes(piece, v.mine, 0)
	var to, from []*cgotorch.Tensor
	for k, t := range own {
		if t != nil {
			to, from = append(to, places[k]), append(from, t)
		}
	}
	if len(to) > 0 {
		x.ForeachCopyInPlace(to, from)
	}
	return inMemory(x, s.group.AllGather(x, piece))
}

// ClipGradNorm scales the gradients, as [optim.ClipGradNorm] does with those of an unsharded
// optimizer. It returns their norm over all ranks before the scaling, a tensor of shape []. The
// next Step uses the scaled gradients. Those of the parameters themselves are undefined afterwards.
//
// On CUDA it does not wait. On the CPU it waits for the other ranks. It can be captured. The Do
// owns the result. ClipGradNorm fails with [cgotorch.ErrInvalidArgument] if maxNorm is negative or
// NaN, and as [Group.AllReduce] does.
func (s *Sharded) ClipGradNorm(x *cgotorch.Exec, maxNorm float64) *cgotorch.Tensor {
	const op = "dist.Sharded.ClipGradNorm"
	if !(maxNorm >= 0) {
		x.Fail(op, fmt.Errorf("a largest norm of %v is not a number from 0 up: %w", maxNorm, cgotorch.ErrInvalidArgument))
	}
	x = s.use(x, op)
	s.reduce(x)
	return x.Tidy(func() *cgotorch.Tensor {
		lists := map[cgotorch.DType][]*cgotorch.Tensor{}
		var order []cgotorch.DType // equal on all ranks
		widest := cgotorch.Float32
		for _, v := range s.vectors {
			if v.dtype == cgotorch.Float64 {
				widest = v.dtype
			}
			for _, p := range v.own {
				if grad := p.tensor.Grad(); grad != nil {
					if lists[v.dtype] == nil {
						order = append(order, v.dtype)
					}
					lists[v.dtype] = append(lists[v.dtype], grad)
				}
			}
		}
		squares := x.Zeros(cgotorch.Float64)
		for _, dtype := range order {
			norms := x.To(x.Stack(x.ForeachNorm(lists[dtype], 2), 0), cgotorch.Float64)
			x.AddInPlace(squares, x.Sum(x.Square(norms)))
		}
		s.group.AllReduce(x, squares, Sum)
		total := x.To(x.Sqrt(squares), widest)
		factor := x.Clamp(x.MulScalar(x.Reciprocal(x.AddScalar(total, 1e-6)), maxNorm), nil, 1.0)
		for _, dtype := range order {
			x.ForeachMulTensorInPlace(lists[dtype], factor)
		}
		return total
	})
}

// ShardedStats tell the memory of a [Sharded].
type ShardedStats struct {
	StateBytes  int64 // bytes of state that this rank keeps from the first step on, masters included
	MasterBytes int64 // those of the float32 masters of 16-bit parameters
	WholeBytes  int64 // the StateBytes of the unsharded optimizer
}

// Stats returns the counts. It neither waits nor makes a collective.
func (s *Sharded) Stats() ShardedStats {
	var stats ShardedStats
	own := s.inner.Params()
	for _, r := range s.inner.Remembers() {
		bytes := own[r.Param].Numel() * int64(r.DType.Size())
		stats.StateBytes += bytes
		if r.Name == masterName {
			stats.MasterBytes += bytes
		}
	}
	for i, kinds := range s.kept {
		for _, r := range kinds {
			stats.WholeBytes += s.params[i].Numel() * int64(r.DType.Size())
		}
	}
	return stats
}

// LR is [optim.Optimizer.LR].
func (s *Sharded) LR(group int) float64 { return s.inner.LR(group) }

// SetLR is [optim.Optimizer.SetLR]. It and the other setters are called alike on all ranks.
func (s *Sharded) SetLR(lr float64) { s.inner.SetLR(lr) }

// SetGroupLR is [optim.Optimizer.SetGroupLR].
func (s *Sharded) SetGroupLR(group int, lr float64) error { return s.inner.SetGroupLR(group, lr) }

// SetScale is [optim.Optimizer.SetScale].
func (s *Sharded) SetScale(factor float64) { s.inner.SetScale(factor) }

// SetWeightDecay is [optim.Optimizer.SetWeightDecay].
func (s *Sharded) SetWeightDecay(group int, weightDecay float64) error {
	return s.inner.SetWeightDecay(group, weightDecay)
}

// SetMomentum is [optim.Optimizer.SetMomentum].
func (s *Sharded) SetMomentum(momentum float64) error { return s.inner.SetMomentum(momentum) }

// SetBetas is [optim.Optimizer.SetBetas].
func (s *Sharded) SetBetas(beta1, beta2 float64) error { return s.inner.SetBetas(beta1, beta2) }

// ResetMasters is [optim.Optimizer.ResetMasters].
func (s *Sharded) ResetMasters() { s.inner.ResetMasters() }

// Close frees the state. It leaves the parameters and their gradients open. A second Close does
// nothing.
func (s *Sharded) Close() error {
	if s == nil || s.closed {
		return nil
	}
	s.closed = true
	errs := []error{s.inner.Close(), s.spare.Close()}
	for _, v := range s.vectors {
		for _, p := range v.parts {
			errs = append(errs, p.tensor.Close())
		}
	}
	return errors.Join(errs...)
}
