package distributed

import (
	"errors"
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/gradnorm"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
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
// All ranks make the same calls in the same order, also of the methods of [optim.Settings]. One
// goroutine at a time uses a Sharded.
type Sharded struct {
	optim.Settings
	group   *Group
	o       ShardedOptions
	inner   *optim.Optimizer // its parameters are the parts of this rank, see Note [Vectors and parts]
	params  []*cgotorch.Tensor
	names   []string // of the parameters, for messages
	kept    [][]optim.RememberedTensor
	rule    string
	vectors []*vector
	owned   map[int]int        // index in params -> index in the parameters of inner
	grads   []*cgotorch.Tensor // of the parameters, while they are reduced
	strides [][]int64          // of the parameters
	views   []*cgotorch.Tensor // all tensors that Close closes
	buffers int64              // bytes of the buffers
	reduced bool               // the parts have their gradients
	used    seam.Reductions    // of the gradients that steps have taken, if o.Reduced is set
	closed  bool
}

// ShardedOptions are the options of [NewSharded].
type ShardedOptions struct {
	// Reduced says that [Gradients.Backward] has reduced the gradients. Step then only takes those
	// of its piece. The collectives of the gradients run beside the backward, but move twice the
	// bytes. Step fails if the model's Gradients has not done so since the last Step. Without Reduced
	// the gradients are those of a plain Exec.Backward, and Step reduces them.
	Reduced bool
	// Sum takes the sum of the gradients over the ranks in place of the mean. Reduced ignores it.
	Sum bool
	// BucketBytes bounds the weights that a collective moves, and each of the two buffers that a
	// dtype has for them. A larger parameter is one collective, and the buffers are as large. 0
	// means 64 MiB.
	BucketBytes int64
}

// NewSharded returns a Sharded for the parameters of the groups, which are those of package optim.
// `make` makes the optimizer, as in
//
//	adamw := func(groups ...optim.Group) (*optim.Optimizer, error) {
//		return optim.NewAdamW(optim.AdamOptions{LR: 1e-3}, groups...)
//	}
//	sharded, err := distributed.NewSharded(x, group, distributed.ShardedOptions{}, adamw, groups...)
//
// NewSharded calls it twice: to check the groups, and with the pieces of this rank. With one rank
// it calls it once, and the Sharded is that optimizer. NewSharded waits until all ranks have called
// it. It gives all ranks the parameters of rank 0, and enqueues that on x's stream. [Broadcast]
// does so for the buffers too. The parameters stay the caller's. The caller must Close the Sharded
// before the group and the parameters.
//
// It fails with the error of `make`. It fails with [cgotorch.ErrInvalidArgument] for a rule that
// looks at whole tensors, as LAMB and Muon do. It fails with the same error if a parameter is not
// dense or not on the group's device, and if the parameters or learning rates of two ranks differ.
// In a captured function it fails with [cgotorch.ErrNotCapturable].
func NewSharded(x *cgotorch.Exec, g *Group, o ShardedOptions, make func(groups ...optim.Group) (*optim.Optimizer, error), groups ...optim.Group) (*Sharded, error) {
	fail := func(format string, args ...any) (*Sharded, error) {
		return nil, fmt.Errorf("distributed: NewSharded: "+format, args...)
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
	s := &Sharded{Settings: whole, group: g, o: o, inner: whole, rule: whole.Rule(), params: whole.Params(), owned: map[int]int{}}
	if err := s.check(groups); err != nil {
		return nil, fmt.Errorf("distributed: NewSharded: %w", errors.Join(err, s.Close()))
	}
	s.kept = slices.Repeat([][]optim.RememberedTensor{nil}, len(s.params))
	for _, r := range whole.Remembers() {
		s.kept[r.Param] = append(s.kept[r.Param], r)
	}
	x = x.NoGrad().NoAutocast()
	g.broadcastList(x, s.params, 0)
	if g.world == 1 {
		return s, nil
	}
	if err := g.makeSide(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	pieces := s.layOut(x, groups)
	inner, err := make(pieces...)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.inner, s.Settings = inner, inner
	inner.SetAgree(func(x *cgotorch.Exec, found *cgotorch.Tensor) { g.AllReduce(x, found, Max) })
	var want []*cgotorch.Tensor
	for _, in := range pieces {
		want = append(want, in.Params...)
	}
	if inner.Rule() != s.rule || !slices.Equal(inner.Params(), want) {
		return fail("make has made another optimizer in its second call: %w", errors.Join(cgotorch.ErrInvalidArgument, s.Close(), whole.Close()))
	}
	return s, whole.Close()
}

// check fails if the rule or a parameter cannot be sharded, or if the ranks differ. It waits for
// the other ranks.
func (s *Sharded) check(groups []optim.Group) error {
	if !s.inner.Elementwise() {
		return fmt.Errorf("%s looks at whole tensors, and a rank has only pieces of them: use an elementwise rule, such as AdamW, or the optimizer unsharded: %w", s.rule, cgotorch.ErrInvalidArgument)
	}
	var given []*cgotorch.Tensor
	var all []nn.Named
	for i, in := range groups {
		text := fmt.Sprintf(" of %s, learning rate %v, weight decay %v%v, %d bytes at once,", s.rule, s.inner.LR(i), in.WeightDecay, in.NoWeightDecay, s.o.BucketBytes)
		for k, p := range in.Params {
			name := fmt.Sprintf("parameter %d of group %d", k, i)
			given, s.names = append(given, p), append(s.names, name)
			all = append(all, nn.Named{Name: name + text, Tensor: p})
			s.strides = append(s.strides, p.Strides())
		}
	}
	if !slices.Equal(s.params, given) {
		return fmt.Errorf("make has given its optimizer other parameters than those of its groups: %w", cgotorch.ErrInvalidArgument)
	}
	for i, p := range s.params {
		if p.Device() != s.group.device {
			return fmt.Errorf("%s, %s, is on %v, and the group on %v: %w", s.names[i], p, p.Device(), s.group.device, cgotorch.ErrInvalidArgument)
		}
		if !inside.Dense(p) {
			return fmt.Errorf("%s: %s has strides %v and is not dense: %w", s.names[i], p, s.strides[i], cgotorch.ErrInvalidArgument)
		}
	}
	return s.group.compare(all)
}

// layOut makes the vectors. It returns the groups of this rank's optimizer.
func (s *Sharded) layOut(x *cgotorch.Exec, groups []optim.Group) []optim.Group {
	world := int64(s.group.world)
	pieces := slices.Clone(groups)
	first := 0
	longest := map[cgotorch.DType]int64{} // of the pieces
	of := map[*vector]int{}               // the group of a vector
	for i, in := range groups {
		pieces[i].Params = nil
		for _, v := range vectors(in, first, s.group.rank, s.group.world, s.o.BucketBytes) {
			s.vectors = append(s.vectors, v)
			longest[v.dtype] = max(longest[v.dtype], v.piece)
			of[v] = i
		}
		first += len(in.Params)
	}
	keep := func(t *cgotorch.Tensor) *cgotorch.Tensor {
		s.views = append(s.views, x.Keep(t))
		return t
	}
	buffers := map[cgotorch.DType][]*buffer{} // at most two; the first belongs to the next vector
	for _, v := range s.vectors {
		if len(buffers[v.dtype]) < 2 {
			n := longest[v.dtype]
			made := &buffer{keep(x.Zeros(v.dtype, n*world)), keep(x.Zeros(v.dtype, n))}
			s.buffers += (world + 1) * n * int64(v.dtype.Size())
			buffers[v.dtype] = slices.Insert(buffers[v.dtype], 0, made)
		}
		next := buffers[v.dtype][0]
		slices.Reverse(buffers[v.dtype])
		v.view(x, s.group, s.params, next, keep)
		// The optimizer numbers its parameters by groups. A vector's group never decreases.
		for _, p := range v.own {
			v.ours = append(v.ours, len(s.owned))
			s.owned[p.param] = len(s.owned)
			pieces[of[v]].Params = append(pieces[of[v]].Params, p.tensor)
		}
	}
	if len(s.owned) == 0 { // the optimizer needs a parameter, which then never has a gradient
		i := slices.IndexFunc(groups, func(in optim.Group) bool { return len(in.Params) > 0 })
		pieces[i].Params = []*cgotorch.Tensor{keep(x.Empty(groups[i].Params[0].DType(), 0))}
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

// drop frees the gradients of the parts.
func (s *Sharded) drop() {
	if s.group.world > 1 {
		s.inner.ZeroGrad()
	}
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
	x = s.use(x, "distributed.Sharded.Step")
	s.reduce(x)
	if s.group.world == 1 {
		s.inner.Step(x)
		return
	}
	active := s.active()
	parts := make([][]int, len(active))
	for k, v := range active {
		parts[k] = v.ours
	}
	s.gather(x, func(one func(v *vector)) {
		s.inner.StepInParts(x, parts, func(k int) { one(active[k]) })
	})
	s.drop()
}

// StepScaled is scaler.Step of this optimizer. If a gradient of any rank is not finite, all ranks
// skip the step. The rules are those of [Sharded.Step] and of [optim.Scaler.Step].
func (s *Sharded) StepScaled(x *cgotorch.Exec, scaler *optim.Scaler) {
	x = s.use(x, "distributed.Sharded.StepScaled")
	s.reduce(x)
	if scaler.Step(x, s.inner); s.group.world > 1 {
		s.gather(x, func(one func(v *vector)) {
			for _, v := range s.active() {
				one(v)
			}
		})
		s.drop()
	}
}

// Unscale is scaler.Unscale of the reduced gradients. Call it before ClipGradNorm. Those of the
// parameters themselves are undefined afterwards. The rules are those of [Sharded.ClipGradNorm] and
// of [optim.Scaler.Unscale].
func (s *Sharded) Unscale(x *cgotorch.Exec, scaler *optim.Scaler) {
	x = s.use(x, "distributed.Sharded.Unscale")
	s.reduce(x)
	scaler.Unscale(x, s.inner)
}

// active returns the vectors that a step changes.
func (s *Sharded) active() []*vector {
	return slices.DeleteFunc(slices.Clone(s.vectors), func(v *vector) bool { return !v.active })
}

// use fails if the Sharded or a parameter is closed. It returns the Exec for the operators of op.
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

// reduce gives the parts their gradients.
func (s *Sharded) reduce(x *cgotorch.Exec) {
	if s.reduced || s.group.world == 1 {
		return
	}
	s.drop()
	if s.o.Reduced {
		if x.Capturing() {
			s.lookForReductions(x, false)
		}
		x.EachLaunch(func(x *cgotorch.Exec) { s.lookForReductions(x, true) })
	}
	var missing []string
	for i, p := range s.params {
		s.grads = append(s.grads, p.Grad())
		if s.grads[i] == nil && p.RequiresGrad() {
			missing = append(missing, s.names[i])
		}
	}
	defer func() {
		clear(s.grads)
		s.grads = s.grads[:0]
	}()
	what := fmt.Sprintf("Sharded step of %d parameters", len(s.params))
	if len(missing) > 0 {
		what += " without gradients of " + some(missing)
	}
	s.group.note(x, call{what: what, at: inside.Core.Caller()})
	for _, v := range s.vectors {
		v.active = slices.ContainsFunc(v.params, func(i int) bool { return s.grads[i] != nil })
	}
	x.Tidy(func() *cgotorch.Tensor {
		if s.o.Reduced {
			for _, v := range s.active() {
				s.take(x, v)
			}
		} else {
			s.scatter(x)
		}
		return nil
	})
	s.reduced = true
}

// lookForReductions fails if a Gradients has not reduced a gradient, though ShardedOptions.Reduced
// says so. A program without a Gradients reduces by itself.
func (s *Sharded) lookForReductions(x *cgotorch.Exec, note bool) {
	s.used.Look(len(s.params), note, func(i int) *seam.Values { return *inside.Core.Notes(s.params[i]) }, func(i int) {
		if p := s.params[i]; p.Grad() != nil {
			x.Fail("distributed.Sharded", fmt.Errorf("the gradients were not reduced since the last step, such as that of %s, %s: call Gradients.Backward in place of Exec.Backward for the last backward before each step, or leave ShardedOptions.Reduced out: %w", s.names[i], p, cgotorch.ErrInvalidArgument))
		}
	})
}

// take takes this rank's parts of gradients that are reduced already.
func (s *Sharded) take(x *cgotorch.Exec, v *vector) {
	for _, p := range v.own {
		grad := s.grads[p.param]
		if grad == nil {
			continue
		}
		if like := s.params[p.param]; !alike(grad.Strides(), s.strides[p.param], like.Shape()) {
			grad = x.CopyInPlace(x.EmptyLike(like), grad)
		}
		if grad = inMemory(x, grad); p.length < grad.Numel() {
			grad = x.Narrow(grad, 0, int(p.from), int(p.length))
		}
		s.set(x, p, grad)
	}
}

// scatter reduces the gradients.
func (s *Sharded) scatter(x *cgotorch.Exec) {
	op := Mean
	if s.o.Sum {
		op = Sum
	}
	l := s.newLine(x)
	defer l.close()
	var piece *cgotorch.Tensor
	l.before = func(v *vector) {
		piece = x.Empty(v.dtype, v.piece)
		// The other places keep older values. Their sums go to no parameter.
		var to, from []*cgotorch.Tensor
		for k, i := range v.params {
			if s.grads[i] != nil {
				to, from = append(to, v.places[k]), append(from, s.grads[i])
			}
		}
		x.ForeachCopyInPlace(to, from)
	}
	l.move = func(beside *cgotorch.Exec, v *vector) {
		s.group.scatter(beside, piece, v.flat, op)
		parts := x.SplitWithSizes(piece, v.mine, 0)
		for k, p := range v.own {
			if s.grads[p.param] != nil {
				s.set(x, p, parts[k])
			}
		}
	}
	for _, v := range s.active() {
		l.next(v)
	}
	l.end()
}

func (s *Sharded) set(x *cgotorch.Exec, p *part, grad *cgotorch.Tensor) {
	if err := p.tensor.SetGrad(grad); err != nil {
		x.Fail("distributed.Sharded", err)
	}
}

// gather gives all ranks the weights. The function `each` calls `one` for each vector, after it has
// changed the own parts of the vector.
func (s *Sharded) gather(x *cgotorch.Exec, each func(one func(v *vector))) {
	l := s.newLine(x)
	defer l.close()
	copyAll := func(parts []*part, copied func(p *part) (to, from *cgotorch.Tensor)) {
		var to, from []*cgotorch.Tensor
		for _, p := range parts {
			if a, b := copied(p); a != nil {
				to, from = append(to, a), append(from, b)
			}
		}
		if len(to) > 0 {
			x.ForeachCopyInPlace(to, from)
		}
	}
	l.before = func(v *vector) {
		copyAll(v.own, func(p *part) (to, from *cgotorch.Tensor) { return p.place, p.tensor })
	}
	l.move = func(beside *cgotorch.Exec, v *vector) { s.group.gather(beside, v.flat, v.send) }
	l.after = func(v *vector) {
		copyAll(v.parts, func(p *part) (to, from *cgotorch.Tensor) {
			if p.rank == s.group.rank {
				return nil, nil
			}
			return p.tensor, p.place
		})
	}
	each(l.next)
	l.end()
	for _, v := range s.active() {
		for _, i := range v.params {
			s.params[i].BumpVersion() // as a step of package optim does
		}
	}
}

// ClipGradNorm scales the gradients, as [optim.ClipGradNorm] does with those of an unsharded
// optimizer. It returns their norm over all ranks before the scaling, a tensor of shape []. The
// next Step uses the scaled gradients. Those of the parameters themselves are undefined afterwards.
//
// On CUDA it does not wait. On the CPU it waits for the other ranks. It can be captured. The Do
// owns the result. ClipGradNorm fails with [cgotorch.ErrInvalidArgument] if maxNorm is negative or
// NaN, and as [Group.AllReduce] does.
func (s *Sharded) ClipGradNorm(x *cgotorch.Exec, maxNorm float64) *cgotorch.Tensor {
	const op = "distributed.Sharded.ClipGradNorm"
	if !(maxNorm >= 0) {
		x.Fail(op, fmt.Errorf("a largest norm of %v is not a number from 0 up: %w", maxNorm, cgotorch.ErrInvalidArgument))
	}
	x = s.use(x, op)
	if s.group.world == 1 {
		return optim.ClipGradNorm(x, s.params, maxNorm)
	}
	s.reduce(x)
	return x.Tidy(func() *cgotorch.Tensor {
		var lists [][]*cgotorch.Tensor
		of := map[cgotorch.DType]int{}
		widest := cgotorch.Float32
		for _, v := range s.vectors {
			if v.dtype == cgotorch.Float64 {
				widest = v.dtype
			}
			for _, p := range v.own {
				if grad := p.tensor.Grad(); grad != nil {
					if _, known := of[v.dtype]; !known {
						of[v.dtype], lists = len(lists), append(lists, nil)
					}
					lists[of[v.dtype]] = append(lists[of[v.dtype]], grad)
				}
			}
		}
		squares := x.Zeros(cgotorch.Float64)
		for _, grads := range lists {
			norms := x.To(gradnorm.Norms(x, grads), cgotorch.Float64)
			x.AddInPlace(squares, x.Sum(x.Square(norms)))
		}
		s.group.AllReduce(x, squares, Sum)
		total := x.To(x.Sqrt(squares), widest)
		gradnorm.Clip(x, lists, total, maxNorm)
		return total
	})
}

// ShardedStats tell the memory of a [Sharded].
type ShardedStats struct {
	StateBytes  int64 // bytes of state that this rank keeps from the first step on, masters included
	MasterBytes int64 // those of the float32 masters of 16-bit parameters
	WholeBytes  int64 // the StateBytes of the unsharded optimizer
	BufferBytes int64 // bytes that the collectives read and write; 0 with one rank
}

// Stats returns the counts. It neither waits nor makes a collective.
func (s *Sharded) Stats() ShardedStats {
	stats := ShardedStats{BufferBytes: s.buffers}
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

// Close frees the state. It leaves the parameters and their gradients open. A second Close does
// nothing.
func (s *Sharded) Close() error {
	if s == nil || s.closed {
		return nil
	}
	s.closed = true
	errs := []error{s.inner.Close()}
	for _, t := range s.views {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}
