package aoti

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
)

// Options choose what [Load] loads. The zero value loads the only model of a package with four
// lanes.
type Options struct {
	Model string // the name of the model, if the package holds several; "" means the only one
	Lanes int    // number of calls that can be enqueued at the same time; 0 means 4; some need 1: see [Load]
}

// A Package is a compiled model on one device. Any number of goroutines may call Forward at once,
// each in its own Do.
//
// A Package has lanes. A lane is an instance of the compiled model, which one call at a time can
// use. A call keeps its lane until its work is enqueued, and does not wait for other calls' work on
// the device. If no lane is free, the call waits on the host for one.
//
// All lanes share one copy of the weights. If weights are packed, or on two devices, each lane has
// a copy.
type Package struct {
	file     string
	folder   string // of the extracted files
	device   cgotorch.Device
	metadata map[string]string
	inputs   []Input
	outputs  int
	names    []string // of the weights
	draws    int32

	all  []*lane
	free chan *lane // the lanes that no call uses; it has room for all lanes

	update  sync.Mutex // held by Update and Close
	weights []*cgotorch.Tensor
	old     []*cgotorch.Tensor // weights that graphs may still read
	written []int              // the weights that a call changes
	shares  bool
	closed  bool
}

type lane struct {
	model    *ct.Compiled
	captured bool // a graph holds a call that reads the lane's weights
}

