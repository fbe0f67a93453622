package text_test

import (
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// cutStep is a step that is captured in pieces. Each piece ends at a sparse layer. Between two
// pieces the host runs the experts of this layer.
type cutStep struct {
	m      *text.Switch
	c      *text.Cache
	routed text.Routed      // the routing of the previous piece; all tensors here have fixed addresses
	hidden *cgotorch.Tensor // [1, d_model]
	bias   *cgotorch.Tensor // [heads, 1, capacity]
	out    *cgotorch.Tensor // the results of the experts, [1, d_model]
	logits *cgotorch.Tensor // [1, vocab_size]

	sparse []int // the numbers of the sparse blocks
	graphs []*cgotorch.Graph
}

func (s *cutStep) tensors() []*cgotorch.Tensor {
	return []*cgotorch.Tensor{s.routed.States, s.routed.IDs, s.routed.Probabilities, s.hidden, s.bias, s.out, s.logits}
}

func newCutStep(x *cgotorch.Exec, m *text.Switch, c *text.Cache) *cutStep {
	width := int64(m.Config.DModel)
	s := &cutStep{m: m, c: c, hidden: x.Zeros(m.Shared.Weight.DType(), 1, width), out: x.Zeros(m.Shared.Weight.DType(), 1, width), logits: x.Zeros(m.Shared.Weight.DType(), 1, int64(m.Config.VocabSize)),
		bias: x.Zeros(m.Shared.Weight.DType(), int64(m.Config.NumHeads), 1, c.Keys[0].Shape()[2]),
		routed: text.Routed{
			States: x.Zeros(m.Shared.Weight.DType(), 1, width), IDs: x.Zeros(cgotorch.Int64, 1), Probabilities: x.Zeros(m.Shared.Weight.DType(), 1, 1),
		}}
	for _, t := range s.tensors() {
		x.Keep(t)
	}
	for i, block := range m.Decoder.Block {
		if block.FF.Sparse != nil {
			s.sparse = append(s.sparse, i)
		}
	}
	return s
}

// piece runs from the Combine of one sparse layer to the Route of the next. The first piece
// starts at the beginning of the step. The last piece stops at the end of the step.
func (s *cutStep) piece(x *cgotorch.Exec, piece int) {
	blocks := s.m.Decoder.Block
	var hidden *cgotorch.Tensor
	next := 0
	if piece == 0 {
		var bias *cgotorch.Tensor
		hidden, bias = s.m.Decoder.Begin(x, s.c)
		x.CopyInPlace(s.bias, bias)
	} else {
		next = s.sparse[piece-1]
		hidden = blocks[next].FF.Combine(x, s.hidden, s.routed, s.out)
		next++
	}
	for ; next < len(blocks); next++ {
		hidden = s.m.Decoder.Attend(x, s.c, next, hidden, s.bias)
		if blocks[next].FF.Sparse != nil {
			routed := blocks[next].FF.Route(x, hidden)
			for _, pair := range [][2]*cgotorch.Tensor{{s.hidden, hidden}, {s.routed.States, routed.States}, {s.routed.IDs, routed.IDs}, {s.routed.Probabilities, routed.Probabilities}} {
				x.CopyInPlace(pair[0], pair[1])
			}
			return
		}
		hidden = blocks[next].FF.Forward(x, hidden)
	}
	logits := s.m.Predict(x, hidden)
	x.CopyInPlace(s.logits, logits)
	s.c.Next(x, logits)
}

// run launches the pieces and runs the experts between them.
func (s *cutStep) run(stream *cgotorch.Stream) error {
	for i, graph := range s.graphs {
		if err := graph.Launch(stream); err != nil {
			return err
		}
		if i == len(s.sparse) {
			return nil
		}
		experts := s.m.Decoder.Block[s.sparse[i]].FF.Sparse.Experts.Expert
		err := stream.Do(func(x *cgotorch.Exec) error {
			out := nn.Dispatch(x, s.routed.States, cgotorch.ToSlice[int64](x, s.routed.IDs), nil, func(expert int64, rows *cgotorch.Tensor) *cgotorch.Tensor {
				return experts[expert].Forward(x, rows)
			})
			x.CopyInPlace(s.out, out)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// For one sequence, captured pieces with experts between them give the same bits as a whole step.
func TestDecoder_Pieces_Captured(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		f, config := readCase(t, "tied")
		r := f.Runs[0]
		r.IDs, r.Mask = r.IDs[:1], r.Mask[:1]
		const steps = 5
		var s *cutStep
		var want [][]float32
		torchtest.CheckLeaks(t)
		stream := cgotorch.DefaultStream(d)
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) error {
			m := model(t, x, f, config, text.SwitchOptions{})
			eager := started(t, x, m, r, text.CacheOptions{})
			for range steps {
				logits := m.Step(x, eager)
				want = append(want, cgotorch.ToSlice[float32](x, logits))
				eager.Next(x, logits)
			}
			s = newCutStep(x, m, started(t, x, m, r, text.CacheOptions{}))
			return nil
		})
		defer func() {
			for _, g := range s.graphs {
				g.Close()
			}
			for _, t := range s.tensors() {
				t.Close()
			}
		}()
		for i := range len(s.sparse) + 1 {
			graph, err := stream.Capture(func(x *cgotorch.Exec) error { s.piece(x, i); return nil }, 1)
			if err != nil {
				t.Fatal(err)
			}
			s.graphs = append(s.graphs, graph)
		}
		err := stream.Do(func(x *cgotorch.Exec) error { // the warm-up runs have changed the cache
			ids, mask, _ := r.inputs(x)
			s.m.Decoder.Start(x, s.c, s.m.Encode(x, ids, mask), mask)
			return nil
		})
		for i := 0; i < steps && err == nil; i++ {
			if err = s.run(stream); err == nil {
				err = stream.Do(func(x *cgotorch.Exec) error {
					if got := cgotorch.ToSlice[float32](x, s.logits); !slices.Equal(got, want[i]) {
						t.Errorf("step %d: other bits than the eager step's", i)
					}
					return nil
				})
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}
