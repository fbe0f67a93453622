package main

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
)

// sums adds up the numbers of a Tally on the device. The host therefore does not wait in each step.
type sums struct {
	images int
	values *cgotorch.Tensor // float64 [5]: loss, top 1, top 5, images, skipped
}

func newSums(x *cgotorch.Exec) sums {
	return sums{values: x.Keep(x.Zeros(cgotorch.Float64, 5))}
}

// add adds a batch of n images, whose mean loss is the tensor `loss`. The shape of `logits` is
// [n, classes], and the shape of `labels` is [n]. Both may be nil.
func (s *sums) add(x *cgotorch.Exec, n int, loss, logits, labels *cgotorch.Tensor) {
	s.images += n
	x.AddScaledInPlace(x.Select(s.values, 0, 0), loss, n)
	if logits == nil {
		return
	}
	k := min(5, int(logits.Shape()[1]))
	_, best := x.TopK(logits, k, 1, cgotorch.TopKOptions{})
	hits := x.Eq(best, x.Unsqueeze(labels, 1))
	x.AddInPlace(x.Select(s.values, 0, 1), x.Sum(x.Narrow(hits, 1, 0, 1)))
	x.AddInPlace(x.Select(s.values, 0, 2), x.Sum(hits))
}

// read adds the sums of all ranks to `tally` and sets the sums to 0. `skipped` is the number of
// images that this rank left out. read waits for the stream.
func (s *sums) read(stream *cgotorch.Stream, group *distributed.Group, skipped int, tally *Tally) error {
	return stream.Do(func(x *cgotorch.Exec) error {
		x.FillInPlace(x.Select(s.values, 0, 3), s.images)
		x.FillInPlace(x.Select(s.values, 0, 4), skipped)
		group.AllReduce(x, s.values, distributed.Sum)
		v := cgotorch.ToSlice[float64](x, s.values)
		x.ZeroInPlace(s.values)
		tally.Images += int(v[3])
		tally.Loss += v[0]
		tally.Top1 += v[1]
		tally.Top5 += v[2]
		tally.Skipped += int(v[4])
		s.images = 0
		return nil
	})
}

func (s *sums) close() {
	if s.values != nil {
		s.values.Close()
	}
}
