package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// programFiles is the folder of the files that program.py writes.
type programFiles struct {
	c         *config
	s         switches
	folder    string
	temporary bool
}

// newProgramFiles uses the folder of -programs, or else makes a temporary one. It sets the switches
// of this process.
func (c *config) newProgramFiles() (*programFiles, error) {
	f := &programFiles{c: c, s: switches{benchmark: c.device.IsCUDA()}, folder: c.programs}
	var err error
	if f.folder == "" {
		f.temporary = true
		f.folder, err = os.MkdirTemp("", "bench-programs-")
	} else if f.folder, err = filepath.Abs(f.folder); err == nil {
		err = os.MkdirAll(f.folder, 0o777)
	}
	return f, errors.Join(err, f.s.set())
}

func (f *programFiles) close() {
	if f.temporary {
		os.RemoveAll(f.folder)
	}
}

func (f *programFiles) program(model string) string { return filepath.Join(f.folder, model+".pt2") }

func (f *programFiles) example(model string, batch int) string {
	return filepath.Join(f.folder, fmt.Sprintf("%s-%d.safetensors", model, batch))
}

func (f *programFiles) compiled(model string, batch int) string {
	return filepath.Join(f.folder, fmt.Sprintf("%s-%d.package.pt2", model, batch))
}

// whatFor has the kind of files that a mode of the peer needs, besides the program.
var whatFor = map[string]string{"compile": "compile", "aoti": "package"}

// A making is the work of a request that makes files.
type making struct {
	kind, model string
	batch       int // 0 for all batches
}

func (m making) String() string {
	if m.batch == 0 {
		return fmt.Sprintf("%s of %s", m.kind, m.model)
	}
	return fmt.Sprintf("%s of %s, batch %d", m.kind, m.model, m.batch)
}

// makingResult is what is noted of a making that has ended, also if it has failed.
type makingResult struct {
	Seconds float64
	Beside  int // how many makings ran at a time, this one included
	Error   string
}

func (f *programFiles) resultFile(m making) string {
	return filepath.Join(f.folder, fmt.Sprintf("%s-%d.%s.json", m.model, m.batch, m.kind))
}

// result returns what is noted of a making. It returns false if the making is not done.
func (f *programFiles) result(m making) (r makingResult, ok bool) {
	text, err := os.ReadFile(f.resultFile(m))
	return r, err == nil && json.Unmarshal(text, &r) == nil
}

// make makes the missing files of these models. Several processes of PyTorch work at the same time.
// It fails if a program cannot be exported. Other failures are noted.
func (f *programFiles) make(models []string, kinds map[string][]int) error {
	var missing []making
	for _, kind := range []string{"package", "compile", "export"} { // packages take longest
		for _, model := range models {
			for _, batch := range kinds[kind] {
				if m := (making{kind, model, batch}); !f.done(m) {
					missing = append(missing, m)
				}
			}
		}
	}
	// A making uses one core most of the time. Two cores are for the program and the system.
	jobs := min(len(missing), max(1, f.c.threads-2))
	queue := make(chan making)
	go func() {
		defer close(queue)
		for _, m := range missing {
			queue <- m
		}
	}()
	var wait sync.WaitGroup
	errs := make([]error, jobs)
	for i := range jobs {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for m := range queue {
				errs[i] = errors.Join(errs[i], f.one(m, jobs))
			}
		}()
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, model := range models {
		if r, ok := f.result(making{"export", model, 0}); !ok || r.Error != "" {
			return fmt.Errorf("export of %s: %s", model, r.Error)
		}
	}
	return nil
}

// done reports whether the files of a making are there. An export has also files of each batch.
func (f *programFiles) done(m making) bool {
	_, ok := f.result(m)
	if m.kind != "export" {
		return ok
	}
	for _, batch := range f.exportBatches() {
		if _, err := os.Stat(f.example(m.model, batch)); err != nil {
			return false
		}
	}
	return ok
}

// exportBatches returns the batch sizes of program/MODEL and of program/eager.
func (f *programFiles) exportBatches() []int {
	if batches := f.c.programBatches(); !slices.Contains(batches, 1) {
		return append([]int{1}, batches...)
	}
	return f.c.programBatches()
}

// one makes the files of a request in a process of its own. It notes a failure of PyTorch, and
// returns other ones.
func (f *programFiles) one(m making, jobs int) error {
	c := *f.c
	c.threads = max(1, f.c.threads/jobs)
	p, err := c.startPeer("program.py", f.s)
	if err != nil {
		return err
	}
	defer p.close()
	arguments := []any{"folder", f.folder, "model", m.model, "device", c.device.String(), "small", c.brief}
	if m.kind == "export" {
		arguments = append(arguments, "batches", f.exportBatches())
	} else {
		arguments = append(arguments, "batch", m.batch, "workers", c.threads)
	}
	r := makingResult{Beside: jobs}
	if err := p.do(&r, m.kind, arguments...); err != nil {
		r.Error = reason(err.Error())
	}
	c.tell(fmt.Sprintf("%v: %.0f s %s", m, r.Seconds, r.Error))
	text, err := json.Marshal(r)
	return errors.Join(err, os.WriteFile(f.resultFile(m), text, 0o666))
}

// reason returns the lines of a traceback, or of a compiler, that say what has failed.
func reason(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "Error: ") || strings.Contains(line, " error: ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if len(lines) == 0 {
		return strings.TrimSpace(text)
	}
	return fmt.Sprintf("%.1000s", strings.Join(lines[:min(3, len(lines))], "; "))
}

// stored returns the input of a batch on the device, and the output of the eager model. The caller
// closes the input.
func (f *programFiles) stored(model string, batch int) (in *cgotorch.Tensor, want []float32, err error) {
	file, err := safetensors.Open(f.example(model, batch))
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	err = cgotorch.DefaultStream(f.c.device).Do(func(x *cgotorch.Exec) error {
		read := func(name string) (*cgotorch.Tensor, error) {
			info, _ := file.Lookup(name)
			data, err := file.Read(name)
			if err != nil {
				return nil, err
			}
			dtype, _ := checkpoint.DType(info.DType)
			return cgotorch.FromBytes(x, data, dtype, info.Shape), nil
		}
		out, err := read("output")
		if err != nil {
			return err
		}
		want = cgotorch.ToSlice[float32](x, x.To(out, cgotorch.Float32))
		t, err := read("input")
		if err != nil {
			return err
		}
		if t.Dim() == 4 {
			t = x.Contiguous(t, cgotorch.ChannelsLast)
		}
		in = x.Keep(t)
		return nil
	})
	return in, want, err
}

// benchProgramMake makes the files of several models at once, into the folder of -programs. The
// rows of the models then need not wait for compilers.
func benchProgramMake(c *config, emit func(row)) error {
	if c.programs == "" {
		return errors.New("-programs must name a folder, in which the other rows find the files")
	}
	f, err := c.newProgramFiles()
	if err != nil {
		return err
	}
	kinds := c.kindsOfFiles()
	err = f.make(c.models, kinds)
	for _, model := range c.models {
		for _, kind := range []string{"compile", "package"} {
			for _, batch := range kinds[kind] {
				if r, ok := f.result(making{kind, model, batch}); ok && r.Error == "" {
					emit(alone(fmt.Sprintf("program/make/%s/%d/%s", model, batch, kind), r.Seconds, "s",
						fmt.Sprintf("in a process of its own, %d at a time; %s", r.Beside, c.settings())))
				}
			}
		}
	}
	return err
}