// Load opens a package on x's device. The package belongs to the caller, who must Close it. Load
// waits for the device.
//
// A package holds dtypes, ranks, strides and the ranges of sizes, and each call checks them. It
// holds no guards: conditions of the Python code on sizes, such as x.shape[1] % 2 == 0. With sizes
// that a condition excludes, it computes the branch of its export. Compare a result of each size
// with PyTorch, or use package pt2, which checks guards.
//
// A compiled package is a program: Load runs its native code in this process, with all rights of
// the process. Load only packages from a source that you trust like the source of your own program.
//
// Load reads packages of the release of PyTorch that LibTorch has, such as 2.11. It looks for
// faults before it runs the library. Its errors wrap [ErrFormat] for a damaged file, and
// [ErrUnsupported] for a package that cannot run here. Such packages were compiled for another
// device, processor, GPU or PyTorch, or hold C++ source and no library. The error names the
// difference. A package does not say all instructions that it uses, so compile it on a machine of
// the kind that runs it. The files of the library are written to a folder in [os.TempDir], which
// Close removes. Failures inside the library are explained on the standard error.
//
// Load makes the first call of each lane itself, with zeros as inputs, because that call computes
// constants and loads kernels. Later calls may therefore be captured. Load puts LibTorch's
// generator back to its state before, also if other goroutines draw random numbers meanwhile.
//
// A package may change its own buffers in each call, as a counter or a cache does. Load puts such
// buffers back to their values before, and makes one lane. On several streams the caller must then
// order the calls. Load recognises such a package by a buffer that the first call changes. If
// zeros as inputs change no buffer, set Lanes to 1. Packed weights and weights on two devices are
// not looked at. To see a change, Load holds the weights twice for a moment.
func Load(x *cgotorch.Exec, path string, o Options) (*Package, error) {
	f, size, err := torchzip.OpenFile("aoti", path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return LoadFrom(x, f, size, path, o)
}

// LoadFrom is [Load] for the first `size` bytes of source, such as those of a [bytes.Reader].
// Errors show `name` as the name of the file.
func LoadFrom(x *cgotorch.Exec, source io.ReaderAt, size int64, name string, o Options) (*Package, error) {
	if err := inside.Core.Ready(); err != nil {
		return nil, err
	}
	if o.Lanes <= 0 {
		o.Lanes = 4
	}
	a, err := openArchive(source, size, name)
	if err != nil {
		return nil, err
	}
	model, err := a.model(o.Model)
	if err != nil {
		return nil, err
	}
	files, err := a.open(model)
	if err != nil {
		return nil, err
	}
	var capability int32
	if err := inside.Core.Check("aoti.Load", ct.DeviceCapability(inside.Core.Device(x.Device()), &capability)); err != nil {
		return nil, err
	}
	if err := files.compare(thisMachine(x.Device(), int(capability))); err != nil {
		return nil, err
	}
	lib, err := files.inspect(cgotorch.LibTorchVersion())
	if err != nil {
		return nil, err
	}
	inputs, err := parseInputs(files.source)
	if err != nil {
		return nil, a.Refuse("%w", err)
	}
	p := &Package{file: name, device: x.Device(), metadata: files.metadata, inputs: inputs, free: make(chan *lane, o.Lanes)}
	if lib.draws {
		p.draws = 1
	}
	for entry := range files.entries { // operators that are called by name
		if strings.HasSuffix(entry, ".json") && !strings.HasSuffix(entry, "_metadata.json") {
			p.draws = 1
		}
	}
	started := false
	defer func() {
		if !started {
			p.Close()
		}
	}()
	if err := p.start(x.NoGrad().NoAutocast(), files, lib, o.Lanes); err != nil {
		return nil, err
	}
	started = true
	return p, nil
}

// start extracts the library and makes the lanes.
func (p *Package) start(x *cgotorch.Exec, files *modelFiles, lib *library, lanes int) error {
	var err error
	if p.folder, err = os.MkdirTemp("", "streamtorch-aoti-"); err != nil {
		return fmt.Errorf("aoti: %w", err)
	}
	if err := files.extract(p.folder); err != nil {
		return err
	}
	path := filepath.Join(p.folder, filepath.FromSlash(files.library))
	if err := lib.unwrap(path); err != nil {
		return err
	}
	var random []byte
	if p.draws != 0 {
		if random, err = cgotorch.GeneratorState(p.device); err != nil {
			return err
		}
	}
	for len(p.all) < lanes && len(p.written) == 0 {
		if err := p.addLane(x, path); err != nil {
			return p.explain(err)
		}
	}
	if p.draws != 0 {
		if err := cgotorch.SetGeneratorState(p.device, random); err != nil {
			return err
		}
	}
	return x.Device().Synchronize()
}

// explain adds to an error of the dynamic linker what it means.
func (p *Package) explain(err error) error {
	text := err.Error()
	switch _, symbol, missing := strings.Cut(text, "undefined symbol: "); {
	case missing:
		symbol, _, _ = strings.Cut(symbol, "\n")
		return fmt.Errorf("aoti: %s: %w: LibTorch %s has no function %.80s: compile the package with torch %s", p.file, ErrUnsupported,
			cgotorch.LibTorchVersion(), symbol, release(cgotorch.LibTorchVersion()))
	case strings.Contains(text, "failed to map segment"):
		return fmt.Errorf("aoti: %s: %w: no library can be opened in %s: set TMPDIR to a folder that is not mounted with noexec", p.file, ErrUnsupported, p.folder)
	}
	return fmt.Errorf("aoti: %s: %w", p.file, err)
}

// addLane makes a lane. The first lane's weights become those of all lanes.
func (p *Package) addLane(x *cgotorch.Exec, path string) error {
	const op = "aoti.Load"
	exec, _ := inside.Core.Prepare(x, op, nil)
	l := &lane{}
	if err := inside.Core.Check(op, ct.CompiledNew(exec, path, p.folder, &l.model)); err != nil {
		return err
	}
	p.all = append(p.all, l)
	p.free <- l
	var info ct.CompiledInfo
	ct.CompiledDescribe(l.model, &info)
	if int(info.Inputs) != len(p.inputs) {
		return fmt.Errorf("%w: its library has %d inputs and its source %d", ErrFormat, info.Inputs, len(p.inputs))
	}
	if len(p.all) == 1 {
		p.outputs, p.shares = int(info.Outputs), info.Shares != 0
		for i := range info.Weights {
			p.names = append(p.names, ct.CompiledWeightName(l.model, i))
		}
		if p.shares {
			// The library fills its weights on another stream than x's.
			err := p.device.Synchronize()
			if err == nil {
				p.weights, err = p.copyWeights(x, op, l, nil)
			}
			if err == nil { // setWeights frees the library's own weights, which copyWeights reads
				err = p.device.Synchronize()
			}
			if err != nil {
				return err
			}
		}
	}
	if p.shares {
		if err := p.setWeights(x, op, l, p.weights); err != nil {
			return err
		}
	}
	if p.shares && len(p.all) == 1 {
		return p.findWritten(x, l)
	}
	return p.rehearse(x, l)
}

// findWritten makes the first call of the first lane. It finds the weights that the call changes,
// and puts their values back.
func (p *Package) findWritten(x *cgotorch.Exec, l *lane) (err error) {
	x.Tidy(func() *cgotorch.Tensor {
		before := make([]*cgotorch.Tensor, len(p.weights))
		for i, t := range p.weights {
			before[i] = x.Clone(t)
		}
		err = p.rehearse(x, l)
		for i, t := range p.weights {
			if err == nil && !x.Equal(bytesOf(x, t), bytesOf(x, before[i])) {
				p.written = append(p.written, i)
				x.CopyInPlace(t, before[i])
			}
		}
		return nil
	})
	return err
}

// bytesOf returns the bytes of a tensor, because NaN is not equal to NaN.
func bytesOf(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::view.dtype", x.Reshape(t, -1), cgotorch.Uint8)
}

// rehearse makes the first call of a lane. The result does not matter. With zeros as inputs a model
// may fail, and still has computed its constants before.
func (p *Package) rehearse(x *cgotorch.Exec, l *lane) error {
	var failed error
	x.Tidy(func() *cgotorch.Tensor {
		_, failed = p.run(x, "aoti.Load", l, sample(x, p.inputs))
		return nil
	})
	if errors.Is(failed, cgotorch.ErrOutOfMemory) || errors.Is(failed, cgotorch.ErrDeviceLost) {
		return failed
	}
	return nil
}

// run calls a lane that is taken. The Do owns the results.
func (p *Package) run(x *cgotorch.Exec, op string, l *lane, inputs []*cgotorch.Tensor) ([]*cgotorch.Tensor, error) {
	exec, in := inside.Core.Prepare(x, op, inputs)
	out := make([]*ct.Tensor, p.outputs+1) // never empty
	in = append(in, nil)
	status := ct.CompiledRun(exec, l.model, &in[0], int32(len(inputs)), p.draws, &out[0])
	runtime.KeepAlive(inputs)
	if err := inside.Core.Check(op, status); err != nil {
		return nil, err
	}
	results := make([]*cgotorch.Tensor, p.outputs)
	for i := range results {
		if out[i] != nil {
			results[i] = inside.Core.Own(x, out[i])
		}
	}
	inside.Core.Must(x, op, nil, inputs)
	return results, nil
}

// Forward enqueues a call of the model on x's stream. The results are those of the Python model, in
// the order in which Python flattens nested ones. The Do owns them. They have no gradient, and
// autocast does not change them.
//
// Forward does not wait for the device. It waits on the host while all lanes are in use. It can be
// captured, and then the graph reads the weights of that time.
//
// Forward fails with [cgotorch.ErrInvalidArgument] for inputs of another number, dtype, shape,
// stride or device than [Package.Inputs] says. AOTInductor itself does not check them.
func (p *Package) Forward(x *cgotorch.Exec, inputs ...*cgotorch.Tensor) []*cgotorch.Tensor {
	const op = "aoti.Package.Forward"
	inside.Core.Prepare(x, op, nil) // fails in a Do that has ended
	if x.Device() != p.device {
		x.Fail(op, fmt.Errorf("%s: it is on %v, and the Exec is on %v: %w", p.file, p.device, x.Device(), cgotorch.ErrInvalidArgument))
	}
	if err := match(p.inputs, p.device, inputs); err != nil {
		x.Fail(op, fmt.Errorf("%s: %w: %w", p.file, err, cgotorch.ErrInvalidArgument))
	}
	l, ok := <-p.free
	if !ok {
		x.Fail(op, fmt.Errorf("%s: %w", p.file, cgotorch.ErrClosed))
	}
	defer func() { p.free <- l }()
	l.captured = l.captured || x.Capturing()
	results, err := p.run(x.NoGrad().NoAutocast(), op, l, inputs)
	if err != nil {
		x.Fail(op, fmt.Errorf("%s: %w", p.file, err))
	}
	return results
}

// Inputs describes the inputs of Forward, in the order in which Python flattens nested arguments.
// The bounds of sizes can be narrower than those given to torch.export, because AOTInductor may
// specialise a package for smaller sizes.
func (p *Package) Inputs() []Input { return slices.Clone(p.inputs) }

// Outputs returns the number of results of Forward.
func (p *Package) Outputs() int { return p.outputs }

// Device returns the device that the package runs on.
func (p *Package) Device() cgotorch.Device { return p.device }

// Metadata returns what the package says about itself. The keys that PyTorch writes begin with
// "AOTI_", such as AOTI_DEVICE_KEY and AOTI_CPU_ISA. Do not change the map.
func (p *Package) Metadata() map[string]string { return p.metadata }

// Close waits for calls that run on other goroutines, and for the device. Then it frees the model
// and removes its files. Graphs that hold a Forward must not be launched any more. Later calls of
// Forward fail with [cgotorch.ErrClosed]. A second Close does nothing.
func (p *Package) Close() error {
	if p == nil {
		return nil
	}
	p.update.Lock()
	defer p.update.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	for range p.all {
		<-p.free
	}
	close(p.free)
	err := p.device.Synchronize()
	for _, l := range p.all {
		ct.CompiledFree(l.model)
	}
	for _, t := range slices.Concat(p.weights, p.old) {
		t.Close()
	}
	p.weights, p.old = nil, nil
	if p.folder != "" {
		err = errors.Join(err, os.RemoveAll(p.folder))
	}
	return err
}
