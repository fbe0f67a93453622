// Command bench measures this library and its peers in the same run. It prints one JSON object
// for each row. The fields are name, value, unit, peer, peer_value, ratio and note. A ratio above
// 1 is better for this library. The note has the settings of both sides.
//
//	make bench                                benchmarks that take only minutes
//	make bench ARGS='-run op/'                benchmarks whose name matches
//	make bench ARGS='-run . -device cuda'     all benchmarks, on a GPU
//
// Blocks of work alternate between this library and the peer. The clock of a block stops after a
// wait for the device. A value is the median of its blocks. The note says how many blocks there
// were, and how far apart the quartiles are.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// benchmark makes rows. A slow benchmark runs only if -run is given and matches its name.
type benchmark struct {
	name string
	slow bool
	run  func(c *config, emit func(row)) error
}

var benchmarks = []benchmark{
	{name: "op/add", run: benchOp},
	{name: "train/cifar", run: benchTrainCIFAR},
	{name: "parity/cifar/first-100-losses", run: benchLosses},
	{name: "memory/resnet50", slow: true, run: benchMemory},
	{name: "step/resnet50", slow: true, run: benchStep},
	{name: "loader/photos-1-core", run: benchLoaderOneCore},
	{name: "loader/photos-all-cores", slow: true, run: benchLoaderAllCores},
	{name: "loader/train/32", slow: true, run: benchLoaderTrain(32)},
	{name: "loader/train/256", slow: true, run: benchLoaderTrain(256)},
	{name: "graph/train/resnet50/32", slow: true, run: benchGraphTrain("resnet50", 32)},
	{name: "graph/train/resnet50/128", slow: true, run: benchGraphTrain("resnet50", 128)},
	{name: "graph/train/resnet50/256", slow: true, run: benchGraphTrain("resnet50", 256)},
	{name: "graph/train/resnet18/32", slow: true, run: benchGraphTrain("resnet18", 32)},
	{name: "graph/train/resnet18/64", slow: true, run: benchGraphTrain("resnet18", 64)},
	{name: "graph/train/mobilenet_v2/32", slow: true, run: benchGraphTrain("mobilenet_v2", 32)},
	{name: "graph/train/mobilenet_v2/64", slow: true, run: benchGraphTrain("mobilenet_v2", 64)},
	{name: "graph/train/vit_b_16/64", slow: true, run: benchGraphTrain("vit_b_16", 64)},
	{name: "graph/inference/resnet18", slow: true, run: benchInference("resnet18")},
	{name: "graph/inference/resnet50", slow: true, run: benchInference("resnet50")},
	{name: "graph/inference/mobilenet_v2", slow: true, run: benchInference("mobilenet_v2")},
	{name: "graph/inference/googlenet", slow: true, run: benchInference("googlenet")},
	{name: "graph/inference/inception_v3", slow: true, run: benchInference("inception_v3")},
	{name: "program/bert", slow: true, run: benchProgram("bert")},
	{name: "program/resnet50", slow: true, run: benchProgram("resnet50")},
	{name: "text/llama-1b", slow: true, run: benchText("1b")},
	{name: "text/llama-8b", slow: true, run: benchText("8b")},
	{name: "text/load", slow: true, run: benchTextLoad},
	{name: "text/experts", slow: true, run: benchExperts},
	{name: "text/callers-8b", slow: true, run: benchCallers},
	{name: "text/arrivals-8b", slow: true, run: benchArrivals},
	{name: "text/transformers-8b", slow: true, run: benchTransformers},
	{name: "text/http-8b", slow: true, run: benchTextHTTP},
	{name: "text/embeddings", slow: true, run: benchEmbeddings},
	{name: "serve", slow: true, run: benchServe},
	{name: "serve/http", slow: true, run: benchServeHTTP},
	{name: "distributed/resnet50/32", slow: true, run: benchDistributed(32)},
	{name: "distributed/resnet50/256", slow: true, run: benchDistributed(256)},
	{name: "distributed/resnet50/fed", slow: true, run: benchDistributedFed},
}

// config holds the values of the flags.
type config struct {
	device      cgotorch.Device
	threads     int
	data        string
	photographs string
	members     int
	python      string
	rounds      int
	core        string // the only core that peers may use; all if it is empty
	brief       bool
	compile     bool // whether torch.compile is measured too
	engines     bool // whether JPEG engines decode in our loader/train
	profile     string
}

