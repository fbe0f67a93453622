// Package streams tests that the streams, modes and failures of many goroutines do not affect
// each other.
package streams

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/together"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

const goroutines = 64

// record records an event after the work that is enqueued on s so far. The caller closes the
// event.
func record(t testing.TB, s *cgotorch.Stream) *cgotorch.Event {
	t.Helper()
	return must.Get(s.Record())(t)
}

// onStreams runs fn in n goroutines, each with its own stream.
func onStreams(t *testing.T, d cgotorch.Device, n int, fn func(i int, s *cgotorch.Stream) error) {
	t.Helper()
	together.Run(n, func(i int) {
		s, err := cgotorch.NewStream(d, cgotorch.StreamOptions{HighPriority: i%3 == 0})
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		if err := fn(i, s); err != nil {
			t.Errorf("goroutine %d: %v", i, err)
		}
	})
}

// Each goroutine computes right results with its own numbers and its own modes. It lets other
// goroutines run between its operators.
func TestStreams_ManyGoroutines(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		onStreams(t, d, goroutines, func(i int, s *cgotorch.Stream) error {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			for round := range 20 {
				grad, cast := random.IntN(2) == 0, random.IntN(2) == 0
				err := s.Do(func(x *cgotorch.Exec) error {
					if !grad {
						x = x.NoGrad()
					}
					if cast {
						x = x.Autocast(cgotorch.BFloat16)
					}
					return compute(x, i+round, grad, cast)
				})
				if err != nil {
					return fmt.Errorf("round %d, grad %v, autocast %v: %w", round, grad, cast, err)
				}
			}
			return nil
		})
	})
}

// compute uses powers of two, because their products are exact in bfloat16 too.
func compute(x *cgotorch.Exec, power int, grad, cast bool) error {
	v := math.Ldexp(1, power%8)
	w := x.Full(cgotorch.Float32, v-8, 4, 4)
	if err := w.SetRequiresGrad(true); err != nil {
		return err
	}
	runtime.Gosched()
	y := w
	for k := range 8 {
		y = x.AddScalar(y, 1.0)
		if k%3 == 0 {
			runtime.Gosched()
		}
	}
	if y.RequiresGrad() != grad {
		return fmt.Errorf("a result requires grad: %v", y.RequiresGrad())
	}
	product := x.MM(y, y)
	if want := map[bool]cgotorch.DType{false: cgotorch.Float32, true: cgotorch.BFloat16}[cast]; product.DType() != want {
		return fmt.Errorf("a product is of %v, want %v", product.DType(), want)
	}
	sum := x.Sum(x.To(product, cgotorch.Float32))
	if got, want := x.Item(sum), 64*v*v; got != want {
		return fmt.Errorf("the sum is %v, want %v", got, want)
	}
	if !grad {
		return nil
	}
	x.Backward(sum)
	if got, want := cgotorch.ToSlice[float32](x, w.Grad()), float32(8*v); got[0] != want || got[15] != want {
		return fmt.Errorf("the gradient is %v, want %v", got, want)
	}
	return nil
}

