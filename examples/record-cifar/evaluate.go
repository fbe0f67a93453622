package main

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// view is one way to show a test image to the network, with the weight of its logits.
type view struct {
	shift  int // rows and columns
	mirror bool
	weight float64
}

// viewsOf returns the views of -tta. The weights of all views sum to 1.
func viewsOf(level int) []view {
	switch level {
	case 0:
		return []view{{0, false, 1}}
	case 1:
		return []view{{0, false, 0.5}, {0, true, 0.5}}
	}
	return []view{
		{0, false, 0.25}, {0, true, 0.25},
		{-1, false, 0.125}, {-1, true, 0.125},
		{1, false, 0.125}, {1, true, 0.125},
	}
}

// testBatch is the number of images that the network tests at a time.
const testBatch = 2000

// evaluate returns the number of images of p that the network classifies right. It waits for the
// device.
func (t *trainer) evaluate(p *pictures) (right int, err error) {
	nn.SetTraining(t.net.Sequential, false)
	err = t.stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		p.use(x)
		sum := x.Zeros(cgotorch.Int64)
		for from := 0; from < p.n; from += testBatch {
			n := min(testBatch, p.n-from)
			x.Tidy(func() *cgotorch.Tensor {
				classes := x.ArgMax(t.logits(x, p, from, n), 1, cgotorch.ReduceOptions{})
				x.AddInPlace(sum, x.Sum(x.Eq(classes, x.Narrow(p.labels, 0, from, n))))
				return nil
			})
		}
		right = int(x.Item(sum))
		return nil
	})
	return right, err
}

// logits returns the weighted mean of the logits of all views, float32 [n, classes].
func (t *trainer) logits(x *cgotorch.Exec, p *pictures, from, n int) *cgotorch.Tensor {
	indices := x.Arange(cgotorch.Int64, from, from+n, nil)
	all := x.Zeros(cgotorch.Float32, int64(n), classCount)
	for _, v := range viewsOf(t.TTA) {
		x.Tidy(func() *cgotorch.Tensor {
			flips := x.Full(cgotorch.Bool, v.mirror, int64(n))
			pictures := t.views.batch(x, p, indices, equalShifts(x, int64(n), v.shift), flips)
			x.AddScaledInPlace(all, x.To(t.net.Forward(t.autocast(x), pictures), cgotorch.Float32), v.weight)
			return nil
		})
	}
	return all
}
