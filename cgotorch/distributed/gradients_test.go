package distributed

import (
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// seeded runs fn alone with a seed, because the ranks of these tests share one generator.
var seeding sync.Mutex

func seeded(t *testing.T, seed uint64, fn func()) {
	seeding.Lock()
	defer seeding.Unlock()
	must.Do(t, cgotorch.Seed(seed))
	fn()
}

// classifier returns a small net for images [N, 3, 8, 8], with weights that depend on `seed`.
func classifier(t *testing.T, x *cgotorch.Exec, seed uint64, dtype cgotorch.DType) nn.Module {
	var m nn.Module
	seeded(t, seed, func() {
		m = nn.NewSequential(
			nn.NewConv2d(x, 3, 8, nn.Size{3, 3}, nn.Conv2dOptions{Padding: nn.Size{1, 1}}), nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{}), &nn.ReLU{},
			nn.NewConv2d(x, 8, 8, nn.Size{3, 3}, nn.Conv2dOptions{Padding: nn.Size{1, 1}}), nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{}), &nn.ReLU{},
			&nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, nn.NewLinear(x, 8, 5, nn.LinearOptions{}))
	})
	if dtype != cgotorch.Float32 {
		nn.To(x, m, nn.ToOptions{DType: dtype})
	}
	return m
}

// batches returns step k of a training: images [n, 3, 8, 8] and labels.
func batches(t *testing.T, x *cgotorch.Exec, k, n int, dtype cgotorch.DType) (images, labels *cgotorch.Tensor) {
	seeded(t, uint64(1000+k), func() {
		images = x.To(x.Randn(cgotorch.Float32, int64(n), 3, 8, 8), dtype)
		labels = x.RandInt(cgotorch.Int64, 0, 5, int64(n))
	})
	return images, labels
}

// train makes steps of SGD. It returns the losses of the batches, and the weights at the end.
func train(t *testing.T, x *cgotorch.Exec, g *Group, steps, n int, dtype cgotorch.DType) (losses, weights []float64) {
	rank, world := 0, 1
	seed := uint64(7)
	if g != nil {
		rank, world = g.Rank(), g.World()
		seed += uint64(rank) // all but rank 0 get other weights than these
	}
	m := classifier(t, x, seed, dtype)
	defer nn.Close(m)
	opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.05, Momentum: 0.9}, optim.Group{Params: nn.Parameters(m)})
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Close()
	backward := x.Backward
	if g != nil {
		SyncBatchNorm(g, m)
		gradients, err := NewGradients(x, g, m, GradientsOptions{BucketBytes: 2000})
		if err != nil {
			t.Error(err)
			return nil, nil
		}
		defer gradients.Close()
		backward = func(loss *cgotorch.Tensor) { gradients.Backward(x, loss) }
	}
	for k := range steps {
		images, labels := batches(t, x, k, n, dtype)
		images, labels = x.Narrow(images, 0, rank*n/world, n/world), x.Narrow(labels, 0, rank*n/world, n/world)
		loss := nn.CrossEntropy(x, m.Forward(x, images), labels, nn.CrossEntropyOptions{})
		opt.ZeroGrad()
		backward(loss)
		opt.Step(x)
		total := x.To(x.Detach(loss), cgotorch.Float64)
		if g != nil {
			g.AllReduce(x, total, Mean)
		}
		losses = append(losses, x.Item(total))
	}
	for _, s := range nn.State(m) {
		weights = append(weights, cgotorch.ToSlice[float64](x, x.To(s.Tensor, cgotorch.Float64))...)
	}
	return losses, weights
}

// The ranks train as one process does with all of their batches.
func TestGradients_EqualOneProcess(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range []struct {
		name  string
		dtype cgotorch.DType
		world int
		first int     // steps that are compared
		most  float64 // the largest difference
	}{{"float64/2", cgotorch.Float64, 2, 100, 1e-9}, {"float64/4", cgotorch.Float64, 4, 100, 1e-9}, {"float64/8", cgotorch.Float64, 8, 20, 1e-9}, {"float32/2", cgotorch.Float32, 2, 10, 1e-5}} {
		t.Run(c.name, func(t *testing.T) {
			var want, wantWeights []float64
			s := torchtest.NewStream(t, cgotorch.CPU)
			torchtest.DoOn(t, s, func(x *cgotorch.Exec) { want, wantWeights = train(t, x, nil, c.first, 16, c.dtype) })
			succeed(t, c.world, func(g *Group, x *cgotorch.Exec) {
				got, weights := train(t, x, g, c.first, 16, c.dtype)
				if d := farthest(got, want); !(d <= c.most) {
					t.Errorf("rank %d: the losses differ by %g, more than %g", g.Rank(), d, c.most)
				}
				if d := farthest(weights, wantWeights); !(d <= 10*c.most) {
					t.Errorf("rank %d: the weights differ by %g", g.Rank(), d)
				}
			})
		})
	}
}

