package metric_test

import (
	"math"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

func TestAccuracy(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
			logits := cgotorch.FromSlice(x, []float32{3, 2, 1, 1, 2, 3, 2, 3, 1, 1, 3, 2}, 4, 3)
			labels := cgotorch.FromSlice(x, []int64{1, 2, 0, -100})
			for _, c := range []struct {
				k        int
				correct  int64
				accuracy float64
			}{{1, 1, 1.0 / 3}, {2, 3, 1}, {3, 3, 1}} {
				correct, accuracy := metric.Correct(x, logits, labels, c.k), metric.Accuracy(x, logits, labels, c.k)
				if got := x.Item(correct); got != float64(c.correct) {
					t.Errorf("top %d: %v are right, want %d", c.k, got, c.correct)
				}
				if got := x.Item(accuracy); math.Abs(got-c.accuracy) > 1e-6 {
					t.Errorf("top %d: accuracy %v, want %v", c.k, got, c.accuracy)
				}
			}
		})
	})
}

func TestConfusion(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
			labels := cgotorch.FromSlice(x, []int64{0, 1, 1, 2, -1, 2, 2})
			predictions := cgotorch.FromSlice(x, []int64{0, 1, 0, 2, 1, 0, 2})
			got := cgotorch.ToSlice[int64](x, metric.Confusion(x, predictions, labels, 3))
			if want := []int64{1, 0, 0, 1, 1, 0, 1, 0, 2}; !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	})
}

// The area equals the fraction of pairs in the right order, with many equal scores and with few.
func TestAUC_EqualsPairs(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
			for _, levels := range []int{2, 5, 1 << 20} {
				scores := x.To(x.RandInt(cgotorch.Int64, 0, levels, 60), cgotorch.Float32)
				labels := x.RandInt(cgotorch.Int64, 0, 2, 60)
				s, l := cgotorch.ToSlice[float32](x, scores), cgotorch.ToSlice[int64](x, labels)
				var right, pairs float64
				for i := range s {
					for j := range s {
						if l[i] == 1 && l[j] == 0 {
							pairs++
							switch {
							case s[i] > s[j]:
								right++
							case s[i] == s[j]:
								right += 0.5
							}
						}
					}
				}
				if got, want := x.Item(metric.AUC(x, scores, labels)), right/pairs; math.Abs(got-want) > 1e-12 {
					t.Errorf("%d levels: %v, want %v", levels, got, want)
				}
				if got := x.Item(metric.AUC(x, scores, x.ZerosLike(labels))); !math.IsNaN(got) {
					t.Errorf("without positive samples: %v, want NaN", got)
				}
			}
		})
	})
}

