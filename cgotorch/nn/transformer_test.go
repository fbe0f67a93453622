package nn_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The layers of a new encoder have equal weights, as in PyTorch, in tensors of their own.
func TestTransformerEncoder_CopiesItsFirstLayer(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := nn.NewTransformerEncoder(x, 6, 2, 3, nn.TransformerOptions{FeedForward: 8})
		defer nn.Close(m)
		if got := len(nn.Parameters(m)); got != 3*12 {
			t.Errorf("%d parameters, want 36", got)
		}
		first, last := m.Layers[0].Linear1.Weight, m.Layers[2].Linear1.Weight
		if !x.Equal(first, last) || first.SharesMemory(last) || !last.RequiresGrad() {
			t.Error("the last layer has other weights than the first, or the same tensors, or none to train")
		}
	})
}

// Attention sees no hidden key: the option Causal, a mask of Bool and one of numbers agree, and
// padding has no influence.
func TestMultiheadAttention_Attend_Masks(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
			m := nn.NewMultiheadAttention(x, 6, 2, nn.AttentionOptions{})
			defer nn.Close(m)
			in := x.Randn(cgotorch.Float32, 2, 4, 6)
			hidden := x.Triu(x.Ones(cgotorch.Bool, 4, 4), 1)
			numbers := x.MulScalar(x.To(hidden, cgotorch.Float32), -1e9)
			masked := m.Attend(x, in, in, in, nn.AttentionMask{Hidden: hidden})
			near := func(what string, a, b *cgotorch.Tensor) {
				t.Helper()
				if !x.AllClose(a, b, cgotorch.ToleranceOptions{Absolute: cgotorch.Set(1e-6)}) {
					t.Errorf("%s: %v, want %v", what, values(x, a), values(x, b))
				}
			}
			near("numbers", m.Attend(x, in, in, in, nn.AttentionMask{Hidden: numbers}), masked)
			m.Causal = true
			near("Causal", m.Forward(x, in), masked)
			padding := cgotorch.FromSlice(x, []bool{false, false, false, true, false, false, false, true}, 2, 4)
			near("Causal with padding", x.Narrow(m.Attend(x, in, in, in, nn.AttentionMask{Padding: padding}), 1, 0, 3), x.Narrow(masked, 1, 0, 3))
			m.Causal = false
			short := x.Contiguous(x.Narrow(in, 1, 0, 3), cgotorch.Contiguous)
			near("padding", m.Attend(x, in, in, in, nn.AttentionMask{Padding: padding}), m.Attend(x, in, short, short, nn.AttentionMask{}))
		})
	})
}

// Layers run under autocast, with float32 gradients. Dropout works in training alone.
func TestTransformerLayers_AutocastAndDropout(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
			for _, o := range []nn.TransformerOptions{{FeedForward: 8}, {FeedForward: 8, NormFirst: true, GELU: true, NoBias: true}} {
				encoder, decoder := nn.NewTransformerEncoderLayer(x, 8, 2, o), nn.NewTransformerDecoderLayer(x, 8, 2, o)
				defer nn.Close([]any{encoder, decoder})
				in := x.Randn(cgotorch.Float32, 2, 4, 8)
				run := func(x *cgotorch.Exec) *cgotorch.Tensor {
					return decoder.ForwardWith(x, in, encoder.Forward(x, in), nn.AttentionMask{}, nn.AttentionMask{})
				}
				if x.Equal(run(x), run(x)) {
					t.Error("no dropout in training")
				}
				nn.SetTraining(encoder, false)
				nn.SetTraining(decoder, false)
				if !x.Equal(run(x), run(x)) {
					t.Error("dropout in evaluation")
				}
				exact, rounded := run(x), run(x.Autocast(cgotorch.BFloat16))
				if !x.AllClose(x.To(rounded, cgotorch.Float32), exact, cgotorch.ToleranceOptions{Absolute: cgotorch.Set(0.1), Relative: cgotorch.Set(0.1)}) {
					t.Errorf("%+v: under autocast %v, want about %v", o, values(x, x.To(rounded, cgotorch.Float32)), values(x, exact))
				}
				x.Backward(x.Sum(x.To(rounded, cgotorch.Float32)))
				for _, p := range append(nn.NamedParameters(encoder), nn.NamedParameters(decoder)...) {
					if g := p.Tensor.Grad(); g == nil || g.DType() != cgotorch.Float32 {
						t.Errorf("%s has the gradient %v", p.Name, g)
					}
				}
			}
		})
	})
}

// Check finds a decoder in an unexported field, though a decoder is no Module.
func TestCheck_FindsDecoder(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		d := nn.NewTransformerDecoder(x, 4, 2, 1, nn.TransformerOptions{FeedForward: 4})
		defer nn.Close(d)
		if err := nn.Check(d); err != nil {
			t.Error(err)
		}
		torchtest.WantError(t, nn.Check(&struct{ decoder *nn.TransformerDecoder }{d}), cgotorch.ErrInvalidArgument, "decoder, an unexported")
	})
}

// A mask of another shape or dtype is refused: it would hide other keys, or none.
func TestMultiheadAttention_WrongMasks(t *testing.T) {
	for name, mask := range map[string]func(x *cgotorch.Exec) nn.AttentionMask{
		"padding of [S, N]": func(x *cgotorch.Exec) nn.AttentionMask {
			return nn.AttentionMask{Padding: x.Zeros(cgotorch.Bool, 3, 2)}
		},
		"padding of bytes": func(x *cgotorch.Exec) nn.AttentionMask {
			return nn.AttentionMask{Padding: x.Zeros(cgotorch.Uint8, 2, 3)}
		},
		"one row": func(x *cgotorch.Exec) nn.AttentionMask {
			return nn.AttentionMask{Hidden: x.Zeros(cgotorch.Bool, 1, 3)}
		},
		"integers": func(x *cgotorch.Exec) nn.AttentionMask {
			return nn.AttentionMask{Hidden: x.Zeros(cgotorch.Int64, 3, 3)}
		},
	} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			m := nn.NewMultiheadAttention(x, 8, 2, nn.AttentionOptions{})
			defer nn.Close(m)
			in := x.Randn(cgotorch.Float32, 2, 3, 8)
			m.Attend(x, in, in, in, mask(x))
			return nil
		})
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "AttentionMask") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A batch without sequences has a result without sequences.
func TestMultiheadAttention_EmptyBatch(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := nn.NewMultiheadAttention(x, 8, 2, nn.AttentionOptions{})
		defer nn.Close(m)
		in, key := x.Zeros(cgotorch.Float32, 0, 5, 8), x.Zeros(cgotorch.Float32, 0, 4, 8)
		for _, out := range []*cgotorch.Tensor{m.Attend(x, in, in, in, nn.AttentionMask{}), m.Attend(x, in, key, key, nn.AttentionMask{})} {
			if fmt.Sprint(out.Shape()) != "[0 5 8]" {
				t.Errorf("got %v", out)
			}
		}
	})
}
