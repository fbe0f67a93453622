// Package compiled compares packages of AOTInductor with PyTorch. make.py compiles the models,
// which takes minutes, and writes inputs and results. The tests need g++ and CGOTORCH_PEER, the
// path of a Python with torch 2.11, torchvision and safetensors. Or they need CGOTORCH_COMPILED, a
// folder that make.py has filled on this machine.
package compiled

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/aoti"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	made.folder = folder
	code := 1
	defer func() {
		os.RemoveAll(folder)
		os.Exit(code)
	}()
	if err := cgotorch.SetThreads(1); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	code = m.Run()
}

// The packages are compiled once, for all tests.
var made struct {
	once   sync.Once
	folder string
	err    error
}

func folder(t testing.TB) string {
	if given := os.Getenv("CGOTORCH_COMPILED"); given != "" {
		return given
	}
	python := os.Getenv("CGOTORCH_PEER")
	if python == "" {
		t.Skip("CGOTORCH_PEER is not set: it is the path of a Python with torch 2.11, torchvision and safetensors")
	}
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("AOTInductor needs g++: ", err)
	}
	made.once.Do(func() {
		if out, err := exec.Command(python, "make.py", made.folder).CombinedOutput(); err != nil {
			made.err = fmt.Errorf("make.py: %w\n%s", err, out)
		}
	})
	if made.err != nil {
		t.Fatal(made.err)
	}
	return made.folder
}

// A fixture is a package and the tensors of its calls.
type fixture struct {
	path string
	file *safetensors.File
}

func open(t testing.TB, name string, d cgotorch.Device) fixture {
	path := filepath.Join(folder(t), name+"_cpu")
	if d.IsCUDA() {
		path = filepath.Join(folder(t), name+"_cuda")
	}
	file, err := safetensors.Open(path + ".safetensors")
	if n, _ := cgotorch.CUDACount(); n > 0 && !d.IsCUDA() && errors.Is(err, os.ErrNotExist) {
		t.Skip("make.py compiles for the GPU of a machine that has one")
	}
	must.Do(t, err)
	t.Cleanup(func() { file.Close() })
	return fixture{path + ".pt2", file}
}

func (f fixture) tensor(t testing.TB, x *cgotorch.Exec, key string) *cgotorch.Tensor {
	info, ok := f.file.Lookup(key)
	if !ok {
		t.Errorf("no tensor %s", key)
		return nil
	}
	data, err := f.file.Read(key)
	dtype, known := checkpoint.DType(info.DType)
	if err != nil || !known {
		t.Errorf("tensor %s: %v, %v", key, info, err)
		return nil
	}
	return cgotorch.FromBytes(x, data, dtype, info.Shape)
}

// list returns the tensors with the keys "PREFIX.0", "PREFIX.1" and so on.
func (f fixture) list(t testing.TB, x *cgotorch.Exec, prefix string) (ts []*cgotorch.Tensor) {
	for {
		key := fmt.Sprintf("%s.%d", prefix, len(ts))
		if _, ok := f.file.Lookup(key); !ok {
			return ts
		}
		in := f.tensor(t, x, key)
		if strings.Contains(prefix, "in") && in.Dim() == 4 {
			in = x.Contiguous(in, cgotorch.ChannelsLast)
		}
		ts = append(ts, in)
	}
}

// differs returns the first result that is not equal to the bit, or "".
func differs(x *cgotorch.Exec, got, want []*cgotorch.Tensor) string {
	if len(got) != len(want) || len(want) == 0 {
		return fmt.Sprintf("%d results, want %d", len(got), len(want))
	}
	for i := range got {
		g := x.Contiguous(got[i], cgotorch.Contiguous)
		if g.String() != want[i].String() || !bytes.Equal(cgotorch.ToBytes(x, g), cgotorch.ToBytes(x, want[i])) {
			return fmt.Sprintf("result %d is %v %v, want %v %v", i, g, x.Format(g), want[i], x.Format(want[i]))
		}
	}
	return ""
}

// load loads a package on a stream of its own. A cleanup closes the package.
func (f fixture) load(t testing.TB, d cgotorch.Device, o aoti.Options) *aoti.Package {
	t.Helper()
	var p *aoti.Package
	torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) (err error) {
		p, err = aoti.Load(x, f.path, o)
		return err
	})
	t.Cleanup(func() { must.Check(t, p.Close()) })
	return p
}

