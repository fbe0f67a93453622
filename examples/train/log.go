package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// Tally holds sums over the images of an epoch. Loss and the counts are those of all ranks.
type Tally struct {
	Images  int     `json:"images"`
	Skipped int     `json:"skipped"` // unreadable images that were left out
	Loss    float64 `json:"loss"`
	Top1    float64 `json:"top1"` // number of images whose label came first
	Top5    float64 `json:"top5"` // number of images whose label was among the first five
	Seconds float64 `json:"seconds"`
	Stall   float64 `json:"stall"`    // seconds for which the device waited for data
	BoundBy string  `json:"bound_by"` // part of the loader that the batches waited for, and how many cores it used
}

// Result holds the results of an epoch or of -evaluate, as JSON.
type Result struct {
	Epoch           int     `json:"epoch,omitempty"` // counted from 1
	Step            int     `json:"step,omitempty"`
	LR              float64 `json:"lr,omitempty"`
	TrainLoss       float64 `json:"train_loss,omitempty"`
	*Tested                 // nil if there was no test
	Images          int     `json:"images"`
	Skipped         int     `json:"skipped"`
	ImagesPerSecond float64 `json:"images_per_second"`
	DataWaitShare   float64 `json:"data_wait_share"` // share of Seconds for which the device waited for data, 0 to 1
	Seconds         float64 `json:"seconds"`
	BoundBy         string  `json:"bound_by,omitempty"`
}

// Tested holds the results of a test.
type Tested struct {
	TestLoss float64 `json:"test_loss"`
	Top1     float64 `json:"top1"` // share of the test images whose label came first, 0 to 1
	Top5     float64 `json:"top5"`
}

// result returns the counts and times, with the results of a test.
func (t Tally) result(test *Tested) Result {
	return Result{
		Tested: test, Images: t.Images, Skipped: t.Skipped, ImagesPerSecond: float64(t.Images) / t.Seconds,
		DataWaitShare: min(1, t.Stall/t.Seconds), Seconds: t.Seconds, BoundBy: t.BoundBy,
	}
}

// tested returns the means of a test, or nil if there was none.
func (t Tally) tested() *Tested {
	if t.Images == 0 {
		return nil
	}
	n := float64(t.Images)
	return &Tested{t.Loss / n, t.Top1 / n, t.Top5 / n}
}

func (t *Tested) String() string {
	if t == nil {
		return "no test"
	}
	return fmt.Sprintf("test loss %.4f  top-1 %.2f %%  top-5 %.2f %%", t.TestLoss, 100*t.Top1, 100*t.Top5)
}

// print prints the result of an epoch for people.
func (r Result) print(epochs int) {
	skipped := ""
	if r.Skipped > 0 {
		skipped = fmt.Sprintf("  %d unreadable images skipped", r.Skipped)
	}
	fmt.Printf("epoch %d/%d  train loss %.4f  %v  %.0f images/s  %.1f %% waiting for data (bound by: %s)%s\n",
		r.Epoch, epochs, r.TrainLoss, r.Tested, r.ImagesPerSecond, 100*r.DataWaitShare, r.BoundBy, skipped)
}

// finite fails if a loss is no number.
func finite(what string, loss float64) error {
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return fmt.Errorf("the %s loss is %v: the run has diverged; lower -lr or set -clip-norm, and begin anew or from an earlier checkpoint", what, loss)
	}
	return nil
}

// openLog opens log.jsonl and locks it, so that no other run uses the folder.
func (t *trainer) openLog() (err error) {
	if err := os.MkdirAll(t.Out, 0o755); err != nil {
		return fmt.Errorf("-out: %w", err)
	}
	if t.log, err = os.OpenFile(filepath.Join(t.Out, "log.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return fmt.Errorf("-out: %w", err)
	}
	if lock(t.log) {
		return fmt.Errorf("-out: another run is writing to %s; give this one a folder of its own", t.Out)
	}
	return nil
}

// begin removes what the log has had since the checkpoint was saved, and says what will be trained.
// It comes last, when nothing has failed. A new run keeps the checkpoint of an earlier one.
func (t *trainer) begin() error {
	if !t.first() {
		return nil
	}
	if !t.Resume {
		if err := os.Rename(t.checkpointPath(), t.checkpointPath()+".previous"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	text, err := os.ReadFile(t.log.Name())
	if err == nil {
		kept := text[:min(t.Progress.Log, int64(len(text)))]
		err = t.log.Truncate(int64(bytes.LastIndexByte(kept, '\n') + 1))
	}
	if err != nil {
		return err
	}
	t.say(fmt.Sprintf("%s on %s, %s: %d images of %d classes from %s, %d epochs of %d steps", t.Model, t.group.Device(), t.DType,
		t.train.loader.Len()*t.group.World(), len(t.Classes), t.Data, t.Epochs, t.train.loader.Batches()))
	return t.write(saved{Config: t.Config, Classes: t.Classes})
}

// write adds a line to the log: the settings of a start, the loss of a step, or a Result.
func (t *trainer) write(v any) error {
	if !t.first() {
		return nil
	}
	return json.NewEncoder(t.log).Encode(v)
}
