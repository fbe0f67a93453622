package nn_test

import (
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
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

// blindCases hide all keys of some queries, in sequences of 4 queries and keys, 2 samples and 2
// heads. A new case is one line.
var blindCases = []struct {
	name   string
	causal bool
	mask   func(x *cgotorch.Exec) nn.AttentionMask
	blind  func(sample, query int) bool // in all heads
}{
	{"padding of a sample", false, padded(8, 9, 10, 11), ofSample(1)},
	{"padding of all samples", false, padded(0, 1, 2, 3, 8, 9, 10, 11), func(int, int) bool { return true }},
	{"padding of a sample, in numbers", false, inNumbers(padded(8, 9, 10, 11)), ofSample(1)},
	{"padding on the left, causal", true, padded(0, 1, 10), func(sample, query int) bool { return sample == 0 && query < 2 }},
	{"padding of a sample, causal", true, padded(8, 9, 10, 11), ofSample(1)},
	{"one row", false, hiddenRows(2), func(_, query int) bool { return query == 2 }},
	{"one row, in numbers", false, inNumbers(hiddenRows(2)), func(_, query int) bool { return query == 2 }},
	{"the first and the last row", false, hiddenRows(0, 3), func(_, query int) bool { return query%3 == 0 }},
	{"all rows", false, hiddenRows(0, 1, 2, 3), func(int, int) bool { return true }},
	{"a row, causal", true, hiddenRows(3), func(_, query int) bool { return query == 3 }},
	{"before its own key", false, func(x *cgotorch.Exec) nn.AttentionMask {
		return nn.AttentionMask{Hidden: x.Triu(x.Ones(cgotorch.Bool, 4, 4), 0)}
	}, func(_, query int) bool { return query == 0 }},
	{"two before its own key", false, func(x *cgotorch.Exec) nn.AttentionMask {
		return nn.AttentionMask{Hidden: x.Triu(x.Ones(cgotorch.Bool, 4, 4), -2)}
	}, func(_, query int) bool { return query < 3 }},
	{"a part hidden, the rest padding", false, func(x *cgotorch.Exec) nn.AttentionMask {
		return nn.AttentionMask{Hidden: hiddenKeys(x, 0, 1), Padding: padded(2, 3)(x).Padding}
	}, ofSample(0)},
	{"numbers and padding", false, func(x *cgotorch.Exec) nn.AttentionMask {
		return nn.AttentionMask{Hidden: inNumbers(hiddenRows(1))(x).Hidden, Padding: padded(8)(x).Padding}
	}, func(_, query int) bool { return query == 1 }},
	{"for each head", false, func(x *cgotorch.Exec) nn.AttentionMask {
		return nn.AttentionMask{Hidden: x.Repeat(hiddenRows(2)(x).Hidden, 4, 1, 1)}
	}, func(_, query int) bool { return query == 2 }},
}

func ofSample(n int) func(sample, query int) bool {
	return func(sample, _ int) bool { return sample == n }
}

// padded returns a mask that hides keys. Key k of sample n has the number 8*n + k.
func padded(keys ...int) func(x *cgotorch.Exec) nn.AttentionMask {
	return func(x *cgotorch.Exec) nn.AttentionMask {
		all := make([]bool, 8)
		for _, k := range keys {
			all[k/8*4+k%8] = true
		}
		return nn.AttentionMask{Padding: cgotorch.FromSlice(x, all, 2, 4)}
	}
}

// hiddenRows returns a mask that hides all keys of some queries.
func hiddenRows(rows ...int) func(x *cgotorch.Exec) nn.AttentionMask {
	return func(x *cgotorch.Exec) nn.AttentionMask {
		return nn.AttentionMask{Hidden: x.Contiguous(x.Transpose(hiddenKeys(x, rows...), 0, 1), cgotorch.Contiguous)}
	}
}

func hiddenKeys(x *cgotorch.Exec, keys ...int) *cgotorch.Tensor {
	all := make([]bool, 16)
	for _, k := range keys {
		for q := range 4 {
			all[4*q+k] = true
		}
	}
	return cgotorch.FromSlice(x, all, 4, 4)
}

// inNumbers returns the mask with -Inf in place of true.
func inNumbers(mask func(x *cgotorch.Exec) nn.AttentionMask) func(x *cgotorch.Exec) nn.AttentionMask {
	return func(x *cgotorch.Exec) nn.AttentionMask {
		m := mask(x)
		for _, t := range []**cgotorch.Tensor{&m.Hidden, &m.Padding} {
			if *t != nil {
				*t = x.MaskedFill(x.Zeros(cgotorch.Float32, (*t).Shape()...), *t, math.Inf(-1))
			}
		}
		return m
	}
}

// A query that sees no key takes nothing, in Attend and in AttendWeights. Results and gradients of
// both are equal, and finite.
func TestMultiheadAttention_SeesNoKey(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		for _, dtype := range []cgotorch.DType{cgotorch.Float64, cgotorch.Float32, cgotorch.BFloat16, cgotorch.Float16} {
			for _, c := range blindCases {
				t.Run(fmt.Sprint(dtype, "/", c.name), func(t *testing.T) {
					torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
						m := nn.NewMultiheadAttention(x, 6, 2, nn.AttentionOptions{Causal: c.causal})
						defer nn.Close(m)
						x.NoGrad().AddScalarInPlace(m.OutProj.Bias, 0.25)
						nn.To(x, m, nn.ToOptions{DType: dtype})
						in := x.Randn(dtype, 2, 4, 6)
						most := map[cgotorch.DType]float64{cgotorch.BFloat16: 0.1, cgotorch.Float16: 0.02}[dtype] + 1e-4
						grads := func(out *cgotorch.Tensor) (all []*cgotorch.Tensor) {
							must.Do(t, nn.ZeroGrad(m))
							x.Backward(x.Sum(x.Square(out)))
							for _, p := range nn.Parameters(m) {
								all = append(all, x.Clone(p.Grad()))
							}
							return all
						}
						plain := m.Attend(x, in, in, in, c.mask(x))
						out, weights := m.AttendWeights(x, in, in, in, c.mask(x))
						a, b := append(grads(plain), plain), append(grads(out), out)
						for i := range a {
							if !x.AllClose(x.To(a[i], cgotorch.Float64), x.To(b[i], cgotorch.Float64), cgotorch.ToleranceOptions{Absolute: cgotorch.Set(most), Relative: cgotorch.Set(most)}) {
								t.Errorf("gradient or result %d of Attend is %v, of AttendWeights %v", i, values(x, x.To(a[i], cgotorch.Float32)), values(x, x.To(b[i], cgotorch.Float32)))
							}
						}
						seen, result := values(x, x.To(weights, cgotorch.Float32)), values(x, x.To(out, cgotorch.Float32))
						for row := range 8 {
							sum := float32(0)
							for _, w := range seen[4*row : 4*row+4] {
								sum += w
							}
							want := float32(1)
							if c.blind(row/4, row%4) {
								want = 0
								for _, v := range result[6*row : 6*row+6] {
									if v != 0.25 {
										t.Errorf("query %d of sample %d sees nothing, and its result is %v, want the bias", row%4, row/4, v)
									}
								}
							}
							if math.Abs(float64(sum-want)) > 0.01 {
								t.Errorf("query %d of sample %d: the weights are %v, want a sum of %v", row%4, row/4, seen[4*row:4*row+4], want)
							}
						}
					})
				})
			}
		}
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
		must.Do(t, nn.Check(d))
		torchtest.WantError(t, nn.Check(&struct{ decoder *nn.TransformerDecoder }{d}), cgotorch.ErrInvalidArgument, "decoder, an unexported")
	})
}

// A mask of another shape or dtype is refused: it would hide other keys, or none.
func TestMultiheadAttention_WrongMasks(t *testing.T) {
	for _, mask := range map[string]func(x *cgotorch.Exec) nn.AttentionMask{
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
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := nn.NewMultiheadAttention(x, 8, 2, nn.AttentionOptions{})
			defer nn.Close(m)
			in := x.Randn(cgotorch.Float32, 2, 3, 8)
			m.Attend(x, in, in, in, mask(x))
		})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "AttentionMask")
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
