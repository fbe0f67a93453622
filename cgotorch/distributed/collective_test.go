package distributed

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestGroup_Collectives(t *testing.T) {
	torchtest.CheckLeaks(t)
	succeed(t, 3, func(g *Group, x *cgotorch.Exec) {
		r := float64(g.Rank() + 1)
		values := func(tensor *cgotorch.Tensor) []float64 {
			return cgotorch.ToSlice[float64](x, x.To(tensor, cgotorch.Float64))
		}
		check := func(what string, got []float64, want ...float64) {
			t.Helper()
			if !slices.Equal(got, want) {
				t.Errorf("%s on rank %d: got %v, want %v", what, g.Rank(), got, want)
			}
		}
		for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.Float64, cgotorch.BFloat16, cgotorch.Float16, cgotorch.Int64, cgotorch.Int32, cgotorch.Uint8} {
			a := func() *cgotorch.Tensor { return x.Full(dtype, r, 2) }
			for _, c := range []struct {
				op   Op
				want float64
			}{{Sum, 6}, {Product, 6}, {Max, 3}, {Min, 1}, {Mean, 2}} {
				if c.op == Mean && slices.Contains([]cgotorch.DType{cgotorch.Int64, cgotorch.Int32, cgotorch.Uint8}, dtype) {
					continue
				}
				tensor := a()
				g.AllReduce(x.NoWaits(), tensor, c.op)
				check(dtype.String()+" "+c.op.String(), values(tensor), c.want, c.want)
			}
			tensor := a()
			g.Broadcast(x, tensor, 1)
			check("Broadcast", values(tensor), 2, 2)
			check("AllGather", values(g.AllGather(x, a())), 1, 1, 2, 2, 3, 3)
		}
		tensor := x.Full(cgotorch.Float32, r, 2)
		if g.Reduce(x, tensor, Mean, 2); g.Rank() == 2 {
			check("Reduce", values(tensor), 2, 2)
		}
		piece := x.MulScalar(x.Reshape(x.Arange(cgotorch.Float32, 0, 6, 1), 3, 2), r)
		k := float64(2 * g.Rank())
		check("ReduceScatter", values(g.ReduceScatter(x, piece, Sum)), 6*k, 6*(k+1))
		list := []*cgotorch.Tensor{x.Full(cgotorch.Float32, r, 2), x.Full(cgotorch.Float32, 10*r, 1), x.Full(cgotorch.Float32, r, 0)}
		large := x.Full(cgotorch.Float32, r, 20_000)
		g.allReduceList(x, append(list, large), Sum)
		check("allReduceList", append(values(list[0]), values(list[1])...), 6, 6, 60)
		check("a large tensor of a list", values(large), slices.Repeat([]float64{6}, 20_000)...)
		image := x.Contiguous(x.Full(cgotorch.Float32, r, 1, 2, 2, 2), cgotorch.ChannelsLast)
		g.AllReduce(x, image, Sum)
		check("channels last", values(x.Sum(image)), 48)
		switch g.Rank() {
		case 0:
			g.Send(x, x.Full(cgotorch.Float32, 7, 1), 2)
		case 2:
			to := x.Zeros(cgotorch.Float32, 1)
			g.Receive(x, to, 0)
			check("Receive", values(to), 7)
		}
		leaf := x.Full(cgotorch.Float64, r, 1)
		leaf.SetRequiresGrad(true)
		x.Backward(x.MulScalar(x.Sum(g.SumOverRanks(x, leaf)), r))
		check("gradient of SumOverRanks", values(leaf.Grad()), 6)
		g.Barrier(x)
		if !g.Agree(true) || g.Agree(g.Rank() != 1) {
			t.Error("Agree is wrong")
		}
	})
}