// Numbers that no metric can judge are an error on the CPU. A CUDA device, for which a metric does
// not wait, counts them as wrong.
func TestMetrics_Unknown(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		run  func(x *cgotorch.Exec) *cgotorch.Tensor
		cuda float64
	}{
		"a score": {func(x *cgotorch.Exec) *cgotorch.Tensor {
			return metric.AUC(x, cgotorch.FromSlice(x, []float32{nan, 1, nan, 2}), cgotorch.FromSlice(x, []int64{1, 1, 0, 0}))
		}, math.NaN()},
		"a score beside Inf": {func(x *cgotorch.Exec) *cgotorch.Tensor {
			return metric.AUC(x, cgotorch.FromSlice(x, []float32{nan, float32(math.Inf(1))}), cgotorch.FromSlice(x, []bool{true, false}))
		}, math.NaN()},
		"a score in float16": {func(x *cgotorch.Exec) *cgotorch.Tensor {
			return metric.AUC(x, x.To(cgotorch.FromSlice(x, []float32{0, nan, 1}), cgotorch.Float16), cgotorch.FromSlice(x, []int64{1, 0, 0}))
		}, math.NaN()},
		"a label": {func(x *cgotorch.Exec) *cgotorch.Tensor {
			return metric.AUC(x, cgotorch.FromSlice(x, []float32{0, 1}), cgotorch.FromSlice(x, []float32{nan, 0}))
		}, math.NaN()},
		"a logit": {func(x *cgotorch.Exec) *cgotorch.Tensor {
			return metric.Correct(x, cgotorch.FromSlice(x, []float32{nan, 1, 2, 1}, 2, 2), cgotorch.FromSlice(x, []int64{0, 0}), 1)
		}, 1},
		"a logit of another class": {func(x *cgotorch.Exec) *cgotorch.Tensor {
			return metric.Accuracy(x, cgotorch.FromSlice(x, []float32{nan, 1, 2, 1}, 2, 2), cgotorch.FromSlice(x, []int64{1, 0}), 2)
		}, 0.5},
		"a label of no class": {func(x *cgotorch.Exec) *cgotorch.Tensor {
			return metric.Accuracy(x, cgotorch.FromSlice(x, []float32{0, 1, 2, 1}, 2, 2), cgotorch.FromSlice(x, []int64{2, 0}), 1)
		}, 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) { c.run(x) })
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "metric")
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				if !d.IsCUDA() {
					return
				}
				torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
					if got := x.Item(c.run(x)); got != c.cuda && !(got != got && c.cuda != c.cuda) {
						t.Errorf("got %v, want %v", got, c.cuda)
					}
				})
			})
		})
	}
}

func TestConfusion_NoClass(t *testing.T) {
	for _, c := range []struct{ prediction, label int64 }{{3, 0}, {-1, 0}, {0, 3}, {0, 1 << 62}, {1 << 62, 0}, {3, -1}} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			metric.Confusion(x, cgotorch.FromSlice(x, []int64{0, c.prediction}), cgotorch.FromSlice(x, []int64{0, c.label}), 3)
		})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "none of the 3 classes")
	}
}

// The matrix of an image takes memory for its pixels, and not for pixels times classes.
func TestConfusion_Pixels(t *testing.T) {
	const n, classes = 1 << 18, 200
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
			predictions, labels := make([]int64, n), make([]int64, n)
			want := make([]int64, classes*classes)
			for i := range n {
				predictions[i], labels[i] = int64(i*7919%classes), int64(i/3%(classes+1))-1
				if labels[i] >= 0 {
					want[labels[i]*classes+predictions[i]]++
				}
			}
			got := metric.Confusion(x, cgotorch.FromSlice(x, predictions), cgotorch.FromSlice(x, labels), classes)
			if !slices.Equal(cgotorch.ToSlice[int64](x, got), want) {
				t.Error("the matrix differs from a count by hand")
			}
		})
	})
}

func TestMetrics_Refuse(t *testing.T) {
	for _, run := range map[string]func(x *cgotorch.Exec){
		"k": func(x *cgotorch.Exec) {
			metric.Correct(x, x.Zeros(cgotorch.Float32, 2, 3), x.Zeros(cgotorch.Int64, 2), 4)
		},
		"labels": func(x *cgotorch.Exec) {
			metric.Accuracy(x, x.Zeros(cgotorch.Float32, 2, 3), x.Zeros(cgotorch.Int64, 3), 1)
		},
		"classes": func(x *cgotorch.Exec) { metric.Confusion(x, x.Zeros(cgotorch.Int64, 2), x.Zeros(cgotorch.Int64, 2), 0) },
		"dtype":   func(x *cgotorch.Exec) { metric.Confusion(x, x.Zeros(cgotorch.Int32, 2), x.Zeros(cgotorch.Int64, 2), 2) },
		"scores":  func(x *cgotorch.Exec) { metric.AUC(x, x.Zeros(cgotorch.Int64, 2), x.Zeros(cgotorch.Int64, 2)) },
	} {
		torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, run), cgotorch.ErrInvalidArgument, "metric.")
	}
}
