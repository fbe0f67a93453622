package nn

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// RNNOptions are the options of [NewRNN], [NewLSTM] and [NewGRU]. The zero value is PyTorch's
// default.
type RNNOptions struct {
	Layers int // number of layers, each of which reads the results of the layer before; 0 means 1
	NoBias bool
	// BatchFirst means that sequences are [N, L, width]. Otherwise they are [L, N, width]. It has no
	// effect on states.
	BatchFirst    bool
	Dropout       float64 // in training, the probability that a result of a layer becomes 0, except in the last layer
	Bidirectional bool    // each layer also reads its input from the end to the beginning
	Projection    int     // for LSTM: width of the projected results, below `hidden`; 0 means no projection
	ReLU          bool    // for RNN: the activation is ReLU, and not tanh
}

// RNNWeights are the weights of one layer and one direction. `gates` is 4 for an LSTM, 3 for a GRU
// and 1 for an RNN.
type RNNWeights struct {
	Suffix   string           // ends the names of the tensors in [State]: "_l0", "_l0_reverse", "_l1", …
	WeightIH *cgotorch.Tensor // [gates*hidden, width of the layer's input]
	WeightHH *cgotorch.Tensor // [gates*hidden, hidden or Projection]
	BiasIH   *cgotorch.Tensor // [gates*hidden], or nil
	BiasHH   *cgotorch.Tensor // [gates*hidden], or nil
	WeightHR *cgotorch.Tensor // [Projection, hidden], or nil
}

// Recurrent is the part that [RNN], [LSTM] and [GRU] share.
type Recurrent struct {
	Weights []RNNWeights `state:",suffixed"` // by layer, then by direction
	Hidden  int          // width of the state
	RNNOptions
	Eval bool
}

// RNN is a recurrent network whose state is activation(W_ih*in + W_hh*state + biases).
type RNN struct{ Recurrent }

// LSTM is a recurrent network with a hidden state and a cell state.
type LSTM struct{ Recurrent }

// GRU is a recurrent network with gates that reset and update its state.
type GRU struct{ Recurrent }

// NewRNN makes layers for sequences of `in` numbers for each position, with a state of `hidden`
// numbers. The weights are float32 on x's device. They are the random numbers of torch.nn.RNN.
func NewRNN(x *cgotorch.Exec, in, hidden int, o RNNOptions) *RNN {
	return &RNN{newRecurrent(x, "nn.NewRNN", in, hidden, 1, o)}
}

// NewLSTM is [NewRNN] for the layers of torch.nn.LSTM.
func NewLSTM(x *cgotorch.Exec, in, hidden int, o RNNOptions) *LSTM {
	return &LSTM{newRecurrent(x, "nn.NewLSTM", in, hidden, 4, o)}
}

// NewGRU is [NewRNN] for the layers of torch.nn.GRU.
func NewGRU(x *cgotorch.Exec, in, hidden int, o RNNOptions) *GRU {
	return &GRU{newRecurrent(x, "nn.NewGRU", in, hidden, 3, o)}
}

func newRecurrent(x *cgotorch.Exec, where string, in, hidden, gates int, o RNNOptions) Recurrent {
	atLeast(x, where, 1, argument{"in", in}, argument{"hidden", hidden})
	atLeast(x, where, 0, argument{"Layers", o.Layers}, argument{"Projection", o.Projection})
	switch {
	case !(o.Dropout >= 0 && o.Dropout <= 1):
		refuse(x, where, "Dropout is %v, want from 0 to 1", o.Dropout)
	case o.Projection != 0 && (gates != 4 || o.Projection >= hidden):
		refuse(x, where, "Projection is %d, want a number below hidden, %d, of an LSTM", o.Projection, hidden)
	case o.ReLU && gates != 1:
		refuse(x, where, "ReLU is for an RNN")
	}
	o.Layers = max(o.Layers, 1)
	m := Recurrent{Hidden: hidden, RNNOptions: o}
	width, rows := int64(in), int64(gates*hidden)
	for layer := range o.Layers {
		for direction := range m.directions() {
			w := RNNWeights{Suffix: fmt.Sprintf("_l%d", layer)}
			if direction == 1 {
				w.Suffix += "_reverse"
			}
			w.WeightIH, w.WeightHH = x.Empty(cgotorch.Float32, rows, width), x.Empty(cgotorch.Float32, rows, m.width())
			if !o.NoBias {
				w.BiasIH, w.BiasHH = x.Empty(cgotorch.Float32, rows), x.Empty(cgotorch.Float32, rows)
			}
			if o.Projection != 0 {
				w.WeightHR = x.Empty(cgotorch.Float32, m.width(), int64(hidden))
			}
			m.Weights = append(m.Weights, w)
		}
		width = m.width() * int64(m.directions())
	}
	parameters := m.tensors()
	bound := 1 / math.Sqrt(float64(hidden))
	for _, p := range parameters {
		Uniform(x, p, -bound, bound)
	}
	keepParameters(x, where, parameters...)
	return m
}

func (m *Recurrent) directions() int {
	if m.Bidirectional {
		return 2
	}
	return 1
}

// width returns the width of the results of one direction.
func (m *Recurrent) width() int64 {
	if m.Projection != 0 {
		return int64(m.Projection)
	}
	return int64(m.Hidden)
}

