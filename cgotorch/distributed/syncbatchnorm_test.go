package distributed

import (
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A rankedBatch is a training step of a batch norm with batches that may be empty.
type rankedBatch struct {
	name  string
	sizes []int64 // of the batches of the ranks
	image []int64 // dimensions of a sample behind the channels
	dtype cgotorch.DType
	o     nn.BatchNormOptions
	eval  bool
}

// A new case is one line.
var rankedBatches = []rankedBatch{
	{"empty on all ranks", []int64{0, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"empty on all of three ranks", []int64{0, 0, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"empty, one rank", []int64{0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"empty images", []int64{2, 3}, []int64{0, 4}, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"empty, samples without dimensions", []int64{0, 0}, nil, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"empty, sequences", []int64{0, 0}, []int64{5}, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"empty, volumes", []int64{0, 0}, []int64{2, 2, 2}, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"empty, float64", []int64{0, 0}, []int64{4, 4}, cgotorch.Float64, nn.BatchNormOptions{}, false},
	{"empty, float16", []int64{0, 0}, []int64{4, 4}, cgotorch.Float16, nn.BatchNormOptions{}, false},
	{"empty, bfloat16", []int64{0, 0}, []int64{4, 4}, cgotorch.BFloat16, nn.BatchNormOptions{}, false},
	{"empty, momentum 0", []int64{0, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{Momentum: cgotorch.Set(0.0)}, false},
	{"empty, momentum 1", []int64{0, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{Momentum: cgotorch.Set(1.0)}, false},
	{"empty, cumulative", []int64{0, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{CumulativeAverage: true}, false},
	{"empty, no statistics", []int64{0, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{NoStatistics: true}, false},
	{"empty, not affine", []int64{0, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{NoAffine: true}, false},
	{"empty, evaluation", []int64{0, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{}, true},
	{"the first rank empty", []int64{0, 3}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"the last rank empty", []int64{3, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"two of three empty", []int64{0, 2, 0}, []int64{4}, cgotorch.Float64, nn.BatchNormOptions{}, false},
	{"one empty, float16", []int64{0, 4}, []int64{4, 4}, cgotorch.Float16, nn.BatchNormOptions{}, false},
	{"one empty, momentum 1", []int64{0, 4}, nil, cgotorch.Float32, nn.BatchNormOptions{Momentum: cgotorch.Set(1.0)}, false},
	{"one empty, cumulative", []int64{4, 0}, []int64{4, 4}, cgotorch.Float32, nn.BatchNormOptions{CumulativeAverage: true}, false},
	{"one value on each rank", []int64{1, 1}, []int64{1, 1}, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"two values on one rank", []int64{0, 2}, nil, cgotorch.Float32, nn.BatchNormOptions{}, false},
	{"one value, evaluation", []int64{0, 1}, []int64{1, 1}, cgotorch.Float32, nn.BatchNormOptions{}, true},
}

const rankedChannels = 8 // the kernels take multiples of 8

// newNorm returns a batch norm for samples with so many dimensions behind the channels.
func newNorm(x *cgotorch.Exec, c rankedBatch) (m nn.Module, norm *nn.BatchNorm) {
	switch len(c.image) {
	case 2:
		b := nn.NewBatchNorm2d(x, rankedChannels, c.o)
		m, norm = b, &b.BatchNorm
	case 3:
		b := nn.NewBatchNorm3d(x, rankedChannels, c.o)
		m, norm = b, &b.BatchNorm
	default:
		b := nn.NewBatchNorm1d(x, rankedChannels, c.o)
		m, norm = b, &b.BatchNorm
	}
	if norm.RunningMean != nil {
		y := x.NoGrad()
		y.AddScalarInPlace(norm.RunningMean, 0.5)
		y.AddScalarInPlace(norm.RunningVar, 1.5)
	}
	nn.To(x, m, nn.ToOptions{DType: c.dtype})
	nn.SetTraining(m, !c.eval)
	return m, norm
}

// step does two steps with the samples from..to of each batch. It returns the results of these
// samples and their gradients, the gradients of the weights, and the state.
func (c rankedBatch) step(t *testing.T, x *cgotorch.Exec, g *Group, from, to, whole int64) (samples, sums, state []float64) {
	m, norm := newNorm(x, c)
	defer nn.Close(m)
	if g != nil {
		SyncBatchNorm(g, m)
	}
	take := func(all *[]float64, t *cgotorch.Tensor) {
		*all = append(*all, cgotorch.ToSlice[float64](x, x.To(x.Contiguous(x.Detach(t), cgotorch.Contiguous), cgotorch.Float64))...)
	}
	for k := range 2 {
		var in, factor *cgotorch.Tensor
		seeded(t, uint64(k+1), func() {
			shape := append([]int64{whole, rankedChannels}, c.image...)
			in, factor = x.AddScalar(x.Randn(cgotorch.Float64, shape...), 3), x.Randn(cgotorch.Float64, shape...)
		})
		mine := func(t *cgotorch.Tensor) *cgotorch.Tensor {
			return x.To(x.Narrow(t, 0, int(from), int(to-from)), c.dtype)
		}
		part := mine(in)
		must.Do(t, part.SetRequiresGrad(true))
		out := m.Forward(x, part)
		x.Backward(x.Sum(x.Mul(x.To(out, cgotorch.Float64), x.To(mine(factor), cgotorch.Float64))))
		take(&samples, out)
		take(&samples, part.Grad())
	}
	for _, p := range nn.Parameters(m) {
		if g != nil {
			g.AllReduce(x, p.Grad(), Sum)
		}
		take(&sums, p.Grad())
	}
	for _, t := range []*cgotorch.Tensor{norm.RunningMean, norm.RunningVar, norm.NumBatchesTracked} {
		if t != nil {
			take(&state, t)
		}
	}
	return samples, sums, state
}

// Batches of ranks, of which some or all are empty, give what one batch norm gives for all of them.
func TestSyncBatchNorm_Empty(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range rankedBatches {
		t.Run(c.name, func(t *testing.T) {
			whole, bounds := int64(0), []int64{0}
			for _, n := range c.sizes {
				whole += n
				bounds = append(bounds, whole)
			}
			var samples, sums, state []float64
			torchtest.DoOn(t, torchtest.NewStream(t, cgotorch.CPU), func(x *cgotorch.Exec) { samples, sums, state = c.step(t, x, nil, 0, whole, whole) })
			most := map[cgotorch.DType]float64{cgotorch.Float16: 0.02, cgotorch.BFloat16: 0.1}[c.dtype] + 1e-4
			succeed(t, len(c.sizes), func(g *Group, x *cgotorch.Exec) {
				from, to := bounds[g.Rank()], bounds[g.Rank()+1]
				got, gotSums, gotState := c.step(t, x, g, from, to, whole)
				var want []float64
				if whole > 0 {
					each := int64(len(samples)) / 4 / whole
					for k := range int64(4) { // results and gradients of both steps
						want = append(want, samples[(k*whole+from)*each:(k*whole+to)*each]...)
					}
				}
				for what, pair := range map[string][2][]float64{"results": {got, want}, "gradients": {gotSums, sums}, "state": {gotState, state}} {
					if d := farthest(pair[0], pair[1]); !(d <= most) {
						t.Errorf("rank %d: the %s differ by %v: %v, want %v", g.Rank(), what, d, pair[0], pair[1])
					}
				}
				for i, v := range gotState {
					if math.IsNaN(v) || whole == 0 && i < 2*rankedChannels && v != 0.5 && v != 2.5 {
						t.Errorf("rank %d: an empty batch has changed the statistics: %v", g.Rank(), gotState)
					}
				}
			})
		})
	}
}

// One value a channel has no variance: a group of one rank refuses it, as a batch norm does.
func TestSyncBatchNorm_OneRankOneValue(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range []rankedBatch{
		{name: "samples", dtype: cgotorch.Float32}, {name: "sequences", image: []int64{1}, dtype: cgotorch.Float64},
		{name: "images", image: []int64{1, 1}, dtype: cgotorch.Float16}, {name: "volumes", image: []int64{1, 1, 1}, dtype: cgotorch.BFloat16},
		{name: "no statistics", image: []int64{1, 1}, dtype: cgotorch.Float32, o: nn.BatchNormOptions{NoStatistics: true}, eval: true},
	} {
		wantErrors(t, together(t, 1, Options{}, func(g *Group, s *cgotorch.Stream) error {
			return s.Do(func(x *cgotorch.Exec) error {
				m, _ := newNorm(x, c)
				defer nn.Close(m)
				SyncBatchNorm(g, m)
				m.Forward(x, x.Ones(c.dtype, append([]int64{1, rankedChannels}, c.image...)...))
				return nil
			})
		}), cgotorch.ErrInvalidArgument, "has one value per channel")
	}
}

// The kernels leave the running statistics too, if the batches of all ranks are empty.
func TestSyncBatchNorm_EmptyCUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.BFloat16} {
		onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
			return s.Do(func(x *cgotorch.Exec) error {
				m, norm := newNorm(x, rankedBatch{image: []int64{4, 4}, dtype: cgotorch.Float32})
				defer nn.Close(m)
				SyncBatchNorm(g, m)
				in := x.Zeros(dtype, 0, rankedChannels, 4, 4)
				cgotorch.Check(in.SetRequiresGrad(true))
				x.Backward(x.Sum(m.Forward(x, in)))
				got := append(cgotorch.ToSlice[float64](x, x.To(norm.RunningMean, cgotorch.Float64)), cgotorch.ToSlice[float64](x, x.To(norm.RunningVar, cgotorch.Float64))...)
				for i, v := range got {
					if want := []float64{0.5, 2.5}[i/rankedChannels]; v != want {
						t.Errorf("rank %d, %v: the statistics are %v", g.Rank(), dtype, got)
					}
				}
				for _, p := range nn.Parameters(m) {
					for _, v := range cgotorch.ToSlice[float32](x, p.Grad()) {
						if v != 0 {
							t.Errorf("rank %d, %v: a weight has the gradient %v", g.Rank(), dtype, v)
						}
					}
				}
				return nil
			})
		})
	}
}
