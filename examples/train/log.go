package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// log writes the results of a run. A line for each epoch goes to standard output, JSON lines go to
// log.jsonl, and the curves go to curves.png. A nil log, of a rank that writes none, does nothing.
type log struct {
	file *os.File
	out  string
}

// openLog opens log.jsonl and locks it, so that no other run uses the folder.
func openLog(out string) (*log, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("-out: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(out, "log.jsonl"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("-out: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		f.Close()
		return nil, fmt.Errorf("-out: another run is writing to %s; give this one a folder of its own", out)
	}
	return &log{file: f, out: out}, nil
}

// begin prepares the log and writes its first line. For a new run it first removes all lines. For
// a resumed run it first removes the lines that were written after the checkpoint.
func (l *log) begin(t *trainer) error {
	if l == nil {
		return nil
	}
	if err := l.keep(t); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s on %s, %s: %d images of %d classes from %s, %d epochs of %d steps\n",
		t.Model, t.device, t.DType, t.train.loader.Len()*t.group.World(), len(t.train.loader.Classes()), t.Data, t.Epochs, t.train.loader.Batches())
	return l.line(struct {
		Config  *Config  `json:"config"`
		Classes []string `json:"classes"`
	}{t.Config, t.train.loader.Classes()})
}

func (l *log) keep(t *trainer) error {
	var kept []byte
	if t.Resume {
		text, err := io.ReadAll(l.file)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			var of struct {
				Step  int      `json:"step"`
				Loss  *float64 `json:"loss"`
				Epoch int      `json:"epoch"`
			}
			if json.Unmarshal(line, &of) != nil || of.Loss != nil && of.Step >= t.progress.Step || of.Epoch > t.progress.Epoch {
				continue
			}
			kept = append(kept, line...)
		}
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	if _, err := l.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := l.file.Write(kept)
	return err
}

func (l *log) line(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = l.file.Write(append(text, '\n'))
	return err
}

// lossLog writes the loss of a step after the program has enqueued the next step.
type lossLog struct {
	step int
	loss *cgotorch.HostRead // nil if there is no loss to write
}

// next stores the loss of a step, which may be nil. It writes the loss that was stored before.
func (l *lossLog) next(t *trainer, step int, loss *cgotorch.HostRead) error {
	last := *l
	l.step, l.loss = step, loss
	if last.loss == nil {
		return nil
	}
	defer last.loss.Close()
	value, err := last.loss.Item()
	if err != nil {
		return fmt.Errorf("step %d: %w", last.step, err)
	}
	return t.log.step(last.step, value)
}

// close writes the last loss that was stored.
func (l *lossLog) close(t *trainer) error { return l.next(t, 0, nil) }

func (l *log) step(step int, loss float64) error {
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return fmt.Errorf("the loss is %v: the run has diverged; lower -lr or set -clip-norm", loss)
	}
	return l.line(struct {
		Step int     `json:"step"`
		Loss float64 `json:"loss"`
	}{step, loss})
}

// worthSaying is a share of the training time. The log explains why the loader was slow if the
// device waited for data during at least this share.
const worthSaying = 0.02

func (l *log) epoch(e Epoch, t *trainer) error {
	if l == nil {
		return nil
	}
	test := ""
	if e.Tested != nil {
		test = fmt.Sprint("  ", e.Tested)
	}
	skipped := ""
	if e.Skipped > 0 {
		skipped = fmt.Sprintf("  %d unreadable images skipped", e.Skipped)
	}
	bound := ""
	if e.DataWaitShare >= worthSaying {
		bound = fmt.Sprintf(" (bound by: %s; with an infinitely fast loader this would be %.0f images/s)", e.BoundBy, e.ImagesPerSecond/(1-e.DataWaitShare))
	}
	_, err := fmt.Printf("epoch %d/%d  train loss %.4f%s  %.0f images/s  %.1f %% waiting for data%s%s\n",
		e.Epoch, t.Epochs, e.TrainLoss, test, e.ImagesPerSecond, 100*e.DataWaitShare, bound, skipped)
	return errors.Join(err, l.line(e))
}

// finish prints one JSON object as the last line of standard output, and draws the curves. If
// there was no test, top1, top5 and test_loss are null.
func (l *log) finish(history []Epoch) error {
	if l == nil {
		return nil
	}
	last := history[len(history)-1]
	var images, seconds, stall float64
	skipped := 0
	for _, e := range history {
		skipped += e.Skipped
		images += e.ImagesPerSecond * e.Seconds
		seconds += e.Seconds
		stall += e.DataWaitShare * e.Seconds
	}
	var top1, top5, testLoss *float64
	if last.Tested != nil {
		top1, top5, testLoss = &last.Top1, &last.Top5, &last.TestLoss
	}
	err := printJSON(struct {
		Top1            *float64 `json:"top1"`
		Top5            *float64 `json:"top5"`
		TestLoss        *float64 `json:"test_loss"`
		TrainLoss       float64  `json:"train_loss"`
		Epochs          int      `json:"epochs"`
		Steps           int      `json:"steps"`
		ImagesPerSecond float64  `json:"images_per_second"`
		DataWaitShare   float64  `json:"data_wait_share"`
		Seconds         float64  `json:"seconds"`
		Skipped         int      `json:"skipped"`
	}{top1, top5, testLoss, last.TrainLoss, last.Epoch, last.Step, images / seconds, stall / seconds, seconds, skipped})
	if err != nil {
		return err
	}
	return drawCurves(filepath.Join(l.out, "curves.png"), history)
}

func (l *log) close() {
	if l != nil {
		l.file.Close()
	}
}
