// Package optim changes parameters by their gradients. It has the optimizers and learning-rate
// schedules of PyTorch, clipping and scaling of gradients, and averages of parameters.
//
//	opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.1, Momentum: 0.9}, optim.Group{Params: params})
//	schedule := optim.Warmup(500, 0.01, optim.Cosine(9500, 0))
//	for step := range 10000 {
//		err = stream.Do(func(x *cgotorch.Exec) error {
//			opt.ZeroGrad()
//			opt.SetScale(schedule(step))
//			x.Backward(loss(x))
//			opt.Step(x)
//			return nil
//		})
//	}
//	err = opt.Close()
//
// Gradients accumulate if ZeroGrad is called once for several backwards. Divide each loss by the
// number of backwards:
//
//	opt.ZeroGrad()
//	for _, part := range parts {
//		x.Backward(x.DivScalar(loss(x, part), len(parts)))
//	}
//	opt.Step(x)
//
// Of an [Optimizer], only reads for a checkpoint wait for the device: [Optimizer.State] and
// [Scaler.State]. A Restore waits for its copies of tensors in host memory.
//
// [LBFGS] waits in each step. Fused steps of SGD, Adam and AdamW can be captured: see
// [Optimizer.Step]. Schedules, clipping, scaling and averages work in the captured function too.
// ZeroGrad must come before the backward in a captured function.
//
// Arithmetic and its order of SGD, Adam and AdamW are those of PyTorch 2.11 with fused=True. With
// the option Foreach they are those of foreach=True. Results are equal to the bit on the same
// processor. On CUDA a fused step rounds the learning rate to float32.
package optim
