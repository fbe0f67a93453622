package cgotorch_test

import (
	"errors"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestParseDevice(t *testing.T) {
	for text, want := range map[string]Device{"cpu": CPU, "cuda": CUDA(0), "cuda:0": CUDA(0), "cuda:7": CUDA(7)} {
		got, err := ParseDevice(text)
		if got != want || err != nil {
			t.Errorf("ParseDevice(%q) is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "cuda:1:2", "cuda:256", "gpu", " cuda"} {
		_, err := ParseDevice(text)
		wantError(t, err, ErrInvalidArgument, "ParseDevice", "is no device: use cpu, cuda, cuda:N or auto")
	}
}

func TestDevice(t *testing.T) {
	var zero Device
	if zero != CPU || CUDA(1) == CUDA(0) || CUDA(0) == CPU {
		t.Error("devices compare wrongly")
	}
	for d, want := range map[Device]string{CPU: "cpu", CUDA(0): "cuda:0", CUDA(3): "cuda:3"} {
		if d.String() != want || d.IsCUDA() != (d != CPU) {
			t.Errorf("%v, IsCUDA %v; want %s", d, d.IsCUDA(), want)
		}
	}
	if CUDA(3).Index() != 3 || CPU.Index() != 0 {
		t.Error("Index is wrong")
	}
}

func TestDevice_CheckAndSynchronize(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, d := range torchtest.Devices() {
		must.Do(t, d.Check())
		must.Do(t, d.Synchronize())
	}
	wantError(t, CUDA(99).Check(), ErrNoDevice, "Device.Check", "cuda:99")
	wantError(t, CUDA(99).Synchronize(), ErrNoDevice, "Device.Synchronize", "cuda:99")
	_, err := CUDA(99).Memory()
	wantError(t, err, ErrNoDevice, "Device.Memory")
}

func TestDevice_Memory(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		const mebibyte = 1 << 20
		read := func() Memory {
			t.Helper()
			m := Must(d.Memory())
			if m.Free < 1<<20 {
				t.Errorf("Free is %d", m.Free)
			}
			return m
		}
		torchtest.Do(t, d, func(x *Exec) {
			must.Do(t, d.ResetPeakMemory())
			before := read()
			if before.PeakAllocated != before.Allocated {
				t.Errorf("a peak of %d behind its reset, %d allocated", before.PeakAllocated, before.Allocated)
			}
			a := x.Empty(Uint8, 8*mebibyte)
			b := x.Empty(Uint8, 4*mebibyte)
			during := read()
			if grown := during.Allocated - before.Allocated; grown < 12*mebibyte || grown > 13*mebibyte {
				t.Errorf("12 MiB count as %d", grown)
			}
			if during.Allocations < before.Allocations+2 || during.Reserved < during.Allocated {
				t.Errorf("before %+v, during %+v", before, during)
			}
			a.Close()
			b.Close()
			after := read()
			if after.Allocated != before.Allocated || after.PeakAllocated < before.Allocated+12*mebibyte {
				t.Errorf("before %+v, after %+v", before, after)
			}
			must.Do(t, d.ReleaseCachedMemory())
		})
	})
}

// A tensor of more bytes than a process can address fails with ErrOutOfMemory on every machine.
// The device can be used afterwards.
func TestDevice_OutOfMemory(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		for range 3 {
			err := s.Do(func(x *Exec) error { x.Empty(Uint8, 1<<48); return nil })
			wantError(t, err, ErrOutOfMemory, "aten::empty", "device_test.go")
			if errors.Is(err, ErrDeviceLost) {
				t.Error("the device counts as lost")
			}
			if err := s.Do(func(x *Exec) error { torchtest.Equal(t, x, x.Ones(Float32, 1), []float32{1}); return nil }); err != nil {
				t.Errorf("the device is of no use after it: %v", err)
			}
		}
	})
}

// A Do takes memory piece by piece until an allocation fails. The Do frees all of this memory
// when it ends.
func TestDevice_OutOfMemoryByPieces(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	err := s.Do(func(x *Exec) error {
		for range 1 << 16 {
			x.Empty(Uint8, 1<<30)
		}
		return errors.New("there is no end to it")
	})
	wantError(t, err, ErrOutOfMemory, "aten::empty")
	if err := s.Do(func(x *Exec) error {
		torchtest.Equal(t, x, x.Sum(x.Ones(Float32, 1<<28)), []float32{1 << 28})
		return nil
	}); err != nil {
		t.Errorf("the memory did not come back: %v", err)
	}
	must.Do(t, d.ReleaseCachedMemory())
}

