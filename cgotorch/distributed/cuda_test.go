package distributed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// onGPUs runs `rank` for a rank on each GPU of this machine, over NCCL. The ranks are goroutines.
func onGPUs(t *testing.T, o Options, rank func(g *Group, s *cgotorch.Stream) error) {
	t.Helper()
	torchtest.CUDA(t)
	world, _ := cgotorch.CUDACount()
	port := freePort(t)
	var all sync.WaitGroup
	for i := range world {
		all.Add(1)
		go func() {
			defer all.Done()
			o := o
			o.Device, o.JoinTimeout = cgotorch.CUDA(i).String(), time.Minute
			err := func() (err error) {
				g, err := join(context.Background(), o, environment(port, i, world))
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, g.Close()) }()
				s, err := cgotorch.NewStream(g.Device(), cgotorch.StreamOptions{Name: "rank"})
				if err != nil {
					return err
				}
				defer s.Close()
				return rank(g, s)
			}()
			if err != nil {
				t.Errorf("rank %d of %d: %v", i, world, err)
			}
		}()
	}
	all.Wait()
}

// severalGPUs returns the number of GPUs, and skips the test if there are not two.
func severalGPUs(t *testing.T) int {
	t.Helper()
	torchtest.CUDA(t)
	n, _ := cgotorch.CUDACount()
	if n < 2 {
		t.Skip("needs two GPUs")
	}
	return n
}

func TestGroup_CUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
		world := float64(g.World())
		return s.Do(func(x *cgotorch.Exec) error {
			for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.Float64, cgotorch.BFloat16, cgotorch.Float16, cgotorch.Int64, cgotorch.Int32, cgotorch.Uint8} {
				tensor := x.Full(dtype, 2, 3)
				g.AllReduce(x.NoWaits(), tensor, Sum)
				if got := x.Item(x.Sum(x.To(tensor, cgotorch.Float64))); got != 6*world {
					t.Errorf("%v: the sum is %v, want %v", dtype, got, 6*world)
				}
			}
			y := x.NoWaits()
			a := y.Full(cgotorch.Float32, g.Rank()+1, int64(4*g.World()))
			g.Broadcast(y, a, 0)
			all := g.AllGather(y, g.ReduceScatter(y, a, Mean))
			g.Reduce(y, a, Max, 0)
			if got := x.Item(x.Sum(all)); got != 4*world {
				t.Errorf("gathered: got %v, want %v", got, 4*world)
			}
			g.Barrier(x)
			return nil
		})
	})
}