func TestPackage_EqualsPyTorch(t *testing.T) {
	for _, name := range []string{"table", "picture"} {
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				f := open(t, name, d)
				p := f.load(t, d, aoti.Options{})
				if got := p.Metadata()["name"]; got != name+"_"+strings.Split(d.String(), ":")[0] {
					t.Errorf("the metadata name it %q", got)
				}
				for _, s := range []*cgotorch.Stream{torchtest.NewStream(t, d), cgotorch.DefaultStream(d)} {
					torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
						for call := range 2 {
							in, want := f.list(t, x, fmt.Sprintf("%d.in", call)), f.list(t, x, fmt.Sprintf("%d.out", call))
							if why := differs(x, p.Forward(x, in...), want); why != "" {
								t.Errorf("call %d: %s", call, why)
							}
							if why := differs(x, p.Forward(x.NoWaits(), in...), want); why != "" {
								t.Errorf("call %d, without waits: %s", call, why)
							}
							if why := differs(x, p.Forward(x.Autocast(cgotorch.BFloat16), in...), want); why != "" {
								t.Errorf("call %d, under autocast: %s", call, why)
							}
						}
					})
				}
			})
		})
	}
}

// A package with operators of torchvision loads after their library is open. The process opens no
// library before.
func TestPackage_OperatorsOfALibrary(t *testing.T) {
	path := must.Get(os.ReadFile(filepath.Join(folder(t), "torchvision.txt")))(t)
	f := open(t, "boxes", cgotorch.CPU)
	torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		_, err := aoti.Load(x, f.path, aoti.Options{})
		return err
	}), cgotorch.ErrInvalidArgument, "Could not find schema for torchvision::", "open the library that registers it with OpenOperators before")
	must.Do(t, cgotorch.OpenOperators(string(path)))
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "boxes", d)
		p := f.load(t, d, aoti.Options{})
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
			for call := range 2 {
				in, want := f.list(t, x, fmt.Sprintf("%d.in", call)), f.list(t, x, fmt.Sprintf("%d.out", call))
				if why := differs(x, p.Forward(x, in...), want); why != "" {
					t.Errorf("call %d: %s", call, why)
				}
			}
		})
	})
}

func TestPackage_Captured(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "table", d)
		p := f.load(t, d, aoti.Options{Lanes: 2})
		captured := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			return p.Forward(x, in...)
		}, cgotorch.CapturedOptions{})
		s := torchtest.NewStream(t, d)
		for range 5 {
			torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
				if why := differs(x, captured.Run(x, f.list(t, x, "0.in")...), f.list(t, x, "0.out")); why != "" {
					t.Error(why)
				}
			})
		}
		if got := captured.Stats(); d.IsCUDA() && got.Launches == 0 {
			t.Errorf("it was not captured: %s", got.Why)
		}
		must.Check(t, captured.Close())
	})
}

func TestForward_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "table", d)
		p := f.load(t, d, aoti.Options{Lanes: 1})
		if got, want := fmt.Sprint(p.Inputs(), p.Outputs(), p.Device()), fmt.Sprint("[float32[2..64 6] float32[2..64 6]] 4 ", d); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		for name, c := range map[string]struct {
			in   func(x *cgotorch.Exec) []*cgotorch.Tensor
			text string
		}{
			"number": {func(x *cgotorch.Exec) []*cgotorch.Tensor { return nil }, "got 0 inputs, want 2"},
			"dtype": {func(x *cgotorch.Exec) []*cgotorch.Tensor {
				return []*cgotorch.Tensor{x.Zeros(cgotorch.Float64, 4, 6), x.Zeros(cgotorch.Float32, 4, 6)}
			}, "input 0: got float64[4 6], want float32[2..64 6]"},
			"sizes that differ": {func(x *cgotorch.Exec) []*cgotorch.Tensor {
				return []*cgotorch.Tensor{x.Zeros(cgotorch.Float32, 64, 6), x.Zeros(cgotorch.Float32, 2, 6)}
			}, "they must be equal"},
			"sparse": {func(x *cgotorch.Exec) []*cgotorch.Tensor {
				return []*cgotorch.Tensor{x.Zeros(cgotorch.Float32, 2, 6), x.Call1("aten::_neg_view", x.Ones(cgotorch.Float32, 2, 6))}
			}, "input 1 is sparse, packed, or a lazy conjugate or negative"},
		} {
			err := torchtest.NewStream(t, d).Do(func(x *cgotorch.Exec) error {
				p.Forward(x, c.in(x)...)
				return nil
			})
			if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: got %v, want %q", name, err, c.text)
			}
		}
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
			if why := differs(x, p.Forward(x, f.list(t, x, "0.in")...), f.list(t, x, "0.out")); why != "" {
				t.Errorf("after failures: %s", why)
			}
		})
	})
}

