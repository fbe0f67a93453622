package text_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The experts that tokens choose are those of Hugging Face's transformers: the logits are right
// although all other experts are NaN. This holds for experts on the device and for those in slots,
// where several tokens at once read them over the bus.
func TestSwitch_ChosenExperts(t *testing.T) {
	for _, name := range cases {
		for _, slots := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s/slots=%d", name, slots), func(t *testing.T) {
				torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
					torchtest.NoTF32(t)
					f := readCase(t, name)
					for _, r := range f.Runs {
						torchtest.Do(t, d, func(x *cgotorch.Exec) {
							m := model(t, x, f, text.SwitchOptions{Slots: slots, NoGrouped: true})
							layers := sparseLayers(m)
							if len(layers) != len(r.Experts) {
								t.Fatalf("%d sparse layers, want %d", len(layers), len(r.Experts))
							}
							for i, chosen := range r.Experts {
								for k, e := range layers[i].Experts.Expert {
									if !slices.Contains(chosen, int64(k)) {
										x.FillInPlace(e.WI.Weight, math.NaN())
										x.FillInPlace(e.WO.Weight, math.NaN())
									}
								}
							}
							ids, mask, decoderIDs := r.inputs(x)
							wantNear(t, "the chosen experts", cgotorch.ToSlice[float32](x, m.Logits(x, ids, mask, decoderIDs)), r.Logits, tolerance)
						})
					}
				})
			})
		}
	}
}

// sparseLayers returns the sparse layers of a model, those of the encoder first.
func sparseLayers(m *text.Switch) (layers []*text.Sparse) {
	for _, b := range m.Encoder.Block {
		layers = append(layers, b.FF.Sparse)
	}
	for _, b := range m.Decoder.Block {
		layers = append(layers, b.FF.Sparse)
	}
	return slices.DeleteFunc(layers, func(s *text.Sparse) bool { return s == nil })
}

// With experts in slots a model generates what it does with all experts on the device.
func TestSwitch_Generate_Slots(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.NoTF32(t)
				f := readCase(t, name)
				torchtest.Do(t, d, func(x *cgotorch.Exec) {
					m := model(t, x, f, text.SwitchOptions{Slots: 1})
					m.Config.EOSTokenID = nil
					ids, mask, _ := f.Runs[0].inputs(x)
					got := must.Get(m.Generate(context.Background(), x, ids, mask, text.SwitchGenerateOptions{MaxNewTokens: 12}))(t)
					if fmt.Sprint(got) != fmt.Sprint(f.Generated.Open) {
						t.Errorf("got %v, want %v", got, f.Generated.Open)
					}
					if s := m.ExpertStats(x); s.Hits == 0 || s.Misses == 0 || s.HostBytes == 0 {
						t.Errorf("%+v; want hits, misses and bytes", s)
					}
				})
			})
		})
	}
}

// Every way to run experts gives the results of the dispatched experts. There are cases with many
// tokens and few experts, and with few tokens and many experts.
func TestSwitchExperts_Forward(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.BFloat16} {
			for _, size := range []struct{ tokens, experts int64 }{{1, 3}, {2, 1}, {7, 16}, {40, 16}, {300, 4}, {257, 40}, {300, 1}} {
				t.Run(fmt.Sprintf("%v/tokens=%d/experts=%d", dtype, size.tokens, size.experts), func(t *testing.T) {
					torchtest.Do(t, d, func(x *cgotorch.Exec) {
						must.Do(t, cgotorch.Seed(1))
						config := fmt.Appendf(nil, `{"vocab_size": 8, "d_model": 16, "d_ff": 24, "num_heads": 2, "d_kv": 8, "num_experts": %d,
							"num_layers": 2, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}`, size.experts)
						m := random(t, x, config, text.SwitchOptions{DType: dtype})
						experts := m.Encoder.Block[1].FF.Sparse.Experts
						tokens, ids := x.Randn(dtype, size.tokens, 16), x.RandInt(cgotorch.Int64, 0, int(size.experts), size.tokens)
						x.MulInPlace(ids, x.RandInt(cgotorch.Int64, 0, 2, size.tokens)) // expert 0 gets half of the tokens
						host := cgotorch.ToSlice[int64](x, ids)
						want := nn.Dispatch(x, tokens, host, nn.ExpertOrder(x, ids), func(expert int64, rows *cgotorch.Tensor) *cgotorch.Tensor {
							return experts.Expert[expert].Forward(x, rows)
						})
						for _, experts.NoGrouped = range []bool{false, true} {
							got := experts.Forward(x, tokens, ids)
							if (size.tokens == 1 || size.tokens > 8 && !d.IsCUDA() && !experts.NoGrouped) && !x.Equal(got, want) {
								t.Error("other bits than dispatched experts give")
							}
							apart := x.Item(x.Max(x.Abs(x.Sub(x.To(got, cgotorch.Float64), x.To(want, cgotorch.Float64)))))
							if limit := map[cgotorch.DType]float64{cgotorch.Float32: 1e-5, cgotorch.BFloat16: 0.1}[dtype]; !(apart <= limit) {
								t.Errorf("NoGrouped=%v: off by %v, want at most %v", experts.NoGrouped, apart, limit)
							}
						}
					})
				})
			}
		}
	})
}

func TestDispatch_Refuses(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(x *cgotorch.Exec, tokens *cgotorch.Tensor)
		want string
	}{
		{"too few ids", func(x *cgotorch.Exec, tokens *cgotorch.Tensor) { nn.Dispatch(x, tokens, []int64{1}, nil, nil) }, "1 ids"},
		{"no order", func(x *cgotorch.Exec, tokens *cgotorch.Tensor) { nn.Dispatch(x, tokens, []int64{1, 0, 1}, nil, nil) }, "no order"},
		{"another shape", func(x *cgotorch.Exec, tokens *cgotorch.Tensor) {
			nn.Dispatch(x, tokens, []int64{2, 2, 2}, nil, func(int64, *cgotorch.Tensor) *cgotorch.Tensor { return x.Zeros(cgotorch.Float32, 3, 5) })
		}, "expert 2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				test.run(x, x.Zeros(cgotorch.Float32, 3, 4))
				return nil
			}), cgotorch.ErrInvalidArgument, test.want)
		})
	}
}
