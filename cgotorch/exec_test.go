package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestExec_NoGrad(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		p := x.Ones(Float32, 2)
		must.Do(t, p.SetRequiresGrad(true))
		off := x.NoGrad()
		for _, c := range []struct {
			name string
			x    *Exec
			want bool
		}{
			{"a Do's", x, true}, {"NoGrad", off, false}, {"the first again", x, true}, {"WithGrad", off.WithGrad(), true},
			{"NoGrad again", off, false}, {"NoGrad twice", off.NoGrad(), false}, {"Autocast", off.Autocast(BFloat16), false},
		} {
			if got := c.x.Add(p, p).RequiresGrad(); got != c.want || c.x.GradEnabled() != c.want {
				t.Errorf("%s: a result requires grad: %v, GradEnabled: %v, want %v", c.name, got, c.x.GradEnabled(), c.want)
			}
		}
	})
}

func TestExec_Autocast(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a := x.Rand(Float32, 4, 4)
		image, kernel := x.Rand(Float32, 1, 2, 5, 5), x.Rand(Float32, 3, 2, 3, 3)
		for _, dtype := range []DType{BFloat16, Float16} {
			y := x.Autocast(dtype)
			low := map[string]*Tensor{
				"MM": y.MM(a, a), "MatMul": y.MatMul(a, a), "Linear": y.Linear(a, a, nil),
				"Conv2d": y.Conv2d(image, kernel, nil, Conv2dOptions{}),
			}
			for name, got := range low {
				if got.DType() != dtype {
					t.Errorf("%s under autocast to %v gives %v", name, dtype, got.DType())
				}
			}
			if got := y.Add(a, a).DType(); got != Float32 {
				t.Errorf("Add under autocast to %v gives %v", dtype, got)
			}
			if got := y.MSELoss(y.MM(a, a), a, LossOptions{}).DType(); got != Float32 {
				t.Errorf("a loss under autocast to %v gives %v", dtype, got)
			}
			if got := x.MM(a, a).DType(); got != Float32 {
				t.Errorf("the Exec it was derived from gives %v", got)
			}
			if got := y.NoAutocast().MM(a, a).DType(); got != Float32 {
				t.Errorf("NoAutocast gives %v", got)
			}
			if got := []DType{x.AutocastDType(), y.AutocastDType(), y.NoAutocast().AutocastDType(), y.Autocast(Float32).AutocastDType()}; !slices.Equal(got, []DType{0, dtype, 0, 0}) {
				t.Errorf("AutocastDType is %v without, with and without again", got)
			}
		}
	})
}

func TestExec_Autocast_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, dtype := range []DType{Float64, Int64, Bool} {
		err := torchtest.TryDo(t, CPU, func(x *Exec) { x.Autocast(dtype) })
		wantError(t, err, ErrInvalidArgument, "Exec.Autocast", "autocast to "+dtype.String()+": use bfloat16 or float16", "exec_test.go")
	}
}

// Autocast must not keep the cast of a weight. If the weight changes between two operators, the
// second operator must use the new value.
func TestExec_Autocast_CachesNoWeight(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		w := x.Ones(Float32, 2, 2)
		w.SetRequiresGrad(true)
		y := x.Autocast(BFloat16)
		torchtest.Equal(t, x, x.To(y.MM(w, w), Float32), []float32{2, 2, 2, 2}, 2, 2)
		x.NoGrad().FillInPlace(w, 3.0)
		torchtest.Equal(t, x, x.To(y.MM(w, w), Float32), []float32{18, 18, 18, 18}, 2, 2)
	})
}

func TestExec_RefusesTensorsOfAnotherDevice(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	var kept *Tensor
	torchtest.DoOn(t, s, func(x *Exec) { kept = x.Keep(x.Ones(Float32, 2)) })
	t.Cleanup(func() { kept.Close() }) // TryDo counts it when the test ends
	const text = "lies on cuda:0, where the exec is on cpu"
	wantError(t, torchtest.TryDo(t, CPU, func(x *Exec) { x.Neg(kept) }), ErrInvalidArgument, "aten::neg", text)
	wantError(t, torchtest.TryDo(t, CPU, func(x *Exec) { ToSlice[float32](x, kept) }), ErrInvalidArgument, "ToSlice", text)
	wantError(t, torchtest.TryDo(t, CPU, func(x *Exec) { x.Item(x.Sum(kept)) }), ErrInvalidArgument, text)
	wantError(t, torchtest.TryDo(t, CPU, func(x *Exec) { CopyFrom(x, kept, []float32{1, 2}) }), ErrInvalidArgument, "CopyFrom", text)
	wantError(t, torchtest.TryDo(t, CPU, func(x *Exec) { x.Backward(kept) }), ErrInvalidArgument, "Exec.Backward", text)
}
