package main

import (
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
)

// Tally holds sums over the batches of one epoch. Loss and the counts are those of all ranks.
type Tally struct {
	Images  int           `json:"images"`
	Loss    float64       `json:"loss"`    // sum over the images
	Top1    float64       `json:"top1"`    // number of images whose label came first
	Top5    float64       `json:"top5"`    // number of images whose label was among the first five
	Skipped int           `json:"skipped"` // unreadable images that were left out
	Seconds float64       `json:"seconds"`
	Stall   time.Duration `json:"stall"` // time for which the device waited for data
	BoundBy string        `json:"bound_by"`
}

// Epoch holds the results of one epoch, as a line of the log.
type Epoch struct {
	Epoch           int     `json:"epoch"` // counted from 1
	Step            int     `json:"step"`
	LR              float64 `json:"lr"`
	TrainLoss       float64 `json:"train_loss"`
	*Tested                 // nil if there was no test
	Skipped         int     `json:"skipped"`           // unreadable images that were left out, as -skip-rate allows
	ImagesPerSecond float64 `json:"images_per_second"` // of training
	DataWaitShare   float64 `json:"data_wait_share"`   // share of the training time for which the device waited for data, 0 to 1
	Seconds         float64 `json:"seconds"`           // training time
	// BoundBy names the part of the loader that the batches waited for. It also says how many cores
	// the loader used.
	BoundBy string `json:"bound_by"`
}

// Tested holds the results of an epoch's test.
type Tested struct {
	TestLoss float64 `json:"test_loss"`
	Top1     float64 `json:"top1"` // share of the test images whose label came first, 0 to 1
	Top5     float64 `json:"top5"`
}

func (t *Tested) String() string {
	return fmt.Sprintf("test loss %.4f  top-1 %.2f %%  top-5 %.2f %%", t.TestLoss, 100*t.Top1, 100*t.Top5)
}

// tested returns the means of a test, or nil if there was none.
func (t Tally) tested() *Tested {
	n := float64(t.Images)
	if n == 0 {
		return nil
	}
	return &Tested{t.Loss / n, t.Top1 / n, t.Top5 / n}
}

// add adds a batch of n images to t.sums, float64 [5]: loss, top 1, top 5, images and skipped ones.
// So the host waits in no step. `loss` is the batch's mean. The shape of `logits` is [n, classes],
// and that of `labels` is [n]. Both may be nil.
func (t *trainer) add(x *cgotorch.Exec, n int, loss, logits, labels *cgotorch.Tensor) {
	x.AddScaledInPlace(x.Select(t.sums, 0, 0), loss, n)
	t.images += n
	if logits == nil {
		return
	}
	x.AddInPlace(x.Select(t.sums, 0, 1), metric.Correct(x, logits, labels, 1))
	x.AddInPlace(x.Select(t.sums, 0, 2), metric.Correct(x, logits, labels, min(5, int(logits.Shape()[1]))))
}

// readSums adds the sums of all ranks to `tally` and sets them to 0. `skipped` is the number of
// images that this rank left out. It waits for the stream.
func (t *trainer) readSums(skipped int, tally *Tally) error {
	return t.stream.Do(func(x *cgotorch.Exec) error {
		x.FillInPlace(x.Select(t.sums, 0, 3), t.images)
		x.FillInPlace(x.Select(t.sums, 0, 4), skipped)
		t.group.AllReduce(x, t.sums, distributed.Sum)
		v := cgotorch.ToSlice[float64](x, t.sums)
		x.ZeroInPlace(t.sums)
		t.images = 0
		tally.Loss, tally.Top1, tally.Top5 = tally.Loss+v[0], tally.Top1+v[1], tally.Top5+v[2]
		tally.Images, tally.Skipped = tally.Images+int(v[3]), tally.Skipped+int(v[4])
		return nil
	})
}

// finishEpoch turns the sums of an epoch into a line of the log, and writes the line.
func (t *trainer) finishEpoch(test Tally) error {
	p := &t.progress
	if p.Train.Images == 0 { // can happen if a run is resumed after the training and before the test of an empty epoch
		return fmt.Errorf("%s: no image to train on", t.Data)
	}
	if err := finite(p.Epoch+1, "test", test.Loss); err != nil {
		return err
	}
	e := Epoch{
		Epoch: p.Epoch + 1, Step: p.Step, LR: t.LR * t.schedule(p.Step-1), Tested: test.tested(),
		TrainLoss:       p.Train.Loss / float64(p.Train.Images),
		ImagesPerSecond: float64(p.Train.Images) / p.Train.Seconds,
		DataWaitShare:   min(1, p.Train.Stall.Seconds()/p.Train.Seconds),
		Seconds:         p.Train.Seconds, Skipped: p.Train.Skipped, BoundBy: p.Train.BoundBy,
	}
	p.History = append(p.History, e)
	p.Epoch++
	p.Train = Tally{}
	p.Loader = p.Loader.NextEpoch()
	return t.log.epoch(e, t)
}
