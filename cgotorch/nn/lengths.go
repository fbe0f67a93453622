package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// packed holds sequences of different lengths without their padding, in the form of LibTorch's
// operators. The sequences are sorted by length, the longest first.
type packed struct {
	data, counts *cgotorch.Tensor // the positions, and how many sequences have a position of each number, on the CPU
	order, back  *cgotorch.Tensor // the numbers of the sorted sequences, and the places of the sequences
	length       int64            // of the padded sequences
}

// pack packs sequences. `lengths` has the length of each of them, from 1 to L.
func (m *Recurrent) pack(x *cgotorch.Exec, where string, in *cgotorch.Tensor, lengths []int64) packed {
	m.check(x, where, in)
	batch, length := in.Shape()[1], in.Shape()[0]
	if m.BatchFirst {
		batch, length = length, batch
	}
	if int64(len(lengths)) != batch || batch == 0 || slices.Min(lengths) < 1 || slices.Max(lengths) > length {
		refuse(x, where, "the lengths are %v, want %d numbers from 1 to %d", lengths, batch, length)
	}
	order, back, sorted := make([]int64, batch), make([]int64, batch), make([]int64, batch)
	for i := range order {
		order[i] = int64(i)
	}
	slices.SortStableFunc(order, func(a, b int64) int { return int(lengths[b] - lengths[a]) })
	for place, i := range order {
		back[i], sorted[place] = int64(place), lengths[i]
	}
	p := packed{order: cgotorch.FromSlice(x, order), back: cgotorch.FromSlice(x, back), length: length}
	rows, counts := x.IndexSelect(in, m.batchDim(), p.order), onHost(x, func(x *cgotorch.Exec) *cgotorch.Tensor { return cgotorch.FromSlice(x, sorted) })
	defer closeUnless(nil, rows, counts)
	results := x.Call("aten::_pack_padded_sequence", rows, counts, m.BatchFirst)
	p.data, p.counts = results[0].(*cgotorch.Tensor), results[1].(*cgotorch.Tensor)
	return p
}

func (m *Recurrent) batchDim() int {
	if m.BatchFirst {
		return 0
	}
	return 1
}

// runPacked calls one of LibTorch's operators for packed sequences, and closes p. It returns the
// padded results, and the last states, of which there is one for each state. A nil state is zeros
// of the given width.
func (m *Recurrent) runPacked(x *cgotorch.Exec, where, op string, in *cgotorch.Tensor, p packed, states []*cgotorch.Tensor, widths []int64) []*cgotorch.Tensor {
	defer closeUnless(nil, p.data, p.counts, p.order, p.back)
	for i, state := range states {
		m.checkState(x, where, [...]string{"state", "cell state"}[i], state, in, widths[i])
	}
	for i, state := range states {
		if state == nil {
			states[i] = m.zeros(x, in, widths[i])
		} else {
			states[i] = x.IndexSelect(state, 1, p.order)
		}
	}
	var state any = states[0]
	if len(states) > 1 {
		state = states
	}
	defer closeUnless(nil, states...)
	results := x.Call(op, p.data, p.counts, state, m.tensors(), !m.NoBias, m.Layers, m.Dropout, !m.Eval, m.Bidirectional)
	padded := x.Call("aten::_pad_packed_sequence", results[0], p.counts, m.BatchFirst, 0.0, p.length)
	padded[1].(*cgotorch.Tensor).Close() // the lengths
	results[0].(*cgotorch.Tensor).Close()
	results[0] = padded[0]
	out := make([]*cgotorch.Tensor, len(results))
	for i, r := range results {
		dim := 1
		if i == 0 {
			dim = m.batchDim()
		}
		t := r.(*cgotorch.Tensor)
		out[i] = x.IndexSelect(t, dim, p.back)
		t.Close()
	}
	return out
}

// ForwardLengths is [RNN.ForwardState] for sequences of different lengths, from 1 to L, which end
// in padding. Results in the padding are 0. The state `last` is that behind each sequence's end.
// The lengths are in host memory. A copy of some numbers to a CUDA device waits: see
// [cgotorch.FromSlice]. In PyTorch this is a packed sequence.
func (m *RNN) ForwardLengths(x *cgotorch.Exec, in *cgotorch.Tensor, lengths []int64, state *cgotorch.Tensor) (out, last *cgotorch.Tensor) {
	op := "aten::rnn_tanh.data"
	if m.ReLU {
		op = "aten::rnn_relu.data"
	}
	results := m.runPacked(x, "nn.RNN", op, in, m.pack(x, "nn.RNN", in, lengths), []*cgotorch.Tensor{state}, []int64{m.width()})
	return results[0], results[1]
}

// ForwardLengths is [GRU.ForwardState] as [RNN.ForwardLengths] is RNN.ForwardState.
func (m *GRU) ForwardLengths(x *cgotorch.Exec, in *cgotorch.Tensor, lengths []int64, state *cgotorch.Tensor) (out, last *cgotorch.Tensor) {
	results := m.runPacked(x, "nn.GRU", "aten::gru.data", in, m.pack(x, "nn.GRU", in, lengths), []*cgotorch.Tensor{state}, []int64{m.width()})
	return results[0], results[1]
}

// ForwardLengths is [LSTM.ForwardState] as [RNN.ForwardLengths] is RNN.ForwardState.
func (m *LSTM) ForwardLengths(x *cgotorch.Exec, in *cgotorch.Tensor, lengths []int64, state, cell *cgotorch.Tensor) (out, last, lastCell *cgotorch.Tensor) {
	results := m.runPacked(x, "nn.LSTM", "aten::lstm.data", in, m.pack(x, "nn.LSTM", in, lengths), []*cgotorch.Tensor{state, cell}, []int64{m.width(), int64(m.Hidden)})
	return results[0], results[1], results[2]
}
