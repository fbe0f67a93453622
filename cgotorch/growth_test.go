package cgotorch_test

import (
	"bytes"
	"github.com/streamtorch/streamtorch/internal/must"
	"log/slog"
	"strings"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// told runs fn in a Do and returns what the library logs.
func told(t *testing.T, d Device, fn func(x *Exec)) string {
	t.Helper()
	var text bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	defer slog.SetDefault(before)
	torchtest.Do(t, d, fn)
	return text.String()
}

// A loop inside a Do that leaves memory behind is told once for each place.
func TestDo_TellsOfGrowth(t *testing.T) {
	const rows = 1 << 16 // 256 KB of float32
	for name, loop := range map[string]func(x *Exec, rounds int){
		"operator": func(x *Exec, rounds int) {
			a := x.Ones(Float32, rows)
			for range rounds {
				x.MulScalar(x.AddScalar(a, 1), 2)
			}
		},
		"evaluation without NoGrad": func(x *Exec, rounds int) {
			w := x.Ones(Float32, 128, 128)
			must.Do(t, w.SetRequiresGrad(true))
			data := make([]float32, 128*128)
			for range rounds {
				h := FromSlice(x, data, 128, 128)
				for range 6 {
					h = x.ReLU(x.Add(h, w))
				}
				x.Item(x.Mean(h))
			}
		},
		"training": func(x *Exec, rounds int) {
			w := x.Ones(Float32, 256, 128)
			must.Do(t, w.SetRequiresGrad(true))
			in := x.Ones(Float32, 256, 128)
			for range rounds {
				x.Backward(x.Mean(x.ReLU(x.Mul(in, w))))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			do := func(x *Exec) { loop(x, 400) }
			if text := told(t, CPU, do); strings.Count(text, "leaves") != 1 || !strings.Contains(text, "growth_test.go:") {
				t.Errorf("the first report is %q", text)
			}
			if again := told(t, CPU, do); again != "" {
				t.Errorf("the second report is %q", again)
			}
		})
	}
}

// Loops that free, that need their results, or that leave little are not told.
func TestDo_TellsOfGrowth_Not(t *testing.T) {
	for name, loop := range map[string]func(x *Exec){
		"Tidy": func(x *Exec) {
			for range 300 {
				x.Tidy(func() *Tensor { x.AddScalar(x.Ones(Float32, 1<<18), 1); return nil })
			}
		},
		"Close": func(x *Exec) {
			var many []*Tensor
			for range 300 { // many small tensors, so that the Do is looked at
				many = append(many, x.Ones(Float32, 1))
			}
			for range 300 {
				a := x.Ones(Float32, 1<<18)
				a.Close()
			}
		},
		"little": func(x *Exec) {
			for range 3000 {
				x.AddScalar(x.Ones(Float32, 16), 1)
			}
		},
		"views of one tensor": func(x *Exec) {
			a := x.Ones(Float32, 1<<25)
			for i := range 1000 {
				x.Narrow(a, 0, i, 1<<18)
			}
		},
		"recurrent net": func(x *Exec) {
			w := x.Ones(Float32, 128, 128)
			must.Do(t, w.SetRequiresGrad(true))
			h := FromSlice(x, make([]float32, 128*128), 128, 128)
			for range 200 {
				h = x.Tanh(x.Add(h, w))
			}
			x.Backward(x.Mean(h))
		},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
				if text := told(t, d, loop); text != "" {
					t.Errorf("told %q", text)
				}
			})
		})
	}
}