func farthest(a, b []float64) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	most := 0.0
	for i := range a {
		most = max(most, math.Abs(a[i]-b[i]))
		if math.IsNaN(a[i]) {
			return math.NaN()
		}
	}
	return most
}

// Under autocast most gradients are reduced in bfloat16, before the backward has ended.
func TestGradients_Casts(t *testing.T) {
	torchtest.CheckStreams(t)
	torchtest.CheckLeaks(t)
	succeed(t, 2, func(g *Group, x *cgotorch.Exec) {
		m := classifier(t, x, 3, cgotorch.Float32)
		defer nn.Close(m)
		gradients := cgotorch.Must(NewGradients(x, g, m, GradientsOptions{BucketBytes: 1000}))
		defer gradients.Close()
		images, labels := batches(t, x, 0, 8, cgotorch.Float32)
		of := func(backward func(loss *cgotorch.Tensor), rank int) (all []float64) {
			if err := nn.ZeroGrad(m); err != nil {
				t.Error(err)
			}
			ax := x.Autocast(cgotorch.BFloat16)
			backward(nn.CrossEntropy(ax, m.Forward(ax, x.Narrow(images, 0, 4*rank, 4)), x.Narrow(labels, 0, 4*rank, 4), nn.CrossEntropyOptions{}))
			for _, p := range nn.Parameters(m) {
				all = append(all, cgotorch.ToSlice[float64](x, x.To(p.Grad(), cgotorch.Float64))...)
			}
			return all
		}
		want, other := of(x.Backward, 0), of(x.Backward, 1)
		largest := 0.0
		for i := range want {
			want[i] = (want[i] + other[i]) / 2
			largest = max(largest, math.Abs(want[i]))
		}
		got := of(func(loss *cgotorch.Tensor) { gradients.Backward(x, loss) }, g.Rank())
		if d := farthest(got, want); !(d <= largest/100) {
			t.Errorf("rank %d: the gradients differ by %g, and the largest is %g", g.Rank(), d, largest)
		}
		stats := gradients.counts()
		if stats.Early == 0 || stats.Buckets < 3 {
			t.Errorf("rank %d: %+v: no collective began early", g.Rank(), stats)
		}
		whole := int64(0)
		for _, p := range nn.Parameters(m) {
			whole += 4 * p.Numel()
		}
		if stats.Bytes >= whole*3/4 {
			t.Errorf("%d bytes were reduced, of %d in float32: the casts' gradients were not", stats.Bytes, whole)
		}
		// Two backwards are summed, and only the second one is reduced.
		if err := nn.ZeroGrad(m); err != nil {
			t.Error(err)
		}
		twice := func(rank int) []float64 {
			ax := x.Autocast(cgotorch.BFloat16)
			loss := func() *cgotorch.Tensor {
				return nn.CrossEntropy(ax, m.Forward(ax, x.Narrow(images, 0, 4*rank, 4)), x.Narrow(labels, 0, 4*rank, 4), nn.CrossEntropyOptions{})
			}
			x.Backward(loss())
			gradients.Backward(x, loss())
			var all []float64
			for _, p := range nn.Parameters(m) {
				all = append(all, cgotorch.ToSlice[float64](x, x.To(p.Grad(), cgotorch.Float64))...)
			}
			return all
		}(g.Rank())
		for i := range twice {
			twice[i] /= 2
		}
		if d := farthest(twice, want); !(d <= largest/50) {
			t.Errorf("rank %d: two backwards differ by %g", g.Rank(), d)
		}
	})
}

