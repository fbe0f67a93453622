// Record-cifar trains a network on CIFAR-10, in as little time as possible from the start of the
// process to the test accuracy.
//
//	go run ./examples/record-cifar -data DIR -seeds 5  # cifar10-train.tgz, cifar10-test.tgz in DIR
//	go run ./examples/record-cifar -device cpu -limit 2000 -epochs 1 -batch 100 -widths 16,32,32
//
// The recipe is airbench94 of Keller Jordan: "94% on CIFAR-10 in 3.29 Seconds on a Single GPU",
// arXiv:2404.00498, and github.com/KellerJordan/cifar10-airbench. All its numbers come from there:
// the network and its first weights, the optimizer and its schedule, the augmentations of training
// and test. Two things differ. The weights are float32 under autocast, where the recipe has float16
// weights. The images are JPEG files: CIFAR-10's common JPEG copies have quality 75 and half the
// resolution in colours, which costs accuracy. bench/record_cifar.py is the same recipe in PyTorch.
// Equal seeds have equal losses there and here. The code is this library's own.
//
// The published time begins when the images are on the GPU and the program is warm. The time of
// this program begins when the process begins. It ends at the line with the accuracy. A table says
// where the time went. With -seeds each seed runs in a process of its own, one after another. One
// more process only opens the device. Its time is the floor.
//
// The training step is one CUDA graph: it selects, shifts, mirrors and normalises the images of a
// batch, and runs the network, its backward and the optimizer. trainer.go has the step.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
)

// Config holds the values of the flags.
type Config struct {
	Data      string
	Device    string
	DType     string
	Seed      uint64
	Epochs    float64
	Batch     int
	LR        float64
	Widths    string
	TTA       int
	Limit     int
	Graph     bool
	Fused     bool
	Benchmark bool
	Losses    int
	Verbose   bool
	Floor     bool

	widths [3]int
}

func main() {
	c := newClock()
	var config Config
	flag.StringVar(&config.Data, "data", defaultData(), "folder with cifar10-train.tgz and cifar10-test.tgz, or one archive of train/CLASS/FILE and test/CLASS/FILE")
	flag.StringVar(&config.Device, "device", "auto", "auto, cpu, cuda or cuda:N")
	flag.StringVar(&config.DType, "dtype", "", "float32; bfloat16 or float16 for autocast; empty: bfloat16 on a GPU, else float32")
	flag.Uint64Var(&config.Seed, "seed", 1, "equal seeds give equal weights, order, shifts and flips")
	seeds := flag.Int("seeds", 1, "run so many seeds, from -seed up, each in a process of its own")
	flag.Float64Var(&config.Epochs, "epochs", 9.9, "times through the training images")
	flag.IntVar(&config.Batch, "batch", 1024, "images a step")
	flag.Float64Var(&config.LR, "lr", 11.5, "highest learning rate for 1024 images")
	flag.StringVar(&config.Widths, "widths", "64,256,256", "channels of the three groups of layers; multiples of 8 for the library's kernels")
	flag.IntVar(&config.TTA, "tta", 2, "views of a test image: 0: the image, 1: its mirror image too, 2: both shifted too")
	flag.IntVar(&config.Limit, "limit", 0, "use so many images of each part; 0: all")
	flag.BoolVar(&config.Graph, "graph", true, "on a GPU, capture the step as a CUDA graph and launch that")
	flag.BoolVar(&config.Fused, "fused", true, "on a GPU, use this library's kernels for norms; the first process compiles them")
	flag.BoolVar(&config.Benchmark, "benchmark", false, "let cuDNN try its algorithms for each convolution")
	flag.BoolVar(&config.Floor, "floor", false, "only open the device and print the time: no program with these libraries is faster; -seeds above 1 measures it too")
	flag.IntVar(&config.Losses, "losses", 0, "write the losses of so many steps to standard error")
	flag.BoolVar(&config.Verbose, "v", false, "say what is captured, on standard error")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := config.complete(*seeds)
	switch {
	case err != nil:
	case config.Floor:
		err = runFloor(c, config)
	case *seeds > 1:
		err = runSeeds(ctx, config.Seed, *seeds)
	default:
		err = runSeed(ctx, c, config)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "record-cifar:", err)
		os.Exit(1)
	}
}

// complete checks the values of the flags.
func (c *Config) complete(seeds int) error {
	if n, err := fmt.Sscanf(c.Widths, "%d,%d,%d", &c.widths[0], &c.widths[1], &c.widths[2]); n != 3 || err != nil || min(c.widths[0], c.widths[1], c.widths[2]) < 1 {
		return fmt.Errorf("-widths %s: three numbers from 1 up, such as 64,256,256", c.Widths)
	}
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; flags begin with -", flag.Arg(0))
	case c.DType != "" && c.DType != "float32" && c.DType != "bfloat16" && c.DType != "float16":
		return fmt.Errorf("-dtype %s: use float32, bfloat16 or float16", c.DType)
	case seeds < 1:
		return fmt.Errorf("-seeds %d: at least 1", seeds)
	case !(c.Epochs > 0) || math.IsInf(c.Epochs, 0):
		return fmt.Errorf("-epochs %v: above 0", c.Epochs)
	case c.Batch < 2:
		return fmt.Errorf("-batch %d: at least 2", c.Batch)
	case !(c.LR > 0) || math.IsInf(c.LR, 0):
		return fmt.Errorf("-lr %v: above 0", c.LR)
	case c.TTA < 0 || c.TTA > 2:
		return fmt.Errorf("-tta %d: 0, 1 or 2", c.TTA)
	case c.Losses < 0:
		return fmt.Errorf("-losses %d: from 0 up", c.Losses)
	case c.Limit < 0:
		return fmt.Errorf("-limit %d: from 0 up", c.Limit)
	}
	return nil
}

// runSeed trains in this process, and prints the accuracy, the table and one JSON object.
func runSeed(ctx context.Context, c *clock, config Config) error {
	r, err := run(ctx, c, config)
	if err != nil {
		return err
	}
	printPhases(os.Stdout, r.Phases)
	return printJSON(r)
}

// runFloor opens the device and does nothing else.
func runFloor(c *clock, config Config) (err error) {
	t := &trainer{Config: config, clock: c, to: target{opened: make(chan struct{})}}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.open(); err != nil {
		return err
	}
	r := &result{Seconds: c.seconds(), Clock: c.from, Phases: c.table()}
	fmt.Printf("floor: %.3f s after the start of the process the device is open\n", r.Seconds)
	printPhases(os.Stdout, r.Phases)
	return printJSON(r)
}

func printJSON(v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		fmt.Println(string(text))
	}
	return err
}

// log writes a text of the captured step.
func (t *trainer) log(text string) {
	if t.Verbose {
		fmt.Fprintf(os.Stderr, "%.3f s: %s\n", t.clock.seconds(), text)
	}
}

// defaultData returns the path of the archive of examples/train, or of its copy in the folder
// `data` beside the executable.
func defaultData() string {
	const name = "cifar10-10k.tgz"
	_, file, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(file), "..", "train", "data", name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if own, err := os.Executable(); err == nil {
			return filepath.Join(filepath.Dir(own), "data", name)
		}
	}
	return path
}