func TestGroup_WrongTensors(t *testing.T) {
	torchtest.CheckLeaks(t)
	for what, c := range map[string]struct {
		kind error
		text string
		call func(g *Group, x *cgotorch.Exec)
	}{
		"bool": {cgotorch.ErrInvalidArgument, "convert the tensor to uint8", func(g *Group, x *cgotorch.Exec) {
			g.AllReduce(x, x.Zeros(cgotorch.Bool, 2), Sum)
		}},
		"int16": {cgotorch.ErrInvalidArgument, "convert the tensor to another dtype", func(g *Group, x *cgotorch.Exec) {
			g.AllReduce(x, x.Zeros(cgotorch.Int16, 2), Sum)
		}},
		"mean of integers": {cgotorch.ErrInvalidArgument, "floating dtype", func(g *Group, x *cgotorch.Exec) {
			g.AllReduce(x, x.Zeros(cgotorch.Int64, 2), Mean)
		}},
		"gaps": {cgotorch.ErrInvalidArgument, "contiguous", func(g *Group, x *cgotorch.Exec) {
			g.AllReduce(x, x.Narrow(x.Zeros(cgotorch.Float32, 4, 4), 1, 0, 2), Sum)
		}},
		"root": {cgotorch.ErrInvalidArgument, "rank 2", func(g *Group, x *cgotorch.Exec) {
			g.Broadcast(x, x.Zeros(cgotorch.Float32, 1), 2)
		}},
		"pieces": {cgotorch.ErrInvalidArgument, "multiple of 2 ranks", func(g *Group, x *cgotorch.Exec) {
			g.ReduceScatter(x, x.Zeros(cgotorch.Float32, 3), Sum)
		}},
		"itself": {cgotorch.ErrInvalidArgument, "of which this is", func(g *Group, x *cgotorch.Exec) {
			g.Send(x, x.Zeros(cgotorch.Float32, 3), g.Rank())
		}},
		"operation": {cgotorch.ErrInvalidArgument, "is not one of the five", func(g *Group, x *cgotorch.Exec) {
			g.AllReduce(x, x.Zeros(cgotorch.Float32, 1), Op(9))
		}},
		"dtypes": {cgotorch.ErrInvalidArgument, "one call for each dtype", func(g *Group, x *cgotorch.Exec) {
			g.allReduceList(x, []*cgotorch.Tensor{x.Zeros(cgotorch.Float32, 1), x.Zeros(cgotorch.Float64, 1)}, Sum)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			var looked sync.WaitGroup // a rank that leaves ends the group of the other one
			looked.Add(2)
			wantErrors(t, together(t, 2, Options{}, func(g *Group, s *cgotorch.Stream) error {
				err := s.Do(func(x *cgotorch.Exec) error { c.call(g, x); return nil })
				if err := g.Err(); err != nil {
					t.Errorf("rank %d: a wrong tensor has ended the group: %v", g.Rank(), err)
				}
				looked.Done()
				looked.Wait()
				return err
			}), c.kind, c.text)
		})
	}
}

// Ranks that make different collectives fail with both calls.
func TestGroup_OrderDiffers(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := together(t, 2, Options{Timeout: 3 * time.Second}, func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error {
			for range 3 {
				g.AllReduce(x, x.Zeros(cgotorch.Float32, 4), Sum)
			}
			if g.Rank() == 0 {
				g.AllReduce(x, x.Zeros(cgotorch.Float32, 5), Sum)
			} else {
				g.Broadcast(x, x.Zeros(cgotorch.Float32, 4), 0)
			}
			g.Barrier(x)
			return nil
		})
	})
	wantErrors(t, errs, cgotorch.ErrGroupFailed, "collective 4 differs", "AllReduce Sum(float32[5])", "Broadcast from 0 (float32[4])", "collective_test.go:")
}

// Tensors that lie in memory in other orders are other tensors.
func TestGroup_StridesDiffer(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := together(t, 2, Options{Timeout: 3 * time.Second}, func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error {
			images := x.Zeros(cgotorch.Float32, 2, 3, 4, 4)
			if g.Rank() == 1 {
				images = x.Contiguous(images, cgotorch.ChannelsLast)
			}
			g.AllReduce(x, images, Sum)
			return nil
		})
	})
	wantErrors(t, errs, cgotorch.ErrGroupFailed, "strides [48 1 12 3]")
}