// Ranks whose gradients have other dtypes get an error, and the group lives on.
func TestGradients_OtherDTypes(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := together(t, 2, Options{}, func(g *Group, s *cgotorch.Stream) error {
		var m nn.Module
		var gradients *Gradients
		if err := s.Do(func(x *cgotorch.Exec) (err error) {
			m = classifier(t, x, 3, cgotorch.Float32)
			gradients, err = NewGradients(x, g, m, GradientsOptions{})
			return err
		}); err != nil {
			return err
		}
		defer nn.Close(m)
		defer gradients.Close()
		step := func(dtype cgotorch.DType) error {
			return s.Do(func(x *cgotorch.Exec) error {
				images, labels := batches(t, x, 0, 4, cgotorch.Float32)
				if dtype != cgotorch.Float32 {
					x = x.Autocast(dtype)
				}
				gradients.Backward(x, nn.CrossEntropy(x, m.Forward(x, images), labels, nn.CrossEntropyOptions{}))
				return nil
			})
		}
		torchtest.WantError(t, step([]cgotorch.DType{cgotorch.BFloat16, cgotorch.Float32}[g.Rank()]), cgotorch.ErrInvalidArgument, "give all ranks the same model, code and autocast")
		return step(cgotorch.Float32)
	})
	wantErrors(t, errs, nil)
}

// A rank whose backward fails after it has made collectives takes the others with it.
func TestGradients_FailsHalfway(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := together(t, 2, Options{Timeout: 3 * time.Second}, failHalfway)
	if !errors.Is(errs[0], cgotorch.ErrGroupFailed) || !strings.Contains(errs[0].Error(), "its backward has failed after") {
		t.Errorf("rank 0: got %v", errs[0])
	}
	if !errors.Is(errs[1], cgotorch.ErrInvalidArgument) || !strings.Contains(errs[1].Error(), "no gradient for first.weight") {
		t.Errorf("rank 1: got %v", errs[1])
	}
}

// failHalfway is a backward that reaches the second Linear, and the first one on rank 0 alone. Then
// it waits for the device.
func failHalfway(g *Group, s *cgotorch.Stream) error {
	return s.Do(func(x *cgotorch.Exec) error {
		m := struct{ First, Second *nn.Linear }{nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nn.NewLinear(x, 2, 2, nn.LinearOptions{})}
		defer nn.Close(&m)
		gradients := cgotorch.Must(NewGradients(x, g, &m, GradientsOptions{BucketBytes: 20}))
		defer gradients.Close()
		in := x.Ones(cgotorch.Float32, 1, 2)
		if g.Rank() == 0 {
			in = m.First.Forward(x, in)
		}
		loss := x.Sum(m.Second.Forward(x, in))
		gradients.Backward(x, loss)
		x.Item(loss)
		return nil
	})
}

// ofLinear is together for two ranks that have a Linear and its Gradients.
func ofLinear(t *testing.T, o GradientsOptions, step func(g *Group, x *cgotorch.Exec, m *nn.Linear, gradients *Gradients)) []error {
	return together(t, 2, Options{Timeout: 3 * time.Second}, func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error {
			m := nn.NewLinear(x, 2, 2, nn.LinearOptions{})
			defer nn.Close(m)
			gradients := cgotorch.Must(NewGradients(x, g, m, o))
			defer gradients.Close()
			step(g, x, m, gradients)
			return nil
		})
	})
}

// The backward of SumOverRanks is compared with the collectives of the other ranks.
func TestGradients_OtherSums(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := ofLinear(t, GradientsOptions{}, func(g *Group, x *cgotorch.Exec, m *nn.Linear, gradients *Gradients) {
		y := m.Forward(x, x.Ones(cgotorch.Float32, 1, 2))
		sum := g.SumOverRanks(x, y)
		if g.Rank() == 0 {
			y = sum
		}
		gradients.Backward(x, x.Sum(y))
	})
	for i, text := range []string{"this rank's backward of SumOverRanks of Float", "this rank's gradients, 6 of Float"} {
		wantErrors(t, errs[i:i+1], cgotorch.ErrInvalidArgument, text)
	}
}