// A captured collective runs at each launch, and counts as one of the rank's collectives.
func TestGroup_Captured(t *testing.T) {
	torchtest.CheckLeaks(t)
	onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
		step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			out := x.AddScalar(in[0], 1)
			g.AllReduce(x, out, Sum)
			return []*cgotorch.Tensor{out}
		}, cgotorch.CapturedOptions{Agree: g.Agree})
		defer step.Close()
		for i := range 10 {
			err := s.Do(func(x *cgotorch.Exec) error {
				out := step.Run(x, x.Full(cgotorch.Float32, i, 4))[0]
				if got, want := x.Item(x.Sum(out)), 4*float64(g.World())*float64(i+1); got != want {
					t.Errorf("run %d: got %v, want %v", i, got, want)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		if stats := step.Stats(); stats.Launches != 7 {
			t.Errorf("%+v, want 7 launches", stats)
		}
		if count, _ := g.lockstep.now(); count != 10 {
			t.Errorf("%d collectives were counted, want 10", count)
		}
		return nil
	})
}

// On every device a step with Gradients gives the weights of the plain step: eager, captured, and
// with an Overlap. With one rank the bits are equal. Beside collectives of several ranks, the
// library's norms take kernels that add in another order. With LibTorch's norms two ranks have
// equal bits too, because the mean of two equal gradients is exact.
func TestGradients_CUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.Deterministic(t)
	for _, c := range []struct {
		name            string
		eager, overlap  bool
		autocast        cgotorch.DType
		early, fewBytes bool
	}{
		{"eager", true, false, 0, true, false},
		{"captured", false, false, 0, true, false},
		{"overlap", false, true, 0, true, false},
		{"bfloat16", true, false, cgotorch.BFloat16, true, true},
		{"bfloat16, captured", false, false, cgotorch.BFloat16, true, true},
		{"bfloat16, captured, overlap", false, true, cgotorch.BFloat16, true, true},
	} {
		for _, norms := range []string{"library's norms", "LibTorch's norms"} {
			t.Run(c.name+", "+norms, func(t *testing.T) {
				onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
					weights := func(reduced bool) (all []float64, err error) {
						var m nn.Module
						var opt *optim.Optimizer
						var gradients *Gradients
						o := cgotorch.BackwardOptions{}
						if c.overlap {
							if o.Overlap, err = cgotorch.NewOverlap(cgotorch.OverlapOptions{Always: true, Streams: 3}); err != nil {
								return nil, err
							}
						}
						err = s.Do(func(x *cgotorch.Exec) (err error) {
							m = classifier(t, x, 5, cgotorch.Float32)
							nn.To(x, m, nn.ToOptions{ChannelsLast: true})
							nn.SetFused(m, norms == "library's norms")
							if opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.05, Momentum: 0.9}, optim.Group{Params: nn.Parameters(m)}); err == nil && reduced {
								gradients, err = NewGradients(x, g, m, GradientsOptions{BucketBytes: 2000})
							}
							return err
						})
						if err != nil {
							return nil, err
						}
						defer nn.Close(m)
						defer opt.Close()
						defer gradients.Close()
						step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
							ax := x
							if c.autocast != 0 {
								ax = x.Autocast(c.autocast)
							}
							loss := nn.CrossEntropy(ax, m.Forward(ax, in[0]), in[1], nn.CrossEntropyOptions{})
							opt.ZeroGrad()
							if reduced {
								gradients.BackwardWith(x, o, loss)
							} else {
								x.BackwardWith(o, loss)
							}
							opt.Step(x)
							return []*cgotorch.Tensor{loss}
						}, cgotorch.CapturedOptions{Eager: c.eager, Agree: g.Agree})
						defer step.Close()
						for k := range 12 {
							err := s.Do(func(x *cgotorch.Exec) error {
								images, labels := batches(t, x, k, 16, cgotorch.Float32) // every rank has the same
								step.Run(x, images, labels)
								return nil
							})
							if err != nil {
								return nil, err
							}
						}
						if stats := step.Stats(); !c.eager && stats.Launches == 0 {
							t.Errorf("nothing was captured: %+v", stats)
						}
						if reduced {
							stats := gradients.counts()
							if c.early && stats.Early == 0 {
								t.Errorf("no collective began before the backward had ended: %+v", stats)
							}
							whole := int64(0)
							for _, p := range nn.Parameters(m) {
								whole += 4 * p.Numel()
							}
							if c.fewBytes && stats.Bytes >= whole*3/4 {
								t.Errorf("%d bytes were reduced, of %d in float32: the casts' gradients were not", stats.Bytes, whole)
							}
						}
						err = s.Do(func(x *cgotorch.Exec) error {
							for _, n := range nn.State(m) {
								if n.Tensor.Device() == x.Device() {
									all = append(all, cgotorch.ToSlice[float64](x, x.To(n.Tensor, cgotorch.Float64))...)
								}
							}
							return nil
						})
						return all, err
					}
					want, err := weights(false)
					if err != nil {
						return err
					}
					got, err := weights(true)
					if err != nil {
						return err
					}
					most := 0.0
					if g.World() > 2 || g.World() > 1 && norms == "library's norms" {
						most = 1e-3
					}
					d := farthest(got, want)
					t.Logf("rank %d of %d: the weights differ by %g", g.Rank(), g.World(), d)
					if !(d <= most) || math.IsNaN(d) {
						t.Errorf("rank %d: the weights differ by %g, at most %g is right", g.Rank(), d, most)
					}
					return nil
				})
			})
		}
	}
}

