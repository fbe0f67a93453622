package text

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// decoderCase is a tiny random model of decoder.py, with what transformers makes of it.
type decoderCase struct {
	folder          string
	batch, n, vocab int
	ids             []int64   // [batch, n]
	logits          []float32 // [batch, n, vocab]
}

// decoderCases runs decoder.py, for all its models or for some.
func decoderCases(t *testing.T, names ...string) map[string]decoderCase {
	t.Helper()
	python, folder := torchtest.Python(t, "transformers"), t.TempDir()
	out, err := exec.Command(python, append([]string{"decoder.py", folder}, names...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("decoder.py: %v\n%s", err, out)
	}
	cases := map[string]decoderCase{}
	for _, entry := range must.Get(os.ReadDir(folder))(t) {
		c := decoderCase{folder: filepath.Join(folder, entry.Name())}
		var shape [3]int
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(c.folder, "shape.json")))(t), &shape))
		c.batch, c.n, c.vocab = shape[0], shape[1], shape[2]
		c.ids = elements[int64](t, filepath.Join(c.folder, "ids.bin"))
		c.logits = elements[float32](t, filepath.Join(c.folder, "logits.bin"))
		cases[entry.Name()] = c
	}
	return cases
}

func elements[T any](t *testing.T, path string) []T {
	t.Helper()
	data := must.Get(os.ReadFile(path))(t)
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/int(unsafe.Sizeof(one)))
}

// furthest returns the largest distance of two lists, over the largest number of `want`.
func furthest(got, want []float32) float64 {
	var distance, size float64
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if !(d <= distance) {
			distance = d
		}
		size = max(size, math.Abs(float64(want[i])))
	}
	return distance / size
}

// The logits of whole sequences are those of transformers, in float32.
func TestModel_Forward(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, c := range decoderCases(t) {
		t.Run(name, func(t *testing.T) {
			m := must.Get(text.Open(cgotorch.CPU, c.folder, text.Options{}))(t)
			defer m.Close()
			var got []float32
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				ids := cgotorch.FromSlice(x, c.ids, int64(c.batch), int64(c.n))
				got = cgotorch.ToSlice[float32](x, m.Forward(x, ids))
			})
			d := furthest(got, c.logits)
			t.Logf("the logits differ by %.2g of the largest", d)
			if !(d <= 1e-5) {
				t.Errorf("the logits differ by %.2g of the largest, want at most 1e-5", d)
			}
		})
	}
}