// One value a channel over all ranks has no variance, and leaves the running one as it is.
func TestSyncBatchNorm_OneValue(t *testing.T) {
	torchtest.CheckLeaks(t)
	succeed(t, 2, func(g *Group, x *cgotorch.Exec) {
		m := nn.NewBatchNorm2d(x, 3, nn.BatchNormOptions{})
		defer nn.Close(m)
		SyncBatchNorm(g, m)
		m.Forward(x, x.Full(cgotorch.Float32, 2, int64(g.Rank()), 3, 1, 1)) // rank 0 has no image
		mean, variance := cgotorch.ToSlice[float32](x, m.RunningMean), cgotorch.ToSlice[float32](x, m.RunningVar)
		if mean[0] != 0.2 || variance[0] != 1 {
			t.Errorf("rank %d: mean %v, variance %v", g.Rank(), mean, variance)
		}
	})
}

// Ranks may reach different parameters beside synchronised norms: the order of the collectives
// stays the same.
func TestGradients_UnusedBesideNorms(t *testing.T) {
	torchtest.CheckLeaks(t)
	succeed(t, 2, func(g *Group, x *cgotorch.Exec) {
		m := struct {
			Norm *nn.BatchNorm2d
			Head *nn.Linear
		}{nn.NewBatchNorm2d(x, 3, nn.BatchNormOptions{}), nn.NewLinear(x, 4, 2, nn.LinearOptions{})}
		defer nn.Close(&m)
		SyncBatchNorm(g, &m)
		gradients := cgotorch.Must(NewGradients(x, g, &m, GradientsOptions{Unused: true, BucketBytes: 16}))
		defer gradients.Close()
		y := m.Norm.Forward(x, x.Full(cgotorch.Float32, 1+g.Rank(), 2, 3, 4, 4))
		if g.Rank() == 0 {
			y = m.Head.Forward(x, y)
		}
		gradients.Backward(x, x.Sum(x.Square(y)))
		if got := x.Item(x.Sum(x.Square(m.Head.Weight.Grad()))); got == 0 {
			t.Errorf("rank %d: the head has no gradient of rank 0", g.Rank())
		}
	})
}

// A second gradient of a weight whose first is reduced already is an error.
func TestGradients_SecondGradient(t *testing.T) {
	if os.Getenv("CGOTORCH_CHECK") != "" {
		t.Skip("autograd has added the second gradient before the error, and the stream checker reports that race")
	}
	torchtest.CheckLeaks(t)
	errs := ofLinear(t, GradientsOptions{BucketBytes: 4}, func(_ *Group, x *cgotorch.Exec, m *nn.Linear, gradients *Gradients) {
		part := func(x *cgotorch.Exec, y *cgotorch.Tensor) *cgotorch.Tensor { return m.Forward(x, y) }
		in := x.Ones(cgotorch.Float32, 1, 2)
		in.SetRequiresGrad(true)
		gradients.Backward(x, x.Sum(x.Recompute(x.Recompute(in, part), part)))
	})
	wantErrors(t, errs, cgotorch.ErrUnsupported, "got a second gradient in one backward")
}

// A backward that cannot begin counts as no collective.
func TestGradients_ClosedRoot(t *testing.T) {
	torchtest.CheckLeaks(t)
	wantErrors(t, together(t, 2, Options{}, func(g *Group, s *cgotorch.Stream) error {
		var m *nn.Linear
		var gradients *Gradients
		err := s.Do(func(x *cgotorch.Exec) (err error) {
			m = nn.NewLinear(x, 2, 1, nn.LinearOptions{})
			gradients, err = NewGradients(x, g, m, GradientsOptions{})
			return err
		})
		if err != nil {
			return err
		}
		defer nn.Close(m)
		defer gradients.Close()
		before, _ := g.lockstep.now()
		err = s.Do(func(x *cgotorch.Exec) error {
			loss := x.Sum(m.Forward(x, x.Ones(cgotorch.Float32, 1, 2)))
			loss.Close()
			gradients.Backward(x, loss)
			return nil
		})
		if after, _ := g.lockstep.now(); !errors.Is(err, cgotorch.ErrClosed) || after != before {
			t.Errorf("rank %d: %v; %d collectives before, %d after", g.Rank(), err, before, after)
		}
		return s.Do(func(x *cgotorch.Exec) error {
			gradients.Backward(x, x.Sum(m.Forward(x, x.Ones(cgotorch.Float32, 1, 2))))
			return nil
		})
	}), nil)
}