func TestForward_FromManyGoroutines(t *testing.T) {
	const goroutines, calls = 16, 64
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "table", d)
		p := f.load(t, d, aoti.Options{Lanes: 8})
		var wait sync.WaitGroup
		for g := range goroutines {
			s := torchtest.NewStream(t, d)
			wait.Add(1)
			go func() {
				defer wait.Done()
				err := s.Do(func(x *cgotorch.Exec) error {
					in, want := f.list(t, x, fmt.Sprintf("%d.in", g%2)), f.list(t, x, fmt.Sprintf("%d.out", g%2))
					for range calls {
						if why := differs(x, p.Forward(x, in...), want); why != "" {
							return errors.New(why)
						}
					}
					return nil
				})
				must.Check(t, err)
			}()
		}
		wait.Wait()
	})
}

// The stream checker finds a Forward that does not wait for the work that fills its input.
func TestForward_WithoutAWait(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "table", d)
		p := f.load(t, d, aoti.Options{Lanes: 1})
		var races atomic.Int64
		stop, err := cgotorch.CheckStreams(func(*cgotorch.StreamRace) { races.Add(1) })
		if err != nil {
			t.Skip(err)
		}
		defer stop()
		var in []*cgotorch.Tensor
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
			for range 2 {
				in = append(in, x.Keep(x.Zeros(cgotorch.Float32, 4, 6)))
			}
		})
		err = torchtest.NewStream(t, d).Do(func(x *cgotorch.Exec) error {
			p.Forward(x, in...)
			return nil
		})
		if races.Load() == 0 && !errors.Is(err, cgotorch.ErrStreamRace) {
			t.Errorf("no race was found: %v", err)
		}
		for _, i := range in {
			i.Close()
		}
	})
}

func TestUpdate_UnderCalls(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "table", d)
		p := f.load(t, d, aoti.Options{Lanes: 3})
		if got := p.Weights(); !slices.Contains(got, "first.weight") || !slices.IsSorted(got) {
			t.Errorf("the weights are %q", got)
		}
		var old, renewed atomic.Int64
		var wait sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			s := torchtest.NewStream(t, d)
			wait.Add(1)
			go func() {
				defer wait.Done()
				if err := s.Do(func(x *cgotorch.Exec) error {
					in, before, after := f.list(t, x, "0.in"), f.list(t, x, "0.out"), f.list(t, x, "0.new")
					for {
						select {
						case <-stop:
							return nil
						default:
						}
						got := p.Forward(x, in...)
						switch {
						case differs(x, got, before) == "":
							old.Add(1)
						case differs(x, got, after) == "":
							renewed.Add(1)
						default:
							return errors.New("a result is neither of the old nor of the new weights: " + differs(x, got, after))
						}
					}
				}); err != nil {
					t.Error(err)
				}
			}()
		}
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) error {
			first, second := map[string]*cgotorch.Tensor{}, map[string]*cgotorch.Tensor{}
			for _, name := range p.Weights() {
				if _, ok := f.file.Lookup("weight." + name); ok {
					second[name] = f.tensor(t, x, "weight."+name)
				}
			}
			for range 3 { // there and back
				if err := p.Update(x, first); err != nil {
					return err
				}
			}
			if err := p.Update(x, second); err != nil {
				return err
			}
			if why := differs(x, p.Forward(x, f.list(t, x, "1.in")...), f.list(t, x, "1.new")); why != "" {
				t.Error("after Update: ", why)
			}
			return nil
		})
		close(stop)
		wait.Wait()
		t.Logf("%d results of the old and %d of the new weights", old.Load(), renewed.Load())
	})
}

// All lanes read one set of weights, Update frees the old set, and Close frees all.
func TestUpdate_FreesTheOldWeights(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "table", d)
		allocated := func() int64 {
			m := must.Get(d.Memory())(t)
			return m.Allocated
		}
		load := func(lanes int) (*aoti.Package, int64) {
			before := allocated()
			p := f.load(t, d, aoti.Options{Lanes: lanes})
			return p, allocated() - before
		}
		before := allocated()
		one, bytes := load(1)
		five, most := load(5) // each lane has the constants that it computes, half of the bytes
		if bytes <= 0 || most < bytes || most >= 4*bytes {
			t.Errorf("1 and 5 lanes have %d and %d bytes", bytes, most)
		}
		loaded := allocated()
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) error {
			for range 3 {
				if err := five.Update(x, nil); err != nil {
					return err
				}
			}
			return nil
		})
		if got := allocated(); got > loaded+bytes/4 {
			t.Errorf("%d bytes after Update, want %d", got, loaded)
		}
		for _, p := range []*aoti.Package{one, five} {
			must.Check(t, p.Close())
		}
		if got := allocated(); got != before {
			t.Errorf("%d bytes after Close, want %d", got, before)
		}
	})
}