// On every device a step with Sharded gives the weights of the plain step, eager and captured, and
// never waits. All ranks have the same batches.
func TestSharded_CUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.Deterministic(t)
	for _, c := range []struct {
		name           string
		eager, reduced bool
		dtype          cgotorch.DType
	}{
		{"eager", true, false, cgotorch.Float32},
		{"captured", false, false, cgotorch.Float32},
		{"captured, reduced", false, true, cgotorch.Float32},
		{"captured, bfloat16", false, false, cgotorch.BFloat16},
	} {
		t.Run(c.name, func(t *testing.T) {
			onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
				adamw := func(groups ...optim.Group) (*optim.Optimizer, error) {
					return optim.NewAdamW(optim.AdamOptions{LR: 1e-3, MasterWeights: true}, groups...)
				}
				weights := func(sharded bool) (all []float64, err error) {
					var m nn.Module
					var opt *optim.Optimizer
					var shards *Sharded
					var gradients *Gradients
					err = s.Do(func(x *cgotorch.Exec) (err error) {
						m = classifier(t, x, 5, c.dtype)
						nn.To(x, m, nn.ToOptions{ChannelsLast: true})
						// Beside collectives fused norms take other kernels, which round otherwise. The gradients of
						// biases before norms are rounding errors, and Adam makes whole steps of them.
						nn.SetFused(m, false)
						in := optim.Group{Params: nn.Parameters(m)}
						if !sharded {
							opt, err = adamw(in)
							return err
						}
						if shards, err = NewSharded(x, g, ShardedOptions{BucketBytes: 2000, Reduced: c.reduced}, adamw, in); err == nil && c.reduced {
							gradients, err = NewGradients(x, g, m, GradientsOptions{BucketBytes: 2000})
						}
						return err
					})
					defer nn.Close(m)
					defer opt.Close()
					defer shards.Close()
					defer gradients.Close()
					if err != nil {
						return nil, err
					}
					step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
						_ = nn.ZeroGrad(m)
						loss := nn.CrossEntropy(x, m.Forward(x, in[0]), in[1], nn.CrossEntropyOptions{})
						if gradients != nil {
							gradients.Backward(x, loss)
						} else {
							x.Backward(loss)
						}
						if sharded {
							shards.ClipGradNorm(x.NoWaits(), 0.5)
							shards.Step(x.NoWaits())
						} else {
							optim.ClipGradNorm(x, nn.Parameters(m), 0.5)
							opt.Step(x)
						}
						return []*cgotorch.Tensor{loss}
					}, cgotorch.CapturedOptions{Eager: c.eager, Agree: g.Agree})
					defer step.Close()
					for k := range 12 {
						err := s.Do(func(x *cgotorch.Exec) error {
							images, labels := batches(t, x, k, 16, c.dtype)
							step.Run(x, images, labels)
							return nil
						})
						if err != nil {
							return nil, err
						}
					}
					if stats := step.Stats(); !c.eager && stats.Launches == 0 {
						t.Errorf("nothing was captured: %+v", stats)
					}
					err = s.Do(func(x *cgotorch.Exec) error {
						for _, p := range nn.Parameters(m) {
							all = append(all, cgotorch.ToSlice[float64](x, x.To(x.Detach(p), cgotorch.Float64))...)
						}
						return nil
					})
					return all, err
				}
				want, err := weights(false)
				if err != nil {
					return err
				}
				got, err := weights(true)
				if err != nil {
					return err
				}
				most := 1e-4
				if c.dtype == cgotorch.BFloat16 {
					most = 1e-2
				}
				if d := farthest(got, want); !(d <= most) {
					t.Errorf("rank %d: the weights differ by %g", g.Rank(), d)
				}
				return nil
			})
		})
	}
}

// A captured step of a group that has failed is an error, and nothing waits for ever.
func TestGroup_CapturedAfterFailure(t *testing.T) {
	onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
		step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			g.AllReduce(x, in[0], Sum)
			return in
		}, cgotorch.CapturedOptions{Agree: g.Agree})
		defer step.Close()
		run := func() error {
			return s.Do(func(x *cgotorch.Exec) error {
				step.Run(x, x.Ones(cgotorch.Float32, 4))
				return nil
			})
		}
		for range 5 {
			if err := run(); err != nil {
				return err
			}
		}
		g.fail("a test ends it")
		torchtest.WantError(t, run(), cgotorch.ErrGroupFailed)
		return nil
	})
}

