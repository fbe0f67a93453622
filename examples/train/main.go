// Train trains an image classifier on an archive or folder of labelled images.
//
//	go run ./examples/train  # ResNet-20 on the CIFAR-10 images beside this file
//	go run ./examples/train -data my.tgz -model resnet50  # yours: TRAIN/CLASS/FILE, TEST/CLASS/FILE
//	go run ./examples/train -resume  # continue the last run
//	go run ./examples/train -evaluate runs/train/checkpoint.safetensors  # test only
//	torchrun --no-python --nproc-per-node 4 build/bin/train  # on four GPUs
//
// A launcher that starts the ranks again after a failure, as torchrun --max-restarts does, needs no
// -resume: the run goes on from the checkpoint that has its name, see distributed.RunName. -resume
// goes on with any number of ranks.
//
// You can copy this folder and change it. train.go has the training step.
//
// One line for each epoch goes to standard output, and one JSON object at the end. The folder that
// -out names gets checkpoint.safetensors and log.jsonl. A new run keeps the checkpoint that was
// there as checkpoint.safetensors.previous. Ctrl-C ends the running step, saves a checkpoint and
// ends the program.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// Config holds the values of the flags. A checkpoint saves the fields that have a JSON name.
type Config struct {
	Model     string  `json:"model"`
	Data      string  `json:"data"`
	TestData  string  `json:"test_data"`
	TrainPart string  `json:"train_part"`
	TestPart  string  `json:"test_part"`
	Limit     int     `json:"limit"`
	Size      int     `json:"size"`
	Crop      string  `json:"crop"` // pad or resized, see chooseCrop
	Epochs    int     `json:"epochs"`
	BatchSize int     `json:"batch"`
	LR        float64 `json:"lr"`
	ClipNorm  float64 `json:"clip_norm"`
	DType     string  `json:"dtype"`
	TF32      bool    `json:"tf32"`
	Seed      uint64  `json:"seed"`
	SkipRate  float64 `json:"skip_rate"`

	Device   string        `json:"-"`
	Engines  bool          `json:"-"`
	Out      string        `json:"-"`
	Resume   bool          `json:"-"`
	Weights  string        `json:"-"`
	Evaluate string        `json:"-"`
	StepLog  bool          `json:"-"`
	Trace    string        `json:"-"`
	Timeout  time.Duration `json:"-"`
}

func (c *Config) flags() {
	flag.StringVar(&c.Model, "model", "resnet20", "one of "+strings.Join(vision.Names(), ", "))
	flag.StringVar(&c.Data, "data", "examples/train/data/cifar10-10k.tgz", "archive (.tgz, .tar), folder, or pattern of several, such as train-{000..127}.tar; the label is an image's folder or, in a WebDataset, its .cls or .json")
	flag.StringVar(&c.TestData, "test-data", "", "the same for the images to test on; empty: those in -data")
	flag.StringVar(&c.TrainPart, "train-part", "train", "folder in -data of the images to train on; empty for all")
	flag.StringVar(&c.TestPart, "test-part", "test", "folder of the images to test on; empty for all of -test-data, and for no test without that")
	flag.IntVar(&c.Limit, "limit", 0, "take only so many images to train on, and so many to test on, the first of the archive; 0: all")
	flag.IntVar(&c.Size, "size", 0, "height and width of the model's input; 0: what the model is made for")
	flag.IntVar(&c.Epochs, "epochs", 8, "times through the training images")
	flag.IntVar(&c.BatchSize, "batch", 128, "images a step, of all ranks together; rounded up to a multiple of their number")
	flag.Float64Var(&c.LR, "lr", 0.2, "highest learning rate of the one-cycle schedule")
	flag.Float64Var(&c.ClipNorm, "clip-norm", 0, "greatest global norm of the gradients; 0: no limit")
	flag.StringVar(&c.Device, "device", "auto", "auto, cpu, cuda or cuda:N")
	flag.StringVar(&c.DType, "dtype", "float32", "float32; bfloat16 or float16 for autocast, float16 with gradient scaling")
	flag.BoolVar(&c.TF32, "tf32", false, "float32 matrix products may round their inputs to 10 bits of fraction on a GPU, as convolutions do there")
	flag.Uint64Var(&c.Seed, "seed", 1, "equal seeds give equal weights, order and crops")
	flag.Float64Var(&c.SkipRate, "skip-rate", 0, "share of unreadable images that is passed over instead of ending the run")
	flag.BoolVar(&c.Engines, "jpeg-engines", false, "the JPEG engines of a GPU decode some of the images to train on, to the same pixels; for hosts with few cores for their GPU")
	flag.StringVar(&c.Out, "out", filepath.Join("runs", "train"), "folder for the checkpoint and the log")
	flag.BoolVar(&c.Resume, "resume", false, "continue from the checkpoint in -out, with the settings saved there; flags beside it come first")
	flag.StringVar(&c.Weights, "weights", "", "a .safetensors or .pth file with the first weights, such as a torchvision state dict; with other classes, all but the last layer")
	flag.StringVar(&c.Evaluate, "evaluate", "", "train nothing: print loss, top-1 and top-5 of this checkpoint on the test images, with the settings saved there; a .safetensors or .pth file of weights alone needs -model")
	flag.BoolVar(&c.StepLog, "log-steps", false, "log the loss of every step too")
	flag.DurationVar(&c.Timeout, "timeout", 30*time.Second, "of several ranks: how long they wait for one that is lost, or busy alone, as with the index of an archive; then they end")
	flag.StringVar(&c.Trace, "trace", "", "file for a trace of steps 10 to 29, or of the first epoch if that is shorter, which ui.perfetto.dev opens; on the CPU it has the steps' marks alone")
}

// interrupted is the error of a run that a signal has ended, on this rank or on another one.
type interrupted syscall.Signal

func (s interrupted) Error() string { return "interrupted" }

// The errors of the library name its options. flagNames has the flags of this program that set
// them.
var flagNames = strings.NewReplacer("Options.Reading.MaxSkipRate", "-skip-rate", "Options.BatchSize", "-batch",
	"Options.Split", "-train-part or -test-part", "Options.Limit", "-limit", "Options.Reading.AllowTruncated", "another copy of it")

func main() {
	var c Config
	c.flags()
	flag.Parse()
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		received := (<-signals).(syscall.Signal)
		signal.Stop(signals) // a second Ctrl-C ends the program at once
		cancel(interrupted(received))
	}()
	start := train
	if c.Evaluate != "" {
		start = evaluate
	}
	err := start(ctx, &c)
	var received interrupted
	switch {
	case errors.As(err, &received):
		os.Exit(128 + int(received)) // as shells count
	case err != nil:
		fmt.Fprintln(os.Stderr, "train:", flagNames.Replace(err.Error()))
		os.Exit(1)
	}
}

// check fails for a flag that the library would take for a default, or not see at once.
func (c *Config) check() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; flags begin with -", flag.Arg(0))
	case c.Epochs < 1:
		return fmt.Errorf("-epochs %d: at least 1", c.Epochs)
	case c.BatchSize < 1:
		return fmt.Errorf("-batch %d: at least 1", c.BatchSize)
	case !(c.LR > 0):
		return fmt.Errorf("-lr %v: above 0", c.LR)
	case !(c.ClipNorm >= 0):
		return fmt.Errorf("-clip-norm %v: from 0 up", c.ClipNorm)
	}
	return nil
}