// The calls that Load and Update make leave no trace in a buffer that each call changes. Load's
// leave none in the generator.
func TestPackage_ThatChangesABuffer(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "count", d)
		before := must.Get(cgotorch.GeneratorState(d))(t)
		p := f.load(t, d, aoti.Options{})
		if after, err := cgotorch.GeneratorState(d); err != nil || !bytes.Equal(after, before) {
			t.Errorf("Load has changed the generator: %v", err)
		}
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) error {
			forward := func(call int) {
				t.Helper()
				got, want := p.Forward(x, f.list(t, x, fmt.Sprintf("%d.in", call))...), f.list(t, x, fmt.Sprintf("%d.out", call))
				if why := differs(x, got[:1], want[:1]); why != "" {
					t.Errorf("call %d: %s", call, why)
				}
			}
			forward(0)
			forward(1)
			if err := p.Update(x, nil); err != nil {
				return err
			}
			forward(2)
			if err := p.Update(x, map[string]*cgotorch.Tensor{"count": x.Zeros(cgotorch.Float32, 3)}); err != nil {
				return err
			}
			forward(0)
			return nil
		})
	})
}

func TestUpdate_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "table", d)
		p := f.load(t, d, aoti.Options{Lanes: 2})
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
			for _, c := range []struct {
				weights map[string]*cgotorch.Tensor
				kind    error
				text    string
			}{
				{map[string]*cgotorch.Tensor{"first.weights": x.Zeros(cgotorch.Float32, 8, 6)}, cgotorch.ErrInvalidArgument, `no weight "first.weights"`},
				{map[string]*cgotorch.Tensor{"first.weight": x.Zeros(cgotorch.Float32, 6, 8)}, cgotorch.ErrInvalidArgument, "is float32[6 8] on"},
				{map[string]*cgotorch.Tensor{"first.weight": nil}, cgotorch.ErrInvalidArgument, "is nil or closed"},
			} {
				if err := p.Update(x, c.weights); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("got %v, want %v with %q", err, c.kind, c.text)
				}
			}
			if why := differs(x, p.Forward(x, f.list(t, x, "0.in")...), f.list(t, x, "0.out")); why != "" {
				t.Error(why)
			}
		})
	})
}

func TestPackage_Close(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		f := open(t, "table", d)
		p := f.load(t, d, aoti.Options{Lanes: 2})
		var kept []*cgotorch.Tensor
		s := torchtest.NewStream(t, d)
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			for _, out := range p.Forward(x, f.list(t, x, "0.in")...) {
				kept = append(kept, x.Keep(out))
			}
		})
		for range 2 {
			must.Check(t, p.Close())
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			if why := differs(x, kept, f.list(t, x, "0.out")); why != "" {
				t.Error("kept results: ", why)
			}
			if err := p.Update(x, nil); !errors.Is(err, cgotorch.ErrClosed) {
				t.Errorf("Update after Close: got %v", err)
			}
		})
		for _, t := range kept {
			t.Close()
		}
		if err := s.Do(func(x *cgotorch.Exec) error {
			p.Forward(x, f.list(t, x, "0.in")...)
			return nil
		}); !errors.Is(err, cgotorch.ErrClosed) {
			t.Errorf("Forward after Close: got %v", err)
		}
		if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
			t.Errorf("left in the temporary folder: %v, %v", left, err)
		}
	})
}

func TestLoad_AnotherPyTorch(t *testing.T) {
	f := open(t, "table", cgotorch.CPU)
	whole := must.Get(os.ReadFile(f.path))(t)
	for _, name := range []string{"aoti_torch_empty_strided", "AOTInductorModelContainerDelete"} {
		changed := bytes.ReplaceAll(whole, []byte("\x00"+name+"\x00"), []byte("\x00"+name[:len(name)-1]+"?\x00"))
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			p, err := aoti.LoadFrom(x, bytes.NewReader(changed), int64(len(changed)), "changed.pt2", aoti.Options{})
			if err == nil {
				p.Close()
			}
			if !errors.Is(err, aoti.ErrUnsupported) || len(err.Error()) > 400 {
				t.Errorf("%s: got %v", name, err)
			}
		})
	}
}