// Two goroutines that make collectives at the same time have no order.
func TestGroup_NoOrder(t *testing.T) {
	torchtest.CheckLeaks(t)
	wantErrors(t, together(t, 2, Options{Timeout: time.Second}, func(g *Group, s *cgotorch.Stream) error {
		if g.Rank() == 1 {
			<-g.failed
			return g.Err()
		}
		other, err := cgotorch.NewStream(g.Device(), cgotorch.StreamOptions{})
		if err != nil {
			return err
		}
		defer other.Close()
		sum := func(x *cgotorch.Exec) error { g.AllReduce(x, x.Ones(cgotorch.Float32, 1), Sum); return nil }
		first := make(chan error, 1)
		go func() { first <- s.Do(sum) }() // waits for rank 1
		for !g.making.Load() {
			time.Sleep(time.Millisecond)
		}
		torchtest.WantError(t, other.Do(sum), cgotorch.ErrInvalidArgument, "take turns")
		return <-first
	}), cgotorch.ErrGroupFailed)
}

// The Close of rank 0 tells of a rank that has ended without a Close.
func TestGroup_Close_Lost(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := together(t, 2, Options{Timeout: 5 * time.Second}, func(g *Group, s *cgotorch.Stream) error {
		if g.Rank() == 0 {
			return nil
		}
		m := &g.monitor
		m.cancel()
		m.done.Wait()
		m.cancel = nil // Close tells nobody
		m.store.close()
		return nil
	})
	if !errors.Is(errs[0], cgotorch.ErrGroupFailed) || !strings.Contains(errs[0].Error(), "has ended without leaving the group") || errs[1] != nil {
		t.Errorf("got %v", errs)
	}
}

// The Close of rank 0 tells of ranks that have made another number of collectives, also of one that
// has failed because rank 0 left.
func TestGroup_Close_CountsDiffer(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, fails := range []bool{false, true} {
		errs := together(t, 2, Options{Timeout: 5 * time.Second}, func(g *Group, s *cgotorch.Stream) error {
			return s.Do(func(x *cgotorch.Exec) error {
				if g.Rank() == 1 {
					g.lockstep.add(call{what: "more"})
					if fails {
						<-g.failed
					}
				}
				return nil
			})
		})
		if !errors.Is(errs[0], cgotorch.ErrGroupFailed) || !strings.Contains(errs[0].Error(), "has made 1 collectives and rank 0 0") || errs[1] != nil {
			t.Errorf("fails: %v: got %v", fails, errs)
		}
	}
}

// A rank that makes no collective any more is named.
func TestGroup_RankIsLate(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := together(t, 2, Options{Timeout: time.Second}, func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error {
			g.AllReduce(x, x.Zeros(cgotorch.Float32, 4), Sum)
			if g.Rank() == 1 {
				<-g.failed
				return g.Err()
			}
			g.AllReduce(x, x.Zeros(cgotorch.Float32, 4), Sum)
			return nil
		})
	})
	if text := errs[0].Error(); !errors.Is(errs[0], cgotorch.ErrGroupFailed) || !strings.Contains(text, "rank 1 (") || !strings.Contains(text, "number 1, AllReduce") {
		t.Errorf("rank 0: %v", errs[0])
	}
	if !errors.Is(errs[1], cgotorch.ErrGroupFailed) {
		t.Errorf("rank 1: %v", errs[1])
	}
}

// A group of one rank makes all calls.
func TestJoin_Alone(t *testing.T) {
	torchtest.CheckLeaks(t)
	g := cgotorch.Must(join(t.Context(), Options{Device: "cpu"}, func(string) string { return "" }))
	defer g.Close()
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		a := x.Full(cgotorch.Float32, 3, 2)
		g.AllReduce(x, a, Mean)
		g.Broadcast(x, a, 0)
		g.Barrier(x)
		if got := x.Item(x.Sum(g.AllGather(x, g.ReduceScatter(x, g.SumOverRanks(x, a), Sum)))); got != 6 {
			t.Errorf("got %v, want 6", got)
		}
		if !g.Agree(true) || g.Agree(false) || g.World() != 1 {
			t.Error("a group of one is wrong")
		}
	})
}