// A lost device cannot be used again in the same process. So this test loses the device in a
// process of its own.
func TestDevice_Lost(t *testing.T) {
	d := torchtest.CUDA(t)
	const inside = "CGOTORCH_TEST_LOSE_DEVICE"
	if os.Getenv(inside) != "" {
		loseDevice(t, d)
		return
	}
	command := exec.Command(os.Args[0], "-test.run=^TestDevice_Lost$", "-test.v")
	command.Env = append(os.Environ(), inside+"=1")
	out, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestDevice_Lost ") {
		if len(out) > 20000 {
			out = out[len(out)-20000:]
		}
		t.Errorf("the process that lost its device: %v\n%s", err, out)
	}
}

func loseDevice(t *testing.T, d Device) {
	torchtest.CheckLeaks(t)
	s, idle := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
	slab, err := NewHostSlab(CPU, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, slab.Pin())
	early := record(t, s)
	var weights, graph *Tensor
	var read *HostRead
	torchtest.DoOn(t, s, func(x *Exec) {
		weights = x.Keep(x.Ones(Float32, 4, 4))
		Check(weights.SetRequiresGrad(true))
		graph = x.Keep(x.Sum(x.Mul(weights, weights)))
		read = x.ReadAsync(x.Detach(weights))
	})
	const cause, remedy = "An operator enqueued earlier may be the cause", "CUDA_LAUNCH_BLOCKING=1"
	err = s.Do(func(x *Exec) error {
		bad := FromSlice(x, []int64{1 << 20})
		row := x.NoGrad().IndexSelect(weights, 0, bad) // enqueued without an error
		x.Item(x.Sum(row))
		return nil
	})
	wantError(t, err, ErrDeviceLost, "cuda:0 is lost", cause, remedy, "device_test.go")

	read.Close() // LibTorch would ask the device for an event

	// From now on every call on the device fails at once, with the same error.
	for name, use := range map[string]func() error{
		"Do": func() error { return s.Do(func(x *Exec) error { x.Ones(Float32, 1); return nil }) },
		"another stream": func() error {
			return idle.Do(func(x *Exec) error { x.Neg(weights); return nil })
		},
		"Backward":            func() error { return s.Do(func(x *Exec) error { x.Backward(graph); return nil }) },
		"ToSlice":             func() error { return s.Do(func(x *Exec) error { ToSlice[float32](x, weights); return nil }) },
		"Exec.Record":         func() error { return s.Do(func(x *Exec) error { x.Record(); return nil }) },
		"Stream.Record":       func() error { _, err := s.Record(); return err },
		"Stream.Query":        func() error { _, err := s.Query(); return err },
		"Stream.Wait":         func() error { return idle.Wait(early) },
		"Stream.Synchronize":  func() error { return idle.Synchronize() },
		"Event.Query":         func() error { _, err := early.Query(); return err },
		"Event.Synchronize":   func() error { return early.Synchronize() },
		"NewStream":           func() error { _, err := NewStream(d, StreamOptions{}); return err },
		"Device.Check":        func() error { return d.Check() },
		"Device.Synchronize":  func() error { return d.Synchronize() },
		"Device.Memory":       func() error { _, err := d.Memory(); return err },
		"ReleaseCachedMemory": func() error { return d.ReleaseCachedMemory() },
		"GeneratorState":      func() error { _, err := GeneratorState(d); return err },
	} {
		t.Run(name, func(t *testing.T) { wantError(t, use(), ErrDeviceLost, "cuda:0 is lost", cause) })
	}

	// Work on the CPU still succeeds, so that a program can save its state.
	torchtest.DoOn(t, torchtest.NewStream(t, CPU), func(x *Exec) {
		a := leaf(t, x, 1, 2)
		x.Backward(x.Sum(x.Mul(a, a)))
		torchtest.Equal(t, x, a.Grad(), []float32{2, 4})
	})
	if got := weights.Shape(); len(got) != 2 || weights.String() != "float32[4 4]@cuda:0" {
		t.Errorf("the shape of a lost tensor is %v", got)
	}

	for _, c := range []interface{ Close() error }{graph, weights, early, slab} {
		must.Do(t, c.Close())
	}
}