// tensors returns the weights in the order of LibTorch's operators.
func (m *Recurrent) tensors() []*cgotorch.Tensor {
	var all []*cgotorch.Tensor
	for _, w := range m.Weights {
		for _, t := range []*cgotorch.Tensor{w.WeightIH, w.WeightHH, w.BiasIH, w.BiasHH, w.WeightHR} {
			if t != nil {
				all = append(all, t)
			}
		}
	}
	return all
}

// check fails for an `in` that is not a batch of sequences.
func (m *Recurrent) check(x *cgotorch.Exec, where string, in *cgotorch.Tensor) {
	if len(m.Weights) == 0 {
		refuse(x, where, "the module has no weights: make it with its New function")
	}
	checkOpen(x, where, "input", in, "weight", m.Weights[0].WeightIH)
	width := m.Weights[0].WeightIH.Shape()[1]
	if in.Dim() != 3 || in.Shape()[2] != width {
		shape := "L, N"
		if m.BatchFirst {
			shape = "N, L"
		}
		refuse(x, where, "the input is %s, want [%s, %d]", in, shape, width)
	}
	dependsOnMode(x, where, &m.Eval)
}

// checkState fails for a state of another shape than [layers*directions, N, width]. LibTorch would
// read beyond its end. A nil state stands for zeros.
func (m *Recurrent) checkState(x *cgotorch.Exec, where, name string, state, in *cgotorch.Tensor, width int64) {
	if state == nil {
		return
	}
	checkOpen(x, where, name, state, "input", in)
	if want := []int64{int64(len(m.Weights)), in.Shape()[m.batchDim()], width}; !slices.Equal(state.Shape(), want) {
		refuse(x, where, "the %s is %s, want %v: layers times directions, N, width, also with BatchFirst", name, state, want)
	}
}

// zeros returns a state of zeros for the input `in`.
func (m *Recurrent) zeros(x *cgotorch.Exec, in *cgotorch.Tensor, width int64) *cgotorch.Tensor {
	return x.Zeros(in.DType(), int64(len(m.Weights)), in.Shape()[m.batchDim()], width)
}

// run calls one of LibTorch's operators. `state` is a tensor or a list of tensors.
func (m *Recurrent) run(x *cgotorch.Exec, op string, in *cgotorch.Tensor, state any) []any {
	return x.Call(op, in, state, m.tensors(), !m.NoBias, m.Layers, m.Dropout, !m.Eval, m.Bidirectional, m.BatchFirst)
}

// forward is ForwardState for an operator with one state.
func (m *Recurrent) forward(x *cgotorch.Exec, where, op string, in, state *cgotorch.Tensor) (out, last *cgotorch.Tensor) {
	m.check(x, where, in)
	m.checkState(x, where, "state", state, in, m.width())
	if state == nil {
		state = m.zeros(x, in, m.width())
		defer state.Close()
	}
	results := m.run(x, op, in, state)
	return results[0].(*cgotorch.Tensor), results[1].(*cgotorch.Tensor)
}

// Forward is [RNN.ForwardState] with a state of zeros, without the last state.
func (m *RNN) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	out, last := m.ForwardState(x, in, nil)
	last.Close()
	return out
}

// ForwardState maps sequences [L, N, in] to the results of the last layer, [L, N,
// directions*hidden]. With BatchFirst the first two dimensions are exchanged. The states `state`
// and `last` are [layers*directions, N, hidden]. A nil state is zeros. In training with Dropout,
// ForwardState draws random numbers. It does not wait. The Do owns the results.
func (m *RNN) ForwardState(x *cgotorch.Exec, in, state *cgotorch.Tensor) (out, last *cgotorch.Tensor) {
	op := "aten::rnn_tanh.input"
	if m.ReLU {
		op = "aten::rnn_relu.input"
	}
	return m.forward(x, "nn.RNN", op, in, state)
}

// Forward is [GRU.ForwardState] with a state of zeros, without the last state.
func (m *GRU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	out, last := m.ForwardState(x, in, nil)
	last.Close()
	return out
}

// ForwardState maps sequences and a state as [RNN.ForwardState] does.
func (m *GRU) ForwardState(x *cgotorch.Exec, in, state *cgotorch.Tensor) (out, last *cgotorch.Tensor) {
	return m.forward(x, "nn.GRU", "aten::gru.input", in, state)
}

// Forward is [LSTM.ForwardState] with states of zeros, without the last states.
func (m *LSTM) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	out, last, lastCell := m.ForwardState(x, in, nil, nil)
	last.Close()
	lastCell.Close()
	return out
}

// ForwardState maps sequences and states as [RNN.ForwardState] does. With Projection, the results
// and `state` have the width Projection. The cell states are [layers*directions, N, hidden]. A nil
// state is zeros.
func (m *LSTM) ForwardState(x *cgotorch.Exec, in, state, cell *cgotorch.Tensor) (out, last, lastCell *cgotorch.Tensor) {
	m.check(x, "nn.LSTM", in)
	m.checkState(x, "nn.LSTM", "state", state, in, m.width())
	m.checkState(x, "nn.LSTM", "cell state", cell, in, int64(m.Hidden))
	if state == nil {
		state = m.zeros(x, in, m.width())
		defer state.Close()
	}
	if cell == nil {
		cell = m.zeros(x, in, int64(m.Hidden))
		defer cell.Close()
	}
	results := m.run(x, "aten::lstm.input", in, []*cgotorch.Tensor{state, cell})
	return results[0].(*cgotorch.Tensor), results[1].(*cgotorch.Tensor), results[2].(*cgotorch.Tensor)
}
