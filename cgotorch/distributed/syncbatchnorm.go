package distributed

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// SyncBatchNorm makes the batch norms of a model use the statistics of the batches of all ranks in
// training. The training then equals that of one process with the batches of all ranks together.
// Evaluation stays as it is. All ranks then make the same forwards and backwards.
//
// With the kernels of nn.NormReLU each norm makes one collective in its forward and one in its
// backward. The two norms at the end of a residual block share theirs. Without the kernels a norm
// makes two and two. The step waits for them. So call it only where the batch of one rank is too
// small for its own statistics.
//
// Batches may be empty. A batch that is empty on all ranks leaves the running statistics as they
// are. One value of a channel over all ranks has no variance. A group of one rank then fails, as a
// batch norm does. With several ranks only the device knows it: the result is the norm's bias, and
// the running variance stays.
//
// A forward in training fails with [cgotorch.ErrGroupFailed] if the group has failed, and with
// [cgotorch.ErrClosed] after its Close.
func SyncBatchNorm(g *Group, model any) {
	if g.alone {
		return
	}
	nn.SetRanks(model, g)
}

// RankedNorm is for package nn: see nn.Ranks.
func (g *Group) RankedNorm(x *cgotorch.Exec, in []*cgotorch.Tensor, norm func(group int64) *cgotorch.Tensor) (out *cgotorch.Tensor) {
	if g.alone {
		g.check(x, "distributed.SyncBatchNorm")
		return norm(0)
	}
	made := call{what: "SyncBatchNorm"} // the batches of the ranks may differ in size
	for _, t := range in {
		made.what += fmt.Sprintf(" of %d channels", t.Shape()[1])
	}
	g.collective(x, "SyncBatchNorm", in, made, func(ct.Exec, []*ct.Tensor) *ct.Status {
		out = norm(ct.GroupNumber(g.h))
		return nil
	})
	return out
}
