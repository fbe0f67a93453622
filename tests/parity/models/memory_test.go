package models_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// memoryUse is the output of memory.py, in bytes.
type memoryUse struct {
	Model                 string
	Batch, Size           int
	Held, Train, Evaluate int64
}

const memoryLimit = 1.02 // the largest allowed ratio to PyTorch's memory

// The memory in evaluation, and the memory held for backward, are at most PyTorch's in the
// fixture. The peak of a training step depends on oneDNN's kernels, and so on the CPU.
// TestMemory_BesidePyTorch compares this peak.
func TestMemory_AtMostPyTorchs(t *testing.T) {
	var fixtures []memoryUse
	readFixture(t, "memory", &fixtures)
	for _, want := range fixtures {
		t.Run(want.Model, func(t *testing.T) {
			got := measure(t, cgotorch.CPU, want)
			want.Train = got.Train
			got.check(t, want)
		})
	}
}

// All figures are at most the figures of PyTorch in the same environment. CGOTORCH_PEER is a
// Python that has torch and torchvision. CGOTORCH_LIBRARY is the path of libcgotorch.so, which
// counts the memory of both sides.
func TestMemory_BesidePyTorch(t *testing.T) {
	python, library := os.Getenv("CGOTORCH_PEER"), os.Getenv("CGOTORCH_LIBRARY")
	if python == "" || library == "" {
		t.Skip("CGOTORCH_PEER and CGOTORCH_LIBRARY are not set")
	}
	cases := []memoryUse{{Model: "resnet50", Batch: 32, Size: 224}, {Model: "mobilenet_v2", Batch: 32, Size: 224}}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		arguments := []string{"memory.py", library, d.String()}
		for _, c := range cases {
			arguments = append(arguments, c.Model, strconv.Itoa(c.Batch), strconv.Itoa(c.Size))
		}
		command := exec.Command(python, arguments...)
		command.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
		command.Stderr = os.Stderr
		out, err := command.Output()
		if err != nil {
			t.Fatalf("memory.py: %v", err)
		}
		var want []memoryUse
		if err := json.Unmarshal(out, &want); err != nil {
			t.Fatalf("memory.py: %v in %q", err, out)
		}
		for i, c := range cases {
			measure(t, d, c).check(t, want[i])
		}
	})
}

func (got memoryUse) check(t *testing.T, want memoryUse) {
	t.Helper()
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"held for backward", got.Held, want.Held}, {"peak in training", got.Train, want.Train}, {"peak in evaluation", got.Evaluate, want.Evaluate},
	} {
		ratio := float64(c.got) / float64(c.want)
		t.Logf("%s: %s %d bytes, PyTorch %d, ratio %.4f", got.Model, c.what, c.got, c.want, ratio)
		if ratio > memoryLimit {
			t.Errorf("%s: %d bytes, %.4f times PyTorch's %d", c.what, c.got, ratio, c.want)
		}
	}
}

// measure measures the memory of a model in the way of memory.py.
func measure(t *testing.T, d cgotorch.Device, c memoryUse) memoryUse {
	torchtest.CheckLeaks(t)
	memory := func() cgotorch.Memory {
		return must.Get(d.Memory())(t)
	}
	before := memory().Allocated
	peakOf := func(fn func(x *cgotorch.Exec)) int64 {
		torchtest.DoOn(t, cgotorch.DefaultStream(d), fn)
		must.Do(t, d.ResetPeakMemory())
		torchtest.DoOn(t, cgotorch.DefaultStream(d), fn)
		return memory().PeakAllocated - before
	}
	var m nn.Module
	var images, labels *cgotorch.Tensor
	torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
		var err error
		if m, err = vision.New(x, c.Model, vision.Options{}); err != nil {
			t.Fatal(err)
		}
		images = x.Keep(x.Zeros(cgotorch.Float32, int64(c.Batch), 3, int64(c.Size), int64(c.Size)))
		labels = x.Keep(x.Zeros(cgotorch.Int64, int64(c.Batch)))
	})
	defer nn.Close(m)
	defer images.Close()
	defer labels.Close()
	c.Train = peakOf(func(x *cgotorch.Exec) {
		nn.ZeroGrad(m)
		loss := nn.CrossEntropy(x, m.Forward(x, images), labels, nn.CrossEntropyOptions{})
		c.Held = memory().Allocated - before
		x.Backward(loss)
	})
	nn.ZeroGrad(m)
	nn.SetTraining(m, false)
	c.Evaluate = peakOf(func(x *cgotorch.Exec) { m.Forward(x.NoGrad(), images) })
	return c
}
