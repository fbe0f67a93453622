package nn_test

import (
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// To, Replace and SetTraining reach the weights, which are in a list of structs.
func TestRecurrent_State(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
			m := &struct{ RNN *nn.LSTM }{nn.NewLSTM(x, 3, 4, nn.RNNOptions{Layers: 2, Bidirectional: true, Dropout: 0.5})}
			defer nn.Close(m)
			must.Do(t, nn.Check(m))
			var names []string
			for _, n := range nn.State(m) {
				names = append(names, n.Name)
			}
			want := []string{"rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "rnn.bias_hh_l0", "rnn.weight_ih_l0_reverse"}
			if len(names) != 16 || !slices.Equal(names[:5], want) {
				t.Errorf("the names are %v", names)
			}
			nn.To(x, m, nn.ToOptions{DType: cgotorch.Float64})
			if got := m.RNN.Weights[3].BiasHH.DType(); got != cgotorch.Float64 {
				t.Errorf("a bias is %v", got)
			}
			nn.SetTraining(m, false)
			in := x.Randn(cgotorch.Float64, 5, 2, 3)
			if !m.RNN.Eval || !x.Equal(m.RNN.Forward(x, in), m.RNN.Forward(x, in)) {
				t.Error("dropout in evaluation")
			}
			nn.SetTraining(m, true)
			if x.Equal(m.RNN.Forward(x, in), m.RNN.Forward(x, in)) {
				t.Error("no dropout in training")
			}
		})
	})
}

// Cells of a layer, step by step, give the results of the layer.
func TestCells_EqualLayers(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		in := x.Randn(cgotorch.Float32, 5, 2, 3)
		for name, run := range map[string]func(inputs []*cgotorch.Tensor) (layer, last *cgotorch.Tensor){
			"rnn": func(inputs []*cgotorch.Tensor) (layer, last *cgotorch.Tensor) {
				m, cell := nn.NewRNN(x, 3, 4, nn.RNNOptions{ReLU: true}), nn.NewRNNCell(x, 3, 4, nn.RNNCellOptions{ReLU: true})
				t.Cleanup(func() { nn.Close(m); nn.Close(cell) })
				share(t, x, m, cell)
				for _, in := range inputs {
					last = cell.Step(x, in, last)
				}
				return m.Forward(x, in), last
			},
			"gru": func(inputs []*cgotorch.Tensor) (layer, last *cgotorch.Tensor) {
				m, cell := nn.NewGRU(x, 3, 4, nn.RNNOptions{}), nn.NewGRUCell(x, 3, 4, nn.RNNCellOptions{})
				t.Cleanup(func() { nn.Close(m); nn.Close(cell) })
				share(t, x, m, cell)
				for _, in := range inputs {
					last = cell.Step(x, in, last)
				}
				return m.Forward(x, in), last
			},
			"lstm": func(inputs []*cgotorch.Tensor) (layer, last *cgotorch.Tensor) {
				m, cell := nn.NewLSTM(x, 3, 4, nn.RNNOptions{NoBias: true}), nn.NewLSTMCell(x, 3, 4, nn.RNNCellOptions{NoBias: true})
				t.Cleanup(func() { nn.Close(m); nn.Close(cell) })
				share(t, x, m, cell)
				var c *cgotorch.Tensor
				for _, in := range inputs {
					last, c = cell.Step(x, in, last, c)
				}
				return m.Forward(x, in), last
			},
		} {
			layer, last := run(x.Unbind(in, 0))
			if want := x.Select(layer, 0, -1); !x.AllClose(last, want, cgotorch.ToleranceOptions{}) {
				t.Errorf("%s: %v, want %v", name, values(x, last), values(x, want))
			}
		}
	})
}

// share copies the weights of a layer into a cell. The names of the two differ in "_l0".
func share(t *testing.T, x *cgotorch.Exec, layer, cell any) {
	t.Helper()
	tensors := map[string]*cgotorch.Tensor{}
	for _, n := range nn.State(layer) {
		tensors[n.Name[:len(n.Name)-len("_l0")]] = n.Tensor
	}
	must.Do(t, nn.Load(x, cell, tensors, nn.LoadOptions{}))
}

