// Package distributed joins processes to a group that trains one model on several GPUs, or on
// several CPUs.
//
// Each GPU has one process. A launcher starts the processes: torchrun, Slurm, Kubernetes, Open MPI,
// or a shell. [Join] reads what the launcher has put into the environment. Without a launcher it
// returns a group of one rank, so a program needs no second form:
//
//	group, err := distributed.Join(ctx, distributed.Options{})
//	if err != nil {
//		return err
//	}
//	defer group.Close()
//	stream := cgotorch.DefaultStream(group.Device())
//
// Every rank makes the model, and [NewGradients] gives all ranks the weights of rank 0. [Gradients]
// then replaces Exec.Backward. It reduces the gradients over the ranks while the backward computes
// them:
//
//	gradients, err := distributed.NewGradients(x, group, model, distributed.GradientsOptions{})
//	…
//	opt.ZeroGrad()
//	gradients.Backward(x, loss)
//	opt.Step(x)
//
// [NewSharded] spreads the optimizer's state over the ranks, so that each keeps 1/World of it.
//
// The collectives are calls that name their stream, as all calls of this library do. On CUDA they
// are NCCL's, and no call waits for another rank, unless its comment says so. They become part of a
// captured step. On the CPU they are Gloo's, and the call returns when they are done. A process of
// Python with torch.distributed can be a rank over Gloo.
//
// # Order
//
// All ranks make the same collectives in the same order. Each rank tells the others in the
// background which ones it has made. If two ranks differ, both fail with an error that names the
// ranks, the calls and the lines. Two calls differ in the operation, in a dtype, in a shape or in
// strides. Two equal calls are one collective, also on other lines or in other goroutines.
//
// [CheckEqual] tells whether the ranks still have the same weights.
//
// # Failures
//
// If a rank ends, hangs or loses its device, the others fail some seconds after Options.Timeout at
// the latest. The error is of kind [cgotorch.ErrGroupFailed]. It names the rank and its last
// collective. The group is then of no use any more: the process ends, and the launcher starts the
// ranks again.
//
// The processes trust each other and the network between them. Nothing is encrypted, and whoever
// reaches the store or a rank can disturb the run.
package distributed
