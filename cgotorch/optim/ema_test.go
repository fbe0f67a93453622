package optim

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestEMA(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		params := []*cgotorch.Tensor{param(x, 1, 2), x.Ones(cgotorch.BFloat16, 3), param(x, 4), x.Ones(cgotorch.Float64)}
		cgotorch.Check(params[0].SetRequiresGrad(true))
		e := cgotorch.Must(NewEMA(x, params, 0.75))
		defer e.Close()
		y := x.NoGrad()
		for range 2 {
			for _, p := range params {
				y.AddScalarInPlace(p, 4)
			}
			e.Update(x.Autocast(cgotorch.BFloat16))
		}
		// With a decay of 0.75 the first parameter gives 1 + (5-1)/4 = 2, then 2 + (9-2)/4 = 3.75.
		// All parameters change by 4, so all averages change by 2.75.
		want, dtypes := []float32{3.75, 3.75, 6.75, 3.75}, []cgotorch.DType{cgotorch.Float32, cgotorch.Float32, cgotorch.Float32, cgotorch.Float64}
		for i, average := range e.Averages() {
			if got := values(x, average)[0]; got != want[i] || average.DType() != dtypes[i] || average.RequiresGrad() {
				t.Errorf("average %d is %v of %v, want %v", i, average, got, want[i])
			}
		}
		own := []float32{9, 9, 12, 9}
		for swap, want := range [][]float32{want, own, want, own} {
			e.Swap(x)
			if e.Swapped() != (swap%2 == 0) {
				t.Errorf("after %d swaps Swapped is %v", swap+1, e.Swapped())
			}
			for i, p := range params {
				if got := values(x, p)[0]; got != want[i] {
					t.Errorf("after %d swaps parameter %d is %v, want %v", swap+1, i, got, want[i])
				}
			}
		}
	})
}

// Averages of bfloat16 parameters add up changes that are too small for bfloat16.
func TestEMA_BFloat16(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p := x.Ones(cgotorch.BFloat16, 2)
		e := cgotorch.Must(NewEMA(x, []*cgotorch.Tensor{p}, 0.999))
		defer e.Close()
		x.FillInPlace(p, 2)
		for range 1000 {
			e.Update(x)
		}
		if got, want := float64(values(x, e.Averages()[0])[0]), 2-math.Pow(0.999, 1000); math.Abs(got-want) > 1e-4 {
			t.Errorf("the average is %v, want %v", got, want)
		}
	})
}

func TestEMA_Restore(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p := param(x, 1, 2)
		e := cgotorch.Must(NewEMA(x, []*cgotorch.Tensor{p}, 0.5))
		defer e.Close()
		cgotorch.Check(e.Restore(x, []*cgotorch.Tensor{x.Full(cgotorch.BFloat16, 3, 2)}))
		e.Update(x)
		if got := values(x, e.Averages()[0]); got[0] != 2 || got[1] != 2.5 {
			t.Errorf("the average is %v, want [2 2.5]", got)
		}
		for _, averages := range [][]*cgotorch.Tensor{nil, {nil}, {x.Zeros(cgotorch.Float32, 3)}} {
			torchtest.WantError(t, e.Restore(x, averages), cgotorch.ErrInvalidArgument)
		}
		e.Close()
		torchtest.WantError(t, e.Restore(x, nil), cgotorch.ErrClosed)
	})
}

func TestEMA_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p := []*cgotorch.Tensor{param(x, 1)}
		closed := param(x, 1)
		closed.Close()
		for _, c := range []struct {
			params []*cgotorch.Tensor
			decay  float64
			want   string
		}{
			{p, -0.1, "a decay of -0.1"}, {p, 1.1, "a decay of 1.1"}, {p, math.NaN(), "a decay of NaN"}, {nil, 0.9, "there are no parameters"},
			{[]*cgotorch.Tensor{nil}, 0.9, "parameter 0 is nil"}, {[]*cgotorch.Tensor{closed}, 0.9, "parameter 0 is closed"},
			{[]*cgotorch.Tensor{x.Zeros(cgotorch.Int64)}, 0.9, "parameter 0 is int64[]"},
		} {
			if _, err := NewEMA(x, c.params, c.decay); !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "optim: ema: "+c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
	})
	for _, c := range map[string]struct {
		spoil func(x *cgotorch.Exec, e *EMA)
		is    error
		want  string
	}{
		"swapped":          {func(x *cgotorch.Exec, e *EMA) { e.Swap(x) }, cgotorch.ErrInvalidArgument, "call Swap before"},
		"closed":           {func(x *cgotorch.Exec, e *EMA) { e.Swap(x); e.Close() }, cgotorch.ErrClosed, "the averages: closed"},
		"closed parameter": {func(x *cgotorch.Exec, e *EMA) { e.params[0].Close() }, cgotorch.ErrClosed, "parameter 0: closed"},
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			e := cgotorch.Must(NewEMA(x, []*cgotorch.Tensor{param(x, 1)}, 0.9))
			defer e.Close()
			c.spoil(x, e)
			e.Update(x)
		})
		torchtest.WantError(t, err, c.is, c.want, "ema_test.go:")
	}
}
