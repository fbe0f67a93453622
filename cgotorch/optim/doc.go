// Package optim changes parameters by their gradients: SGD, Adam and AdamW as PyTorch defines them, learning-rate schedules,
// and clipping of gradients.
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
// Nothing here waits for the device. Arithmetic and its order are those of PyTorch 2.11 with the same [Implementation]:
// results are equal to the bit on the same processor.
package optim
