package distributed

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// Op says how a collective combines the values of the ranks.
type Op int32

// The operations. A mean needs a floating or complex dtype, and the other ones take integers too.
// Complex numbers have Sum and Mean alone. bool has none.
const (
	Sum     Op = ct.Sum
	Product Op = ct.Product
	Max     Op = ct.Max
	Min     Op = ct.Min
	Mean    Op = ct.Mean
)

func (o Op) String() string {
	if names := []string{"Sum", "Product", "Max", "Min", "Mean"}; o >= 0 && int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Op(%d)", int(o))
}

// AllReduce replaces t by the sum over all ranks, or as op says. On CUDA it does not wait. On the
// CPU it waits for the other ranks. t is dense, on the group's device, with the same dtype, shape
// and strides on all ranks. Nothing is recorded for backward: see [Group.SumOverRanks].
//
// AllReduce fails with [cgotorch.ErrInvalidArgument] for a tensor that is not dense, and for a
// dtype that op does not take. It fails with [cgotorch.ErrGroupFailed] if the group has failed.
func (g *Group) AllReduce(x *cgotorch.Exec, t *cgotorch.Tensor, op Op) {
	g.allReduceList(x, []*cgotorch.Tensor{t}, op)
}

// allReduceList is [Group.AllReduce] of several tensors of one dtype. It is one launch, so many
// small tensors cost little more than one.
func (g *Group) allReduceList(x *cgotorch.Exec, ts []*cgotorch.Tensor, op Op) {
	if len(ts) == 0 {
		return
	}
	g.oneDType(x, "AllReduce", ts)
	g.collective(x, "AllReduce", ts, of("AllReduce "+op.String(), ts...), func(c ct.Exec, hs []*ct.Tensor) *ct.Status {
		return ct.AllReduce(c, g.h, &hs[0], int32(len(hs)), int32(op))
	})
	g.alike(x, ts)
}

// Reduce is [Group.AllReduce] for the rank `root` alone, a number from 0 to World-1. On the other
// ranks t is undefined afterwards. Rules and failures are those of AllReduce.
func (g *Group) Reduce(x *cgotorch.Exec, t *cgotorch.Tensor, op Op, root int) {
	ts := []*cgotorch.Tensor{t}
	g.collective(x, "Reduce", ts, of(fmt.Sprintf("Reduce %v to %d ", op, root), t), func(c ct.Exec, hs []*ct.Tensor) *ct.Status {
		return ct.Reduce(c, g.h, hs[0], int32(op), int32(root))
	})
}

// Broadcast replaces t by the tensor of the rank `root`. Rules and failures are those of
// [Group.AllReduce], and t may have any dtype.
func (g *Group) Broadcast(x *cgotorch.Exec, t *cgotorch.Tensor, root int) {
	g.broadcastList(x, []*cgotorch.Tensor{t}, root)
}

// broadcastList is [Group.Broadcast] of several tensors, in one launch.
func (g *Group) broadcastList(x *cgotorch.Exec, ts []*cgotorch.Tensor, root int) {
	if len(ts) == 0 {
		return
	}
	g.collective(x, "Broadcast", ts, of(fmt.Sprintf("Broadcast from %d ", root), ts...), func(c ct.Exec, hs []*ct.Tensor) *ct.Status {
		return ct.Broadcast(c, g.h, &hs[0], int32(len(hs)), int32(root))
	})
	g.alike(x, ts)
}

// AllGather returns the tensors of all ranks, one after another along a new first dimension: the
// result of [N, …] has the shape [World, N, …]. Rules and failures are those of [Group.AllReduce].
// t may have any dtype, and is contiguous. The Do owns the result.
func (g *Group) AllGather(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	y := x.NoGrad()
	t = y.Contiguous(t, cgotorch.Contiguous)
	all := y.Empty(t.DType(), append([]int64{int64(g.world)}, t.Shape()...)...)
	if g.alone {
		g.check(x, "distributed.AllGather")
		y.CopyInPlace(y.Select(all, 0, 0), t)
		return all
	}
	g.gather(x, all, t)
	return all
}

// gather writes the tensors of all ranks into `all`. Both tensors are contiguous.
func (g *Group) gather(x *cgotorch.Exec, all, t *cgotorch.Tensor) {
	g.collective(x, "AllGather", []*cgotorch.Tensor{all, t}, of("AllGather", t), func(c ct.Exec, hs []*ct.Tensor) *ct.Status {
		return ct.AllGather(c, g.h, hs[0], hs[1])
	})
}

// ReduceScatter cuts t into World pieces along its first dimension, which World divides. It returns
// this rank's piece of the sum over all ranks, or as op says. Rules and failures are those of
// [Group.AllReduce], and t is contiguous. The Do owns the result.
func (g *Group) ReduceScatter(x *cgotorch.Exec, t *cgotorch.Tensor, op Op) *cgotorch.Tensor {
	shape := t.Shape()
	if len(shape) == 0 || shape[0]%int64(g.world) != 0 {
		x.Fail("distributed.ReduceScatter", fmt.Errorf("the first dimension of %v is not a multiple of %d ranks: %w", shape, g.world, cgotorch.ErrInvalidArgument))
	}
	y := x.NoGrad()
	t = y.Contiguous(t, cgotorch.Contiguous)
	if g.alone {
		g.check(x, "distributed.ReduceScatter")
		return y.Clone(t)
	}
	shape[0] /= int64(g.world)
	piece := y.Empty(t.DType(), shape...)
	g.scatter(x, piece, t, op)
	return piece
}