// A state and the lengths go with their sequence, whatever the order of the lengths is.
func TestRecurrent_ForwardLengths(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
			m := nn.NewLSTM(x, 3, 4, nn.RNNOptions{})
			defer nn.Close(m)
			in, state, cell := x.Randn(cgotorch.Float32, 5, 3, 3), x.Randn(cgotorch.Float32, 1, 3, 4), x.Randn(cgotorch.Float32, 1, 3, 4)
			lengths := []int64{2, 5, 3}
			before := cgotorch.LiveHandles()["tensor"]
			out, last, lastCell := m.ForwardLengths(x, in, lengths, state, cell)
			if got := cgotorch.LiveHandles()["tensor"] - before; got != 3 {
				t.Errorf("%d handles after ForwardLengths, want 3", got)
			}
			for i, n := range lengths {
				one := func(t *cgotorch.Tensor) *cgotorch.Tensor {
					return x.Contiguous(x.Narrow(t, 1, i, 1), cgotorch.Contiguous)
				}
				want, wantLast, wantCell := m.ForwardState(x, x.Narrow(one(in), 0, 0, int(n)), one(state), one(cell))
				for _, pair := range [][2]*cgotorch.Tensor{{x.Narrow(one(out), 0, 0, int(n)), want}, {one(last), wantLast}, {one(lastCell), wantCell}} {
					if !x.AllClose(pair[0], pair[1], cgotorch.ToleranceOptions{Absolute: cgotorch.Set(1e-6)}) {
						t.Errorf("sequence %d: %v, want %v", i, values(x, pair[0]), values(x, pair[1]))
					}
				}
				if n < 5 && x.Item(x.Sum(x.Abs(x.Narrow(one(out), 0, int(n), 5-int(n))))) != 0 {
					t.Errorf("sequence %d: the padding is not 0", i)
				}
			}
		})
	})
	for _, lengths := range [][]int64{nil, {1}, {0, 1}, {1, 6}} {
		torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := nn.NewGRU(x, 3, 4, nn.RNNOptions{})
			defer nn.Close(m)
			m.ForwardLengths(x, x.Zeros(cgotorch.Float32, 5, 2, 3), lengths, nil)
		}), cgotorch.ErrInvalidArgument, "nn.GRU", "want 2 numbers from 1 to 5")
	}
}

// A state of another shape is refused: LibTorch would read and write beyond its memory.
func TestRecurrent_RefusesStates(t *testing.T) {
	f := cgotorch.Float32
	for _, batchFirst := range []bool{false, true} {
		for _, shape := range [][]int64{{5, 1, 4}, {1, 1, 4}, {1, 2, 4}, {1, 9, 4}, {2, 3, 4}, {1, 3, 1}, {3, 4}} {
			calls := map[string]func(x *cgotorch.Exec, in, state *cgotorch.Tensor){
				"nn.RNN": func(x *cgotorch.Exec, in, state *cgotorch.Tensor) {
					m := nn.NewRNN(x, 2, 4, nn.RNNOptions{BatchFirst: batchFirst})
					defer nn.Close(m)
					m.ForwardState(x, in, state)
				},
				"nn.GRU": func(x *cgotorch.Exec, in, state *cgotorch.Tensor) {
					m := nn.NewGRU(x, 2, 4, nn.RNNOptions{BatchFirst: batchFirst})
					defer nn.Close(m)
					m.ForwardLengths(x, in, []int64{1, 2, 2}, state)
				},
				"nn.LSTM": func(x *cgotorch.Exec, in, state *cgotorch.Tensor) {
					m := nn.NewLSTM(x, 2, 4, nn.RNNOptions{BatchFirst: batchFirst})
					defer nn.Close(m)
					m.ForwardState(x, in, state, nil)
				},
				"the cell state": func(x *cgotorch.Exec, in, state *cgotorch.Tensor) {
					m := nn.NewLSTM(x, 2, 4, nn.RNNOptions{BatchFirst: batchFirst})
					defer nn.Close(m)
					m.ForwardState(x, in, nil, state)
				},
				": the state": func(x *cgotorch.Exec, in, state *cgotorch.Tensor) {
					m := nn.NewLSTM(x, 2, 4, nn.RNNOptions{BatchFirst: batchFirst})
					defer nn.Close(m)
					m.ForwardLengths(x, in, []int64{1, 2, 2}, state, nil)
				},
			}
			for want, call := range calls {
				err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
					in := x.Ones(f, 2, 3, 2) // [L, N, in]
					if batchFirst {
						in = x.Transpose(in, 0, 1)
					}
					call(x, in, x.Ones(f, shape...))
				})
				torchtest.WantError(t, err, nil, want, "want [1 3 4]")
			}
		}
	}
}