// The ranks train as one device does with all of their batches.
func TestGradients_EqualOneProcessCUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CUDA(t)
	if world, _ := cgotorch.CUDACount(); 16%world != 0 {
		t.Skip("the batch of 16 does not divide")
	}
	torchtest.Deterministic(t)
	torchtest.NoTF32(t)
	for _, c := range []struct {
		name  string
		dtype cgotorch.DType
		most  float64
	}{{"float64", cgotorch.Float64, 1e-9}, {"float32", cgotorch.Float32, 1e-5}} {
		t.Run(c.name, func(t *testing.T) {
			const steps, first = 100, 10
			onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
				return s.Do(func(x *cgotorch.Exec) error {
					want, _ := train(t, x, nil, steps, 16, c.dtype)
					got, _ := train(t, x, g, steps, 16, c.dtype)
					d, later := farthest(got[:first], want[:first]), farthest(got, want)
					t.Logf("rank %d: the losses differ by %g in %d steps, by %g in %d", g.Rank(), d, first, later, steps)
					if !(d <= c.most) || c.dtype == cgotorch.Float64 && !(later <= c.most) {
						t.Errorf("rank %d: the losses differ by %g and %g, more than %g", g.Rank(), d, later, c.most)
					}
					return nil
				})
			})
		})
	}
}

// A rank that has no gradient for a reduced bucket fails. The other one, which waits for the device
// behind the collective, does not wait for ever, and the group has failed afterwards.
func TestGradients_FailsHalfwayCUDA(t *testing.T) {
	severalGPUs(t)
	onGPUs(t, Options{Timeout: 3 * time.Second}, func(g *Group, s *cgotorch.Stream) error {
		err := failHalfway(g, s)
		// The first rank that fails says so, and the others may learn of it at any moment.
		if err == nil && g.Rank() > 0 || err != nil && !errors.Is(err, cgotorch.ErrGroupFailed) && !(errors.Is(err, cgotorch.ErrInvalidArgument) && g.Rank() > 0) {
			t.Errorf("rank %d: got %v", g.Rank(), err)
		}
		torchtest.WantError(t, g.Err(), cgotorch.ErrGroupFailed)
		return nil
	})
}