// A failure, a panic or an abandoned Do of one goroutine does not affect the other goroutines.
func TestStreams_FailuresAreTheirOwn(t *testing.T) {
	broken := errors.New("broken")
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		onStreams(t, d, goroutines, func(i int, s *cgotorch.Stream) error {
			for round := range 20 {
				switch (i + round) % 4 {
				case 0:
					err := s.Do(func(x *cgotorch.Exec) error {
						x.MM(x.Ones(cgotorch.Float32, 2, 3), x.Ones(cgotorch.Float32, 2, 3))
						return nil
					})
					if !errors.Is(err, cgotorch.ErrInvalidArgument) {
						return fmt.Errorf("a failing operator gives %v", err)
					}
				case 1:
					var p *cgotorch.Panic
					if err, _ := raised(func() { s.Do(func(x *cgotorch.Exec) error { panic(broken) }) }).(error); !errors.As(err, &p) || p.Value != broken {
						return fmt.Errorf("a panic gives %v", err)
					}
				default:
					if err := s.Do(func(x *cgotorch.Exec) error { return compute(x, i, true, false) }); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

func raised(fn func()) (value any) {
	defer func() { value = recover() }()
	fn()
	return nil
}

// Goroutines pass a shared tensor around a ring. The stream of each goroutine waits for the event
// of the goroutine before it, and adds 1 to the tensor. No addition is lost.
func TestStreams_EventsOrderARing(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		const n, rounds, size = 16, 10, 1 << 14
		home := torchtest.NewStream(t, d)
		var token *cgotorch.Tensor
		torchtest.DoOn(t, home, func(x *cgotorch.Exec) { token = x.Keep(x.Zeros(cgotorch.Int64, size)) })
		defer token.Close()
		passed := make([]chan *cgotorch.Event, n)
		for i := range passed {
			passed[i] = make(chan *cgotorch.Event, 1)
		}
		passed[0] <- record(t, home)
		onStreams(t, d, n, func(i int, s *cgotorch.Stream) error {
			for range rounds {
				e := <-passed[i]
				err := s.Do(func(x *cgotorch.Exec) error {
					x.Wait(e)
					e.Close()
					// The tensor is doubled and halved again, so that a lost or late addition changes the result.
					x.MulScalarInPlace(token, 2)
					x.AddScalarInPlace(token, 2)
					x.Call("aten::floor_divide_.Scalar", token, 2)
					e = x.Record()
					return nil
				})
				passed[(i+1)%n] <- e
				if err != nil {
					return err
				}
			}
			return nil
		})
		last := <-passed[0]
		defer last.Close()
		err := home.Do(func(x *cgotorch.Exec) error {
			x.Wait(last)
			got := cgotorch.ToSlice[int64](x, token)
			if low, high := slices.Min(got), slices.Max(got); low != n*rounds || high != n*rounds {
				return fmt.Errorf("the token is between %d and %d, want %d", low, high, n*rounds)
			}
			return nil
		})
		must.Check(t, err)
	})
}

// All goroutines read the same model, which one goroutine has made, as in a server.
func TestStreams_ShareATensor(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		home := torchtest.NewStream(t, d)
		var weight *cgotorch.Tensor
		torchtest.DoOn(t, home, func(x *cgotorch.Exec) { weight = x.Keep(x.Eye(cgotorch.Float32, 32)) })
		defer weight.Close()
		ready := record(t, home)
		defer ready.Close()
		onStreams(t, d, goroutines, func(i int, s *cgotorch.Stream) error {
			if err := s.Wait(ready); err != nil {
				return err
			}
			for range 20 {
				err := s.Do(func(x *cgotorch.Exec) error {
					x = x.NoGrad()
					in := x.Full(cgotorch.Float32, float64(i), 1, 32)
					if got := x.Item(x.Sum(x.MM(in, weight))); got != float64(32*i) {
						return fmt.Errorf("got %v, want %v", got, 32*i)
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func TestStreams_WhateverGOMAXPROCS(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
		for _, n := range []int{1, 2, 16} {
			runtime.GOMAXPROCS(n)
			onStreams(t, d, 8, func(i int, s *cgotorch.Stream) error {
				for round := range 10 {
					grad, cast := round%2 == 0, round%3 == 0
					err := s.Do(func(x *cgotorch.Exec) error {
						if !grad {
							x = x.NoGrad()
						}
						if cast {
							x = x.Autocast(cgotorch.BFloat16)
						}
						return compute(x, i, grad, cast)
					})
					if err != nil {
						return fmt.Errorf("GOMAXPROCS %d: %w", n, err)
					}
				}
				return nil
			})
		}
	})
}

// In every goroutine, one Do uses two streams. The results are right.
func TestStreams_OnASecondStream(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		onStreams(t, d, 16, func(i int, s *cgotorch.Stream) error {
			side, err := cgotorch.NewStream(d, cgotorch.StreamOptions{})
			if err != nil {
				return err
			}
			defer side.Close()
			for range 10 {
				err := s.Do(func(x *cgotorch.Exec) error {
					a := x.Full(cgotorch.Float32, float64(i), 1<<12)
					made := x.Record()
					defer made.Close()
					y := x.On(side)
					y.Wait(made)
					b := y.MulScalar(a, 2.0)
					done := y.Record()
					defer done.Close()
					c := x.AddScalar(a, 1.0) // runs in parallel with the work on side
					x.Wait(done)
					if got, want := x.Item(x.Sum(x.Add(b, c))), float64(1<<12)*float64(3*i+1); got != want {
						return fmt.Errorf("got %v, want %v", got, want)
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
}
