package cgotorch_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"os"
	"strings"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Values look as NumPy prints them: with %v of a CPU tensor, and with Exec.Format on each device.
func TestTensor_Format_NumPy(t *testing.T) {
	text, err := os.ReadFile("testdata/format.json") // made by format.py beside it
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		DType, Data, Text string
		Shape             []int64
	}
	must.Do(t, json.Unmarshal(text, &cases))
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		wrong := 0
		torchtest.Do(t, d, func(x *Exec) {
			for _, c := range cases {
				dtype, err := ParseDType(c.DType)
				data, err2 := base64.StdEncoding.DecodeString(c.Data)
				if err != nil || err2 != nil {
					t.Fatal(err, err2)
				}
				between := "\n"
				if len(c.Shape) == 0 || len(data) == 0 {
					between = " "
				}
				v := FromBytes(x, data, dtype, c.Shape)
				check := func(how, got string) {
					if want := v.String() + between + c.Text; got != want && wrong < 10 {
						wrong++
						t.Errorf("%s of %s %v:\n%s\nwant\n%s", how, c.DType, c.Shape, got, want)
					}
				}
				check("x.Format", x.Format(v))
				if d == CPU {
					check("%v", fmt.Sprintf("%v", v))
					if len(c.Shape) > 1 { // other strides, the same text
						v = x.Transpose(x.Contiguous(x.Transpose(v, 0, 1), Contiguous), 0, 1)
						check("%v of other strides", fmt.Sprint(v))
					}
				}
			}
		})
	})
}

// Each place gives a text, and none a panic or a wait.
func TestTensor_Format_Places(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	var kept, freed *Tensor
	want := func(where, got string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("%s: got %q, want %q in it", where, got, part)
			}
		}
	}
	torchtest.DoOn(t, s, func(x *Exec) {
		a := FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
		want("in its Do", fmt.Sprint(a), "float32[2 2]\n[[1. 2.]\n [3. 4.]]")
		want("a string", fmt.Sprintf("%s", a), "float32[2 2]")
		want("Go syntax", fmt.Sprintf("%#v", a), "float32[2 2]")
		want("in a struct", fmt.Sprintf("%v", struct{ T *Tensor }{a}), "[[1. 2.]")
		want("bfloat16", fmt.Sprint(x.To(x.DivScalar(a, 3), BFloat16)), "[[0.334 0.668]\n [1.    1.336]]")
		want("NoWaits", fmt.Sprint(x.NoWaits().AddScalar(a, 1)), "[[2. 3.]")
		must.Do(t, a.SetRequiresGrad(true))
		want("requires grad", x.Format(a), "float32[2 2] requires grad\n[[1. 2.]")
		want("a result", x.Format(x.MulScalar(a, 2)), "[[2. 4.]")
		c := FromSlice(x, []complex64{1 + 2i})
		want("a conjugate", fmt.Sprint(x.Call("aten::conj", c)[0]), "[1.-2.j]")
		want("x.Format of a conjugate", x.Format(x.Call1("aten::conj", c)), "[1.-2.j]")
		sparse := x.Call1("aten::to_sparse", x.Eye(Float32, 2))
		want("sparse", fmt.Sprint(sparse), "float32[2 2] (no values: it is not dense")
		want("x.Format of sparse", x.Format(sparse), "[[1. 0.]\n [0. 1.]]")
		want("large", x.Format(x.Ones(Float32, 1000, 1000)), "[[1. 1. 1. ... 1. 1. 1.]\n")
		other := make(chan string)
		go func() { other <- fmt.Sprint(a) }()
		want("another goroutine", <-other, "no values: it belongs to a Do on another goroutine")
		kept, freed = x.Keep(x.Ones(Float32, 2)), x.Ones(Float32, 2)
		go func() { other <- fmt.Sprint(kept) }()
		want("a kept tensor on another goroutine", <-other, "float32[2] (no values outside a Do")
		want("a kept tensor", fmt.Sprint(kept), "float32[2]\n[1. 1.]")
		var none *Tensor
		want("nil", fmt.Sprint(none), "nil")
	})
	want("outside", fmt.Sprint(kept), "float32[2] (no values outside a Do")
	want("freed", fmt.Sprint(freed), "closed", "Keep it there")
	kept.Close()
	want("closed", fmt.Sprint(kept), "closed")
}

// json.Marshal gives the values or fails. gob fails.
func TestTensor_MarshalJSON(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.Do(t, CPU, func(x *Exec) {
		for _, c := range []struct {
			t    *Tensor
			want string
		}{
			{FromSlice(x, []float32{1, 2.5, 0.1, -4}, 2, 2), `{"dtype":"float32","shape":[2,2],"values":[[1,2.5],[0.1,-4]]}`},
			{FromSlice(x, []int64{9007199254740993}), `{"dtype":"int64","shape":[1],"values":[9007199254740993]}`},
			{FromSlice(x, []bool{true, false}), `{"dtype":"bool","shape":[2],"values":[true,false]}`},
			{x.Zeros(Float32, 0), `{"dtype":"float32","shape":[0],"values":[]}`},
			{x.Full(Float64, 0.5), `{"dtype":"float64","shape":[],"values":0.5}`},
		} {
			if got, err := json.Marshal(c.t); err != nil || string(got) != c.want {
				t.Errorf("got %s and %v, want %s", got, err, c.want)
			}
		}
		for _, v := range []*Tensor{x.Log(x.Neg(x.Ones(Float32, 1))), FromSlice(x, []complex64{1})} {
			if got, err := json.Marshal(v); err == nil {
				t.Errorf("%v gives %s", v, got)
			}
		}
	})
	var closed Tensor
	if got, err := json.Marshal(&closed); err == nil {
		t.Errorf("a closed tensor gives %s", got)
	}
}