func TestGradients_NoRoots(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := ofLinear(t, GradientsOptions{}, func(_ *Group, x *cgotorch.Exec, _ *nn.Linear, gradients *Gradients) {
		gradients.BackwardWith(x, cgotorch.BackwardOptions{})
	})
	wantErrors(t, errs, cgotorch.ErrInvalidArgument, "give one root or more")
}

func TestGradients_Unused(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, zeros := range []bool{false, true} {
		errs := together(t, 2, Options{}, func(g *Group, s *cgotorch.Stream) error {
			return s.Do(func(x *cgotorch.Exec) error {
				m := struct{ First, Second *nn.Linear }{nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nn.NewLinear(x, 2, 2, nn.LinearOptions{})}
				defer nn.Close(&m)
				gradients := cgotorch.Must(NewGradients(x, g, &m, GradientsOptions{Unused: zeros}))
				defer gradients.Close()
				gradients.Backward(x, x.Sum(m.First.Forward(x, x.Ones(cgotorch.Float32, 1, 2))))
				if got := x.Item(x.Sum(m.Second.Weight.Grad())); got != 0 {
					t.Errorf("the gradient of an unused weight is %v", got)
				}
				return nil
			})
		})
		for i, err := range errs {
			switch {
			case zeros && err != nil:
				t.Errorf("rank %d: %v", i, err)
			case !zeros && (!errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "no gradient for second.weight, second.bias")):
				t.Errorf("rank %d: got %v", i, err)
			}
		}
	}
}

// Models that differ are refused before the first collective, on every rank.
func TestBroadcast_Differs(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := together(t, 2, Options{}, func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error {
			m := nn.NewLinear(x, 2, 3+g.Rank(), nn.LinearOptions{})
			defer nn.Close(m)
			Broadcast(x, g, m)
			return nil
		})
	})
	if !strings.Contains(errs[0].Error(), "has another model than rank 0") || !strings.Contains(errs[1].Error(), "tensor 0 is weight float32[3 2]") {
		t.Errorf("got %v", errs)
	}
}

// So are options that differ, which would give the ranks other collectives.
func TestNewGradients_OptionsDiffer(t *testing.T) {
	torchtest.CheckLeaks(t)
	var compared sync.WaitGroup // a rank that leaves ends the group of the other one
	compared.Add(2)
	errs := together(t, 2, Options{}, func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error {
			m := nn.NewLinear(x, 2, 3, nn.LinearOptions{})
			defer nn.Close(m)
			r, err := NewGradients(x, g, m, GradientsOptions{BucketBytes: int64(1+g.Rank()) << 20})
			r.Close()
			compared.Done()
			compared.Wait()
			return err
		})
	})
	for i, want := range []string{"has another model than rank 0, or other options", "rank 0 has GradientsOptions{BucketBytes: 1048576, Sum: false, Unused: false} and rank 1 has"} {
		if errs[i] == nil || !strings.Contains(errs[i].Error(), want) {
			t.Errorf("rank %d: got %v, want %q", i, errs[i], want)
		}
	}
}

// The first parameters are a bucket of their own.
func TestGradients_LastBucket(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, c := range map[string]struct {
		sizes []int // of the Linears, without biases
		want  int   // collectives
	}{
		"one small":              {[]int{10}, 1},
		"all small":              {[]int{10, 20, 30}, 1},
		"one large":              {[]int{600}, 1},
		"small, then large":      {[]int{300, 600}, 2},
		"large, then small":      {[]int{600, 10}, 2},
		"tiny, large, and small": {[]int{2, 600, 10}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			succeed(t, 2, func(g *Group, x *cgotorch.Exec) {
				var all []*nn.Linear
				loss := x.Zeros(cgotorch.Float32)
				for _, n := range c.sizes {
					l := nn.NewLinear(x, n, n, nn.LinearOptions{NoBias: true})
					all = append(all, l)
					loss = x.Add(loss, x.Sum(l.Weight))
				}
				m := struct{ All []*nn.Linear }{all}
				defer nn.Close(&m)
				gradients := cgotorch.Must(NewGradients(x, g, &m, GradientsOptions{}))
				defer gradients.Close()
				gradients.Backward(x, loss)
				if n := gradients.counts().Buckets; int(n) != c.want {
					t.Errorf("%d collectives, want %d", n, c.want)
				}
			})
		})
	}
}