// Fused norms over ranks equal those of one device with the batches of all ranks, also if the
// batches differ in size: results, gradients and running statistics. Each makes one collective in
// the forward.
func TestSyncBatchNorm_CUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.Deterministic(t)
	world := severalGPUs(t)
	const channels = 24
	n := 4 * world
	for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.BFloat16} {
		for name, norm := range map[string]func(x *cgotorch.Exec, a, b *nn.BatchNorm2d, in, in2 *cgotorch.Tensor) *cgotorch.Tensor{
			"norm": func(x *cgotorch.Exec, a, b *nn.BatchNorm2d, in, in2 *cgotorch.Tensor) *cgotorch.Tensor {
				return x.Add(a.Forward(x, in), b.Forward(x, in2))
			},
			"relu": func(x *cgotorch.Exec, a, b *nn.BatchNorm2d, in, in2 *cgotorch.Tensor) *cgotorch.Tensor {
				return x.Add(nn.NormReLU(x, a, in), nn.NormReLU(x, b, in2))
			},
			"add, relu": func(x *cgotorch.Exec, a, b *nn.BatchNorm2d, in, in2 *cgotorch.Tensor) *cgotorch.Tensor {
				return nn.NormAddReLU(x, a, in, b.Forward(x, in2))
			},
			"two norms": func(x *cgotorch.Exec, a, b *nn.BatchNorm2d, in, in2 *cgotorch.Tensor) *cgotorch.Tensor {
				return nn.NormAddNormReLU(x, a, in, b, in2)
			},
			"pool": func(x *cgotorch.Exec, a, b *nn.BatchNorm2d, in, in2 *cgotorch.Tensor) *cgotorch.Tensor {
				return x.Add(nn.NormReLUMaxPool(x, a, in), nn.NormReLUMaxPool(x, b, in2))
			},
		} {
			t.Run(fmt.Sprint(name, ", ", dtype), func(t *testing.T) {
				onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
					// run returns the result and all gradients for images from..to, and the running statistics.
					run := func(x *cgotorch.Exec, ranks *Group, from, to int) (rows [][]float64) {
						var a, b *nn.BatchNorm2d
						var in, in2, factor *cgotorch.Tensor
						seeded(t, 3, func() {
							a, b = nn.NewBatchNorm2d(x, channels, nn.BatchNormOptions{}), nn.NewBatchNorm2d(x, channels, nn.BatchNormOptions{})
							images := func(mean float64) *cgotorch.Tensor {
								whole := x.AddScalar(x.Randn(cgotorch.Float32, int64(n), channels, 6, 6), mean)
								whole = x.Add(whole, x.MulScalar(x.Randn(cgotorch.Float32, int64(n), channels, 1, 1), 2)) // the ranks' statistics differ
								return x.Contiguous(x.To(x.Narrow(whole, 0, from, to-from), dtype), cgotorch.ChannelsLast)
							}
							in, in2, factor = images(3), images(-1), images(0)
							for _, p := range []*cgotorch.Tensor{a.Weight, a.Bias, b.Weight, b.Bias} {
								x.NoGrad().AddInPlace(p, x.Randn(cgotorch.Float32, channels))
							}
						})
						defer nn.Close(a)
						defer nn.Close(b)
						if ranks != nil {
							SyncBatchNorm(ranks, a)
							SyncBatchNorm(ranks, b)
						}
						in.SetRequiresGrad(true)
						in2.SetRequiresGrad(true)
						out := norm(x, a, b, in, in2)
						x.Backward(x.Sum(x.Mul(x.To(out, cgotorch.Float32), x.To(x.Narrow(x.Narrow(factor, 2, 0, int(out.Shape()[2])), 3, 0, int(out.Shape()[3])), cgotorch.Float32))))
						take := func(t *cgotorch.Tensor) {
							rows = append(rows, cgotorch.ToSlice[float64](x, x.To(x.Contiguous(x.Detach(t), cgotorch.Contiguous), cgotorch.Float64)))
						}
						for _, m := range []*nn.BatchNorm2d{a, b} {
							for _, p := range []*cgotorch.Tensor{m.Weight.Grad(), m.Bias.Grad()} {
								if ranks != nil {
									ranks.AllReduce(x, p, Sum)
								}
								take(p)
							}
							take(m.RunningMean)
							take(m.RunningVar)
						}
						for _, images := range []*cgotorch.Tensor{out, in.Grad(), in2.Grad()} {
							take(images)
						}
						return rows
					}
					return s.Do(func(x *cgotorch.Exec) error {
						bound := func(rank int) int {
							if rank == 0 || rank == g.World() {
								return rank * n / g.World()
							}
							return rank*n/g.World() - 1
						}
						before, _ := g.lockstep.now()
						from, to := bound(g.Rank()), bound(g.Rank()+1)
						got := run(x, g, from, to)
						after, _ := g.lockstep.now()
						want := run(x, nil, 0, n)
						norms := int64(2)
						if name == "two norms" {
							norms = 1
						}
						if g.World() > 1 && int64(after-before) != norms+4 {
							t.Errorf("%d collectives were counted, want %d of norms and 4 of gradients", after-before, norms)
						}
						most := 2e-4
						if dtype == cgotorch.BFloat16 {
							most = 0.02
						}
						for i := range want {
							all := want[i]
							if i >= 8 { // of the images of this rank alone
								each := len(all) / n
								all = all[from*each : to*each]
							}
							largest := 1.0
							for _, v := range all {
								largest = max(largest, math.Abs(v))
							}
							// An activation near 0, or two values nearly equal in a pooling, may go the other way.
							far := 0
							for k := range all {
								if !(math.Abs(got[i][k]-all[k]) <= most*largest) {
									far++
								}
							}
							if far > 3 || i < 8 && far > 0 {
								t.Errorf("rank %d: %d values of tensor %d differ, by up to %g, of values up to %g", g.Rank(), far, i, farthest(got[i], all), largest)
							}
						}
						return nil
					})
				})
			})
		}
	}
}
