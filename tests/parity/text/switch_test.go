package text_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

const tolerance = 1e-5

func TestSwitch_State(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			f := readCase(t, name)
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				m := model(t, x, f, text.SwitchOptions{})
				must.Check(t, nn.Check(m))
				want := map[string][]int64{}
				for _, e := range f.State {
					want[e.Name] = e.Shape
				}
				seen := map[*cgotorch.Tensor]string{}
				for _, n := range nn.State(m) {
					if shape, ok := want[n.Name]; !ok || !slices.Equal(shape, n.Tensor.Shape()) {
						t.Errorf("%s has the shape %v, want %v", n.Name, n.Tensor.Shape(), shape)
					}
					delete(want, n.Name)
					seen[n.Tensor] = n.Name
				}
				for name := range want {
					t.Errorf("%s is missing", name)
				}
				tensors := 0
				for _, e := range f.State {
					if e.Start >= 0 {
						tensors++
					}
				}
				if len(seen) != tensors {
					t.Errorf("%d tensors, want %d", len(seen), tensors)
				}
			})
		})
	}
}

func TestSwitch_Logits(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.NoTF32(t)
				f := readCase(t, name)
				torchtest.Do(t, d, func(x *cgotorch.Exec) {
					for _, grouped := range []bool{true, false} {
						m := model(t, x, f, text.SwitchOptions{NoGrouped: !grouped})
						for _, r := range f.Runs {
							ids, mask, decoderIDs := r.inputs(x)
							wantNear(t, "logits", cgotorch.ToSlice[float32](x, m.Logits(x, ids, mask, decoderIDs)), r.Logits, tolerance)
						}
					}
				})
			})
		})
	}
}

func TestSwitch_Logits_Saved(t *testing.T) {
	var r run
	filetest.JSON(t, filepath.Join("testdata", "saved.json"), &r)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := must.Get(text.LoadSwitch(x, text.SwitchOptions{}, filepath.Join("testdata", "saved")))(t)
		defer nn.Close(m)
		ids, _, decoderIDs := r.inputs(x)
		wantNear(t, "logits", cgotorch.ToSlice[float32](x, m.Logits(x, ids, nil, decoderIDs)), r.Logits, tolerance)
	})
}

func TestSwitchConfig_Sparse(t *testing.T) {
	var lines [][3]any
	filetest.JSON(t, filepath.Join("testdata", "sparse.json"), &lines)
	for _, line := range lines {
		config := fmt.Appendf(nil, `{"vocab_size": 4, "d_model": 4, "d_ff": 4, "num_heads": 1, "d_kv": 4, "num_experts": 1,
			"num_layers": %v, "num_decoder_layers": 1, "num_sparse_encoder_layers": %v, "num_sparse_decoder_layers": 1}`, line[0], line[1])
		var got []int
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			for i, b := range random(t, x, config, text.SwitchOptions{}).Encoder.Block {
				if b.FF.Sparse != nil {
					got = append(got, i)
				}
			}
		})
		var want []int
		for _, i := range line[2].([]any) {
			want = append(want, int(i.(float64)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v of %v layers: %v are sparse, want %v", line[1], line[0], got, want)
		}
	}
}

// The logits in bfloat16 are near the logits in float32, with a tolerance of 6 %. In bfloat16 the
// logits of Hugging Face's transformers differ from its float32 logits by 3 %, and the chosen
// experts are the same.
func TestSwitch_Logits_BFloat16(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.NoTF32(t)
				f := readCase(t, name)
				torchtest.Do(t, d, func(x *cgotorch.Exec) {
					for _, grouped := range []bool{true, false} {
						m := model(t, x, f, text.SwitchOptions{DType: cgotorch.BFloat16, NoGrouped: !grouped})
						for _, r := range f.Runs {
							ids, mask, decoderIDs := r.inputs(x)
							logits := x.To(m.Logits(x, ids, mask, decoderIDs), cgotorch.Float32)
							wantNear(t, "logits", cgotorch.ToSlice[float32](x, logits), r.Logits, 0.06)
						}
					}
				})
			})
		})
	}
}