// scatter writes this rank's piece of the reduced t. Both tensors are contiguous.
func (g *Group) scatter(x *cgotorch.Exec, piece, t *cgotorch.Tensor, op Op) {
	g.collective(x, "ReduceScatter", []*cgotorch.Tensor{piece, t}, of("ReduceScatter "+op.String(), t), func(c ct.Exec, hs []*ct.Tensor) *ct.Status {
		return ct.ReduceScatter(c, g.h, hs[0], hs[1], int32(op))
	})
}

// Send gives t to the rank `to`, which calls [Group.Receive] with a tensor of the same dtype and
// shape. On CUDA it does not wait. On the CPU it waits for the other rank. t is dense and may have
// any dtype. Tensors arrive in the order in which they are sent. Only the two ranks make the call,
// so nothing checks dtype, shape and order, and a call that the other rank never makes may wait for
// ever on CUDA. The failures are those of [Group.AllReduce].
func (g *Group) Send(x *cgotorch.Exec, t *cgotorch.Tensor, to int) {
	g.between(x, "Send", t, to, func(c ct.Exec, hs []*ct.Tensor) *ct.Status { return ct.Send(c, g.h, hs[0], int32(to)) })
}

// Receive replaces t by the tensor that the rank `from` sends: see [Group.Send].
func (g *Group) Receive(x *cgotorch.Exec, t *cgotorch.Tensor, from int) {
	g.between(x, "Receive", t, from, func(c ct.Exec, hs []*ct.Tensor) *ct.Status { return ct.Receive(c, g.h, hs[0], int32(from)) })
}

func (g *Group) between(x *cgotorch.Exec, op string, t *cgotorch.Tensor, other int, run func(ct.Exec, []*ct.Tensor) *ct.Status) {
	ts := []*cgotorch.Tensor{t}
	c, hs := inside.Core.Prepare(x, "distributed."+op, ts)
	defer g.enter(x, "distributed."+op)()
	if other == g.rank || other < 0 || other >= g.world {
		x.Fail("distributed."+op, fmt.Errorf("rank %d in a group of %d ranks, of which this is %d: %w", other, g.world, g.rank, cgotorch.ErrInvalidArgument))
	}
	g.must(x, "distributed."+op, run(c, hs), ts)
}

// SumOverRanks returns the sum of t over all ranks, and is recorded for backward. The gradient of t
// is the sum of the result's gradients over all ranks, so the backward of each rank makes a
// collective too. Rules and failures are those of [Group.AllReduce]. The Do owns the result.
func (g *Group) SumOverRanks(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	if g.alone {
		g.check(x, "distributed.SumOverRanks")
		return x.Alias(t)
	}
	ts := []*cgotorch.Tensor{t}
	var out *ct.Tensor
	g.collective(x, "SumOverRanks", ts, of("SumOverRanks", t), func(c ct.Exec, hs []*ct.Tensor) *ct.Status {
		return ct.SumOverRanks(c, g.h, hs[0], &out)
	})
	return inside.Core.Own(x, out)
}

// Barrier waits until all ranks have called it, and until the work of x's stream so far is done. It
// fails with [cgotorch.ErrGroupFailed] if a rank is lost.
func (g *Group) Barrier(x *cgotorch.Exec) {
	x.Tidy(func() *cgotorch.Tensor {
		one := x.NoGrad().Zeros(cgotorch.Float32, 1)
		g.collective(x, "Barrier", []*cgotorch.Tensor{one}, call{what: "Barrier"}, func(c ct.Exec, hs []*ct.Tensor) *ct.Status {
			return ct.AllReduce(c, g.h, &hs[0], 1, ct.Sum)
		})
		x.Item(one)
		return nil
	})
	g.check(x, "distributed.Barrier")
}

// Check waits for the work of x's stream so far. It fails with [cgotorch.ErrGroupFailed] if the
// group has failed. Work that ran after the failure has undefined results, so a program calls Check
// before it saves them.
func (g *Group) Check(x *cgotorch.Exec) {
	g.check(x, "distributed.Check")
	if g.alone {
		return
	}
	e := x.Record()
	defer e.Close()
	if err := e.Synchronize(); err != nil {
		x.Fail("distributed.Check", err)
	}
	g.check(x, "distributed.Check")
}

func (g *Group) oneDType(x *cgotorch.Exec, op string, ts []*cgotorch.Tensor) {
	for _, t := range ts {
		if t != nil && ts[0] != nil && t.DType() != ts[0].DType() {
			x.Fail("distributed."+op, fmt.Errorf("tensors of %v and of %v in one call: make one call for each dtype: %w", ts[0].DType(), t.DType(), cgotorch.ErrInvalidArgument))
		}
	}
}