func main() {
	var c config
	device := flag.String("device", "cpu", "cpu or cuda")
	run := flag.String("run", "", "regular expression of the benchmarks to run; without it those that take minutes at most")
	list := flag.Bool("list", false, "print the benchmarks' names and leave")
	flag.IntVar(&c.threads, "threads", runtime.NumCPU(), "threads that one operator may use on the CPU, on both sides")
	flag.StringVar(&c.data, "data", "", "folders with the archives, separated by colons; if empty, examples/train/data, data, and the folders data beside the program and above it")
	flag.StringVar(&c.python, "python", os.Getenv("PEER_PYTHON"), "the Python that has PyTorch; $PEER_PYTHON, else python3")
	flag.StringVar(&c.photographs, "photographs", "", "a .tgz of photographs in folders by class, used in place of imagenet-sample-300.tgz")
	flag.IntVar(&c.members, "members", 16384, "photographs in the archives of loader/train and distributed/resnet50/fed")
	flag.IntVar(&c.rounds, "rounds", 0, "rounds of each comparison; 0 means each benchmark's own number")
	serving := flag.Bool("serve", false, "answer requests on standard input: how our side runs in a process of its own")
	flag.BoolVar(&c.compile, "compile", true, "measure torch.compile too, which takes a minute a row")
	flag.BoolVar(&c.engines, "jpeg-engines", false, "in loader/train, let the GPU's JPEG engines decode beside our threads")
	printed := flag.String("table", "", "a file of rows that an earlier run has printed: print them as a table in Markdown")
	flag.BoolVar(&c.brief, "brief", false, "one round of a few steps each, to see that all runs; the figures mean nothing")
	flag.StringVar(&c.profile, "profile", "", "write a CPU profile of this process to that file, of one benchmark")
	flag.Parse()
	if flag.NArg() > 0 {
		fail(2, fmt.Errorf("%q is no flag; the benchmarks are chosen by -run", flag.Arg(0)))
	}
	if *serving {
		if err := answerRequests(os.Stdin, os.Stdout); err != nil {
			fail(1, err)
		}
		return
	}
	if *printed != "" {
		if err := writeTable(*printed, os.Stdout); err != nil {
			fail(1, err)
		}
		return
	}
	if *list {
		for _, b := range benchmarks {
			fmt.Println(b.name)
		}
		return
	}
	var err error
	if c.device, err = cgotorch.ParseDevice(*device); err != nil {
		fail(2, err)
	}
	names, err := choose(*run)
	if err != nil {
		fail(2, err)
	}
	switch {
	case len(names) == 1:
		if err := runOne(&c, names[0]); err != nil {
			fail(1, fmt.Errorf("%s: %w", names[0], err))
		}
	case !runEach(names):
		os.Exit(1)
	}
}

// choose returns the names that match the pattern, or without a pattern those that are not slow.
func choose(pattern string) (names []string, err error) {
	chosen, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	for _, b := range benchmarks {
		if (pattern != "" || !b.slow) && chosen.MatchString(b.name) {
			names = append(names, b.name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no benchmark's name matches %q; -list prints them", pattern)
	}
	return names, nil
}

func runOne(c *config, name string) error {
	if err := errors.Join(cgotorch.SetThreads(c.threads), c.device.Check()); err != nil {
		return err
	}
	if c.profile != "" {
		f, err := os.Create(c.profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		defer pprof.StopCPUProfile()
	}
	began := time.Now()
	fmt.Fprintf(os.Stderr, "bench: %s\n", name)
	i := slices.IndexFunc(benchmarks, func(b benchmark) bool { return b.name == name })
	err := benchmarks[i].run(c, func(r row) { r.write(os.Stdout) })
	if err == nil {
		fmt.Fprintf(os.Stderr, "bench: %s took %.0f s\n", name, time.Since(began).Seconds())
	}
	return err
}

// runEach runs each benchmark in its own process. A benchmark then does not depend on the memory,
// threads and settings of another one.
func runEach(names []string) bool {
	ok := true
	for _, name := range names {
		arguments := slices.Concat(os.Args[1:], []string{"-run", "^" + regexp.QuoteMeta(name) + "$"})
		command := exec.Command("/proc/self/exe", arguments...)
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
		if err := command.Run(); err != nil {
			ok = false
		}
	}
	return ok
}

func fail(code int, err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(code)
}

// tell prints the log text of a Captured, a Choice or an Overlap.
func (c *config) tell(text string) { fmt.Fprintln(os.Stderr, "bench:", text) }

// settings returns a text with the settings that both sides share.
func (c *config) settings() string {
	return fmt.Sprintf("device %v, %d threads, LibTorch %s", c.device, c.threads, cgotorch.LibTorchVersion())
}

// kind returns the name that a row has for the device.
func (c *config) kind() string {
	if c.device.IsCUDA() {
		return "cuda"
	}
	return "cpu"
}

// dtype returns the dtype of models in inference: bfloat16 on a GPU, float32 on the CPU.
func (c *config) dtype() cgotorch.DType {
	if c.device.IsCUDA() {
		return cgotorch.BFloat16
	}
	return cgotorch.Float32
}

// or returns `number`. In a brief run it returns `brief` instead.
func (c *config) or(brief, number int) int {
	if c.brief {
		return brief
	}
	return number
}

// roundsOr returns the number of rounds: the value of -rounds if it is set, else 1 in a brief
// run, else `own`.
func (c *config) roundsOr(own int) int {
	switch {
	case c.rounds > 0:
		return c.rounds
	case c.brief:
		return 1
	}
	return own
}
