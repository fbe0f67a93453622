package nn

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// RNNCellOptions are the options of [NewRNNCell], [NewLSTMCell] and [NewGRUCell].
type RNNCellOptions struct {
	NoBias bool
	ReLU   bool // for RNNCell: the activation is ReLU, and not tanh
}

// RecurrentCell is the part that [RNNCell], [LSTMCell] and [GRUCell] share. `gates` is 4 for an
// LSTMCell, 3 for a GRUCell and 1 for an RNNCell.
type RecurrentCell struct {
	WeightIH *cgotorch.Tensor // [gates*hidden, in]
	WeightHH *cgotorch.Tensor // [gates*hidden, hidden]
	BiasIH   *cgotorch.Tensor // [gates*hidden], or nil
	BiasHH   *cgotorch.Tensor // [gates*hidden], or nil
	RNNCellOptions
}

// RNNCell is one step of an [RNN] of one layer.
type RNNCell struct{ RecurrentCell }

// LSTMCell is one step of an [LSTM] of one layer.
type LSTMCell struct{ RecurrentCell }

// GRUCell is one step of a [GRU] of one layer.
type GRUCell struct{ RecurrentCell }

// NewRNNCell makes a cell for inputs of `in` numbers and states of `hidden` numbers. The weights
// are float32 on x's device. They are the random numbers of torch.nn.RNNCell.
func NewRNNCell(x *cgotorch.Exec, in, hidden int, o RNNCellOptions) *RNNCell {
	return &RNNCell{newCell(x, "nn.NewRNNCell", in, hidden, 1, o)}
}

// NewLSTMCell is [NewRNNCell] for torch.nn.LSTMCell.
func NewLSTMCell(x *cgotorch.Exec, in, hidden int, o RNNCellOptions) *LSTMCell {
	return &LSTMCell{newCell(x, "nn.NewLSTMCell", in, hidden, 4, o)}
}

// NewGRUCell is [NewRNNCell] for torch.nn.GRUCell.
func NewGRUCell(x *cgotorch.Exec, in, hidden int, o RNNCellOptions) *GRUCell {
	return &GRUCell{newCell(x, "nn.NewGRUCell", in, hidden, 3, o)}
}

func newCell(x *cgotorch.Exec, where string, in, hidden, gates int, o RNNCellOptions) RecurrentCell {
	atLeast(x, where, 1, argument{"in", in}, argument{"hidden", hidden})
	if o.ReLU && gates != 1 {
		refuse(x, where, "ReLU is for an RNNCell")
	}
	rows := int64(gates * hidden)
	m := RecurrentCell{WeightIH: x.Empty(cgotorch.Float32, rows, int64(in)), WeightHH: x.Empty(cgotorch.Float32, rows, int64(hidden)), RNNCellOptions: o}
	if !o.NoBias {
		m.BiasIH, m.BiasHH = x.Empty(cgotorch.Float32, rows), x.Empty(cgotorch.Float32, rows)
	}
	bound := 1 / math.Sqrt(float64(hidden))
	for _, p := range []*cgotorch.Tensor{m.WeightIH, m.WeightHH, m.BiasIH, m.BiasHH} {
		if p != nil {
			Uniform(x, p, -bound, bound)
		}
	}
	keepParameters(x, where, m.WeightIH, m.WeightHH, m.BiasIH, m.BiasHH)
	return m
}

// zeros returns a state of zeros for the input `in`.
func (m *RecurrentCell) zeros(x *cgotorch.Exec, where string, in *cgotorch.Tensor) *cgotorch.Tensor {
	if in.Dim() != 2 {
		refuse(x, where, "the input is %s, want [N, %d]", in, m.WeightIH.Shape()[1])
	}
	return x.Zeros(in.DType(), in.Shape()[0], m.WeightHH.Shape()[1])
}

// step calls one of LibTorch's cells with one state.
func (m *RecurrentCell) step(x *cgotorch.Exec, where, op string, in, state *cgotorch.Tensor) *cgotorch.Tensor {
	if state == nil {
		state = m.zeros(x, where, in)
		defer state.Close()
	}
	return x.Call1(op, in, state, m.WeightIH, m.WeightHH, m.BiasIH, m.BiasHH)
}

// Step maps an input [N, in] and a state [N, hidden] to the next state. A nil state is zeros.
func (m *RNNCell) Step(x *cgotorch.Exec, in, state *cgotorch.Tensor) *cgotorch.Tensor {
	if m.ReLU {
		return m.step(x, "nn.RNNCell", "aten::rnn_relu_cell", in, state)
	}
	return m.step(x, "nn.RNNCell", "aten::rnn_tanh_cell", in, state)
}

// Step maps an input [N, in] and a state [N, hidden] to the next state. A nil state is zeros.
func (m *GRUCell) Step(x *cgotorch.Exec, in, state *cgotorch.Tensor) *cgotorch.Tensor {
	return m.step(x, "nn.GRUCell", "aten::gru_cell", in, state)
}

// Step maps an input [N, in], a state and a cell state to the next states. States are [N, hidden],
// and nil states are zeros.
func (m *LSTMCell) Step(x *cgotorch.Exec, in, state, cell *cgotorch.Tensor) (next, nextCell *cgotorch.Tensor) {
	if state == nil {
		state = m.zeros(x, "nn.LSTMCell", in)
		defer state.Close()
	}
	if cell == nil {
		cell = m.zeros(x, "nn.LSTMCell", in)
		defer cell.Close()
	}
	results := x.Call("aten::lstm_cell", in, []*cgotorch.Tensor{state, cell}, m.WeightIH, m.WeightHH, m.BiasIH, m.BiasHH)
	return results[0].(*cgotorch.Tensor), results[1].(*cgotorch.Tensor)
}
