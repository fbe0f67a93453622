package dist

import "github.com/streamtorch/streamtorch/cgotorch/nn"

// SyncBatchNorm makes the batch norms of a model use the statistics of the batches of all ranks in
// training. The training then equals that of one process with the batches of all ranks together.
// Evaluation stays as it is. All ranks then make the same forwards and backwards.
//
// Each norm makes two collectives in its forward and two in its backward, and the step waits for
// them. The fused kernels of nn.NormReLU are not used. So call it only where the batch of one rank
// is too small for its own statistics.
//
// A forward in training fails with [cgotorch.ErrGroupFailed] if the group has failed, and with
// [cgotorch.ErrClosed] after its Close.
func SyncBatchNorm(g *Group, model any) {
	if g.alone {
		return
	}
	nn.SetRanks(model, g)
}
