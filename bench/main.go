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

var benchmarks = append([]benchmark{
	{name: "op/add", run: benchOp},
	{name: "train/cifar", run: benchTrainCIFAR},
	{name: "parity/cifar/first-100-losses", run: benchLosses},
	{name: "parity/cifar/top1", slow: true, run: benchTop1},
	{name: "parity/photographs/losses", slow: true, run: benchPhotographsLosses},
	{name: "parity/photographs/gradients", slow: true, run: benchGradients},
	{name: "parity/cifar/losses-bfloat16", slow: true, run: benchCIFARLosses},
	{name: "memory/resnet50", run: benchMemory},
	{name: "flat/batches", run: benchFlat},
	{name: "step/resnet50", slow: true, run: benchStep},
	{name: "prefetch/224x224", slow: true, run: benchPrefetch},
	{name: "loader/photos-1-core", run: benchLoaderOneCore},
	{name: "loader/photos-all-cores", slow: true, run: benchLoaderAllCores},
	{name: "loader/decode", slow: true, run: benchLoaderDecode},
	{name: "loader/device", slow: true, run: benchLoaderDevice},
	{name: "loader/train", slow: true, run: benchLoaderTrain},
	{name: "loader/table", run: benchTable},
	{name: "loader/csv", slow: true, run: benchFile("csv")},
	{name: "loader/parquet", slow: true, run: benchFile("parquet")},
	{name: "graph/inference/resnet18", slow: true, run: benchGraphInference("resnet18")},
	{name: "graph/inference/resnet50", slow: true, run: benchGraphInference("resnet50")},
	{name: "graph/inference/mobilenet_v2", slow: true, run: benchGraphInference("mobilenet_v2")},
	{name: "graph/fed", slow: true, run: benchGraphFed},
	{name: "graph/written", slow: true, run: benchWritten},
	{name: "serve", slow: true, run: benchServe},
	{name: "serve/open", slow: true, run: benchServeOpen},
	{name: "serve/http", slow: true, run: benchServeWire("http")},
	{name: "serve/grpc", slow: true, run: benchServeWire("grpc")},
	{name: "serve/jpeg", slow: true, run: benchServeJPEG},
	{name: "serve/litserve", slow: true, run: benchServeLitServe},
	{name: "distributed/resnet50/32", slow: true, run: benchDist(32)},
	{name: "distributed/resnet50/256", slow: true, run: benchDist(256)},
	{name: "distributed/resnet50/fed", slow: true, run: benchDistFed},
	{name: "overlap/step", slow: true, run: benchOverlapStep},
	{name: "parallel/models/googlenet", slow: true, run: benchParallelModel("googlenet")},
	{name: "parallel/models/inception_v3", slow: true, run: benchParallelModel("inception_v3")},
	{name: "modules/overlap", slow: true, run: benchModulesOverlap},
	{name: "modules/rounds", slow: true, run: benchModulesRounds},
}, slices.Concat(trainBenchmarks(), programBenchmarks())...)

// config holds the values of the flags.
type config struct {
	device      cgotorch.Device
	threads     int
	data        string
	photographs string
	members     int
	python      string
	rounds      int
	brief       bool
	compile     bool // whether torch.compile is measured too
	programs    string
	models      modelList
	batches     batchList
	packages    batchList // those of batches for which packages of AOTInductor are measured too
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
	flag.IntVar(&c.members, "members", 16384, "photographs in the archive of graph/fed")
	flag.IntVar(&c.rounds, "rounds", 0, "rounds of each comparison; 0 means each benchmark's own number")
	serving := flag.Bool("serve", false, "answer requests on standard input: how loader/ runs our side in a process of its own")
	flag.BoolVar(&c.compile, "compile", true, "measure torch.compile too, in graph/ and program/, which takes a minute a row")
	printed := flag.String("table", "", "a file of rows that an earlier run has printed: print them as a table in Markdown")
	c.programFlags()
	flag.BoolVar(&c.brief, "brief", false, "one round of a few steps each, to see that all runs; the figures mean nothing")
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
	chosen, err := regexp.Compile(*run)
	if err != nil {
		fail(2, err)
	}
	var names []string
	for _, b := range benchmarks {
		if (*run != "" || !b.slow) && chosen.MatchString(b.name) {
			names = append(names, b.name)
		}
	}
	switch {
	case len(names) == 0:
		fail(2, fmt.Errorf("no benchmark's name matches %q; -list prints them", *run))
	case len(names) == 1:
		if err := runOne(&c, names[0]); err != nil {
			fail(1, fmt.Errorf("%s: %w", names[0], err))
		}
	case !runEach(names):
		os.Exit(1)
	}
}

func runOne(c *config, name string) error {
	if err := errors.Join(cgotorch.SetThreads(c.threads), c.device.Check()); err != nil {
		return err
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