// Layers whose weights are closed or were never made say so.
func TestForward_WithoutWeights(t *testing.T) {
	f := cgotorch.Float32
	for want, call := range map[string]func(x *cgotorch.Exec){
		"want two open tensors": func(x *cgotorch.Exec) {
			m := nn.NewLSTM(x, 2, 4, nn.RNNOptions{})
			nn.Close(m)
			m.Forward(x, x.Ones(f, 2, 3, 2))
		},
		"make it with its New function": func(x *cgotorch.Exec) { new(nn.GRU).Forward(x, x.Ones(f, 2, 3, 2)) },
		"query: float32[1 2 4], weight: closed": func(x *cgotorch.Exec) {
			m, in := nn.NewMultiheadAttention(x, 4, 2, nn.AttentionOptions{}), x.Ones(f, 1, 2, 4)
			nn.Close(m)
			m.Attend(x, in, in, in, nn.AttentionMask{})
		},
		"query: float32[1 2 4], weight: nil": func(x *cgotorch.Exec) {
			in := x.Ones(f, 1, 2, 4)
			new(nn.MultiheadAttention).Attend(x, in, in, in, nn.AttentionMask{})
		},
	} {
		torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) { call(x) }), nil, want)
	}
}

// Keys and values belong together. LibTorch would read beyond the shorter of them.
func TestMultiheadAttention_RefusesLengths(t *testing.T) {
	for _, c := range [][3][]int64{{{1, 2, 4}, {1, 3, 4}, {1, 5, 4}}, {{1, 2, 4}, {1, 5, 4}, {1, 3, 4}}, {{3, 2, 4}, {1, 3, 4}, {1, 3, 4}}, {{1, 2, 4}, {1, 3, 4}, {2, 3, 4}}} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := nn.NewMultiheadAttention(x, 4, 2, nn.AttentionOptions{})
			defer nn.Close(m)
			m.Attend(x, x.Ones(cgotorch.Float32, c[0]...), x.Ones(cgotorch.Float32, c[1]...), x.Ones(cgotorch.Float32, c[2]...), nn.AttentionMask{})
		})
		torchtest.WantError(t, err, nil, "one length of key and value")
	}
}

// LibTorch would read before the indices.
func TestEmbeddingBag_RefusesNegativeOffsets(t *testing.T) {
	for _, indices := range [][]int64{{}, {1, 2}} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := nn.NewEmbeddingBag(x, 3, 2, nn.EmbeddingBagOptions{Mode: "sum"})
			defer nn.Close(m)
			m.ForwardBags(x, cgotorch.FromSlice(x, indices), cgotorch.FromSlice(x, []int64{0, -5}), nil)
		})
		torchtest.WantError(t, err, nil, "an offset is -5")
	}
}

// An in-place sum does not write into the caller's input where Body returns that.
func TestResidual_InPlace_KeepsInput(t *testing.T) {
	for _, body := range []nn.Module{&nn.Dropout{P: 0.5, Eval: true}, nn.NewSequential(), &nn.Identity{}} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			in := x.Ones(cgotorch.Float32, 2)
			out := (&nn.Residual{Body: body, InPlace: true}).Forward(x, in)
			if got, kept := cgotorch.ToSlice[float32](x, out), cgotorch.ToSlice[float32](x, in); got[0] != 2 || kept[0] != 1 {
				t.Errorf("%T: the result is %v, the input afterwards %v", body, got, kept)
			}
		})
	}
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		new(nn.Residual).Forward(x, x.Ones(cgotorch.Float32, 2))
	})
	torchtest.WantError(t, err, nil, "Body is nil")
}
