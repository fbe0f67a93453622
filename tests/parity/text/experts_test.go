package text_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// dispatched runs the experts of an encoder or a decoder. The host reads which experts are wanted,
// and runs them one after another.
type dispatched struct {
	layers []*text.Sparse
	ids    *cgotorch.Tensor
	seen   *[][]int64 // the ids of each call of Route
	calls  *int       // number of calls of experts
}

func (m *dispatched) Route(x *cgotorch.Exec, _ int, ids *cgotorch.Tensor) {
	m.ids = ids
	*m.seen = append(*m.seen, cgotorch.ToSlice[int64](x, ids))
}

func (m *dispatched) Predict(*cgotorch.Exec, int, *cgotorch.Tensor) { panic("only Pieces predict") }

func (m *dispatched) Run(x *cgotorch.Exec, layer int, tokens *cgotorch.Tensor) *cgotorch.Tensor {
	host, expert := cgotorch.ToSlice[int64](x, m.ids), m.layers[layer].Experts.Expert
	return nn.Dispatch(x, tokens, host, nn.ExpertOrder(x, m.ids), func(id int64, rows *cgotorch.Tensor) *cgotorch.Tensor {
		*m.calls++
		return expert[id].Forward(x, rows)
	})
}

// sparseLayers returns the sparse layers of a model's encoder and decoder.
func sparseLayers(m *text.Switch) (encoder, decoder []*text.Sparse) {
	for _, b := range m.Encoder.Block {
		encoder = append(encoder, b.FF.Sparse)
	}
	for _, b := range m.Decoder.Block {
		decoder = append(decoder, b.FF.Sparse)
	}
	dense := func(s *text.Sparse) bool { return s == nil }
	return slices.DeleteFunc(encoder, dense), slices.DeleteFunc(decoder, dense)
}

// A model without experts runs the experts of a second model. Both models then give the same
// bits. The model without experts chooses the same experts as Hugging Face's transformers.
func TestSwitch_NoExperts_Dispatch(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			f := readCase(t, name)
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				whole, bare := model(t, x, f, text.SwitchOptions{}), model(t, x, f, text.SwitchOptions{NoExperts: true})
				for _, n := range nn.State(bare) {
					if isExpert(n.Name) {
						t.Errorf("%s is there without experts", n.Name)
					}
				}
				var seen [][]int64
				calls := 0
				encoder, decoder := sparseLayers(whole)
				bare.Encoder.Experts = &dispatched{layers: encoder, seen: &seen, calls: &calls}
				bare.Decoder.Experts = &dispatched{layers: decoder, seen: &seen, calls: &calls}
				must.Check(t, nn.Check(bare))
				for _, r := range f.Runs {
					seen, calls = nil, 0
					ids, mask, decoderIDs := r.inputs(x)
					got := cgotorch.ToSlice[float32](x, bare.Logits(x, ids, mask, decoderIDs))
					wantNear(t, "dispatched", got, r.Logits, tolerance)
					if want := cgotorch.ToSlice[float32](x, whole.Logits(x, ids, mask, decoderIDs)); len(r.DecoderIDs[0]) > 4 && !slices.Equal(got, want) {
						t.Error("dispatched experts give other bits than resident ones")
					}
					if fmt.Sprint(seen) != fmt.Sprint(r.Experts) {
						t.Errorf("experts %v, want %v", seen, r.Experts)
					}
					want := 0
					for _, ids := range r.Experts {
						slices.Sort(ids)
						want += len(slices.Compact(ids))
					}
					if calls != want {
						t.Errorf("%d calls of experts, want %d", calls, want)
					}
					o := text.SwitchGenerateOptions{MaxNewTokens: 6}
					answers := must.Get(bare.Generate(context.Background(), x, ids, mask, o))(t)
					if want := must.Get(whole.Generate(context.Background(), x, ids, mask, o))(t); fmt.Sprint(answers) != fmt.Sprint(want) {
						t.Errorf("dispatched experts generate %v, want %v", answers, want)
					}
				}
			})
		})
	}
}

func TestSwitch_Encode_NoExperts(t *testing.T) {
	f := readCase(t, "tied")
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		m := model(t, x, f, text.SwitchOptions{NoExperts: true})
		ids, mask, _ := f.Runs[0].inputs(x)
		m.Encode(x, ids, mask)
		return nil
	})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "made without experts")
}

// Every way to run experts gives the results of the dispatched experts. There are cases with many
// tokens and few experts, and with few tokens and many experts.
func TestResidentExperts_Forward(t *testing.T) {
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
