package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// log writes what a run tells: a bar on standard error, a line an epoch on standard output, JSON lines in log.jsonl, and the
// picture of the curves.
type log struct {
	file    *os.File
	out     string
	classes int
}

func openLog(t *trainer) (*log, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if t.Resume {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	f, err := os.OpenFile(filepath.Join(t.Out, "log.jsonl"), flags, 0o644)
	if err != nil {
		return nil, err
	}
	l := &log{file: f, out: t.Out, classes: len(t.train.loader.Classes())}
	fmt.Fprintf(os.Stderr, "%s on %s, %s: %d images of %d classes from %s, %d epochs of %d steps\n",
		t.Model, t.device, t.DType, t.train.loader.Len(), l.classes, t.Data, t.Epochs, t.stepsPerEpoch())
	return l, l.line(struct {
		Config  Config   `json:"config"`
		Classes []string `json:"classes"`
	}{t.Config, t.train.loader.Classes()})
}

func (l *log) line(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = l.file.Write(append(text, '\n'))
	return err
}

// startBar shows images a second and the time left of the epoch; nothing where standard error is no terminal.
func (l *log) startBar(t *trainer) *progressbar.ProgressBar {
	return progressbar.NewOptions(t.train.loader.Len(),
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetVisibility(term.IsTerminal(int(os.Stderr.Fd()))),
		progressbar.OptionSetDescription(fmt.Sprintf("epoch %d of %d", t.progress.Epoch+1, t.Epochs)),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("images"),
		progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish())
}

func (l *log) step(step int, loss float64) error {
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return fmt.Errorf("the loss is %v: the run has diverged; lower -lr or set -clip-norm", loss)
	}
	return l.line(struct {
		Step int     `json:"step"`
		Loss float64 `json:"loss"`
	}{step, loss})
}

func (l *log) epoch(e Epoch, t *trainer) error {
	test := ""
	if t.test != nil {
		test = fmt.Sprintf("  test loss %.4f  top-1 %.2f %%  top-5 %.2f %%", e.TestLoss, 100*e.Top1, 100*e.Top5)
	}
	fmt.Printf("epoch %d/%d  train loss %.4f%s  %.0f images/s  %.1f %% waiting for data\n",
		e.Epoch, t.Epochs, e.TrainLoss, test, e.ImagesPerSecond, 100*e.DataWaitShare)
	return l.line(e)
}

// finish draws the curves and ends standard output with one JSON object.
func (l *log) finish(history []Epoch) error {
	if err := drawCurves(filepath.Join(l.out, "curves.png"), history); err != nil {
		return err
	}
	last := history[len(history)-1]
	var images, seconds, stall float64
	for _, e := range history {
		images += e.ImagesPerSecond * e.Seconds
		seconds += e.Seconds
		stall += e.DataWaitShare * e.Seconds
	}
	text, err := json.Marshal(struct {
		Top1            float64 `json:"top1"`
		Top5            float64 `json:"top5"`
		TestLoss        float64 `json:"test_loss"`
		TrainLoss       float64 `json:"train_loss"`
		Epochs          int     `json:"epochs"`
		Steps           int     `json:"steps"`
		ImagesPerSecond float64 `json:"images_per_second"`
		DataWaitShare   float64 `json:"data_wait_share"`
		Seconds         float64 `json:"seconds"`
	}{last.Top1, last.Top5, last.TestLoss, last.TrainLoss, last.Epoch, last.Step, images / seconds, stall / seconds, seconds})
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	return nil
}

func (l *log) close() { l.file.Close() }
