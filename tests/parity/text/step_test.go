package text_test

import (
	"bytes"
	"context"
	"errors"
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

// started returns a cache that is ready to decode for the run's ids. The end of the test closes
// the cache.
func started(t *testing.T, x *cgotorch.Exec, m *text.Switch, r run, o text.CacheOptions) *text.Cache {
	t.Helper()
	ids, mask, _ := r.inputs(x)
	o.Batch = len(r.IDs)
	c := m.NewCache(x, o)
	t.Cleanup(func() { must.Check(t, c.Close()) })
	m.Decoder.Start(x, c, m.Encode(x, ids, mask), mask)
	return c
}

// token writes the tokens of one position of the run's decoder ids into the cache.
func token(x *cgotorch.Exec, c *text.Cache, r run, position int) {
	for i, row := range r.DecoderIDs {
		x.FillInPlace(x.Select(c.Tokens, 0, i), row[position])
	}
}

// wantStep compares `got` with the run's logits at one position. The shape of `got` is [batch,
// vocab_size].
func wantStep(t *testing.T, what string, got []float32, r run, position int, tolerance float64) {
	t.Helper()
	batch, length := len(r.DecoderIDs), len(r.DecoderIDs[0])
	vocab := len(r.Logits) / batch / length
	var want []float64
	for i := range batch {
		at := (i*length + position) * vocab
		want = append(want, r.Logits[at:at+vocab]...)
	}
	wantNear(t, fmt.Sprintf("%s, position %d", what, position), got, want, tolerance)
}

// The logits of single steps equal the logits of the whole pass, also if the cache is longer than
// needed. In the second round Start prepares a cache that was full of NaN.
func TestSwitch_Step(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.NoTF32(t)
				f := readCase(t, name)
				torchtest.Do(t, d, func(x *cgotorch.Exec) {
					m := model(t, x, f, text.SwitchOptions{})
					for _, r := range []run{f.Runs[0], f.Runs[2]} {
						for _, o := range []text.CacheOptions{{Capacity: 7, Source: 9}, {Capacity: 20, Source: 33}} {
							c := started(t, x, m, r, o)
							for round := range 2 {
								for i := range r.DecoderIDs[0] {
									token(x, c, r, i)
									step := x
									if round > 0 || !d.IsCUDA() { // on a GPU the first run of a step allocates memory, which may wait
										step = x.NoWaits()
									}
									logits := m.Step(step, c)
									c.Next(step, logits)
									wantStep(t, "a step", cgotorch.ToSlice[float32](x, logits), r, i, tolerance)
								}
								for _, list := range [][]*cgotorch.Tensor{c.Keys, c.Values, c.CrossKeys, c.CrossValues} {
									for _, left := range list {
										x.FillInPlace(left, math.NaN())
									}
								}
								ids, mask, _ := r.inputs(x)
								m.Decoder.Start(x, c, m.Encode(x, ids, mask), mask)
							}
						}
					}
				})
			})
		})
	}
}

// Steps give equal results after some weights are moved, so that the weights are not adjacent any
// more. This also holds for several sequences.
func TestSwitch_Step_WeightsApart(t *testing.T) {
	f := readCase(t, "tied")
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		for _, r := range f.Runs {
			torchtest.Do(t, d, func(x *cgotorch.Exec) {
				m := model(t, x, f, text.SwitchOptions{})
				for _, block := range m.Decoder.Block {
					for _, layer := range []*nn.Linear{block.Attention.SelfAttention.Q, block.Attention.SelfAttention.K} {
						apart := x.Keep(x.Clone(layer.Weight))
						layer.Weight.Close()
						layer.Weight = apart
					}
				}
				c := started(t, x, m, r, text.CacheOptions{})
				for i := range r.DecoderIDs[0] {
					token(x, c, r, i)
					logits := m.Step(x, c)
					c.Next(x, logits)
					wantStep(t, "a step", cgotorch.ToSlice[float32](x, logits), r, i, tolerance)
				}
			})
		}
	})
}

// A step, and the Next after it, are captured once and launched for each token. All logits equal
// the logits of eager steps bit for bit.
func TestSwitch_Step_Captured(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.BFloat16} {
			t.Run(dtype.String(), func(t *testing.T) { testCaptured(t, d, dtype) })
		}
	})
}

func testCaptured(t *testing.T, d cgotorch.Device, dtype cgotorch.DType) {
	const steps = 5
	f := readCase(t, "tied")
	r := f.Runs[0]
	var want [][]byte
	var m *text.Switch
	var c *text.Cache
	var logits *cgotorch.Tensor
	torchtest.CheckLeaks(t)
	stream := cgotorch.DefaultStream(d)
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
		m = model(t, x, f, text.SwitchOptions{DType: dtype})
		eager := started(t, x, m, r, text.CacheOptions{})
		for range steps {
			out := m.Step(x, eager)
			want = append(want, cgotorch.ToBytes(x, out))
			eager.Next(x, out)
		}
		c = started(t, x, m, r, text.CacheOptions{})
		logits = x.Keep(x.Zeros(dtype, int64(len(r.IDs)), int64(m.Config.VocabSize)))
	})
	defer logits.Close()
	// check prepares the cache again, because warm-up runs have changed it. It then compares the
	// logits of the steps.
	check := func(what string, step func() (*cgotorch.Tensor, error)) {
		t.Helper()
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
			ids, mask, _ := r.inputs(x)
			m.Decoder.Start(x, c, m.Encode(x, ids, mask), mask)
		})
		for i := range steps {
			got, err := step()
			if err == nil {
				err = stream.Do(func(x *cgotorch.Exec) error {
					if !bytes.Equal(cgotorch.ToBytes(x, got), want[i]) {
						t.Errorf("%s, step %d: other bits than the eager step's", what, i)
					}
					return nil
				})
			}
			must.Do(t, err)
		}
	}

	graph := must.Get(stream.Capture(func(x *cgotorch.Exec) error {
		out := m.Step(x, c)
		x.CopyInPlace(logits, out)
		c.Next(x, out)
		return nil
	}, 1))(t)
	defer graph.Close()
	check("a graph", func() (*cgotorch.Tensor, error) { return logits, graph.Launch(stream) })

	captured := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		out := m.Step(x, c)
		c.Next(x, out)
		return []*cgotorch.Tensor{out}
	}, cgotorch.CapturedOptions{WarmUp: 2})
	defer captured.Close()
	check("a Captured", func() (*cgotorch.Tensor, error) {
		err := stream.Do(func(x *cgotorch.Exec) error {
			x.CopyInPlace(logits, captured.Run(x)[0])
			return nil
		})
		return logits, err
	})
	if s := captured.Stats(); d.IsCUDA() && s.Launches != steps-2 {
		t.Errorf("%d of %d Runs launched a graph, want all but those of the warm-up: %s", s.Launches, steps, s.Why)
	}
}

// A step with a full cache gives an error, also if the host only launches a graph.
func TestSwitch_Step_Full(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		f := readCase(t, "tied")
		var m *text.Switch
		var c *text.Cache
		torchtest.CheckLeaks(t)
		stream := cgotorch.DefaultStream(d)
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
			m = model(t, x, f, text.SwitchOptions{})
			c = started(t, x, m, f.Runs[0], text.CacheOptions{Capacity: 3})
		})
		graph := must.Get(stream.Capture(func(x *cgotorch.Exec) error {
			c.Next(x, m.Step(x, c))
			return nil
		}, 1))(t)
		defer graph.Close()
		for range 2 {
			must.Do(t, graph.Launch(stream))
		}
		torchtest.WantError(t, graph.Launch(stream), cgotorch.ErrInvalidArgument, "made for 3 tokens")
	})
}

func TestSwitch_Generate(t *testing.T) {
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.NoTF32(t)
				f := readCase(t, name)
				r := f.Runs[0]
				var ended [][]int64
				for _, row := range f.Generated.Ended {
					if at := slices.Index(row, int64(f.Generated.EOS)); at >= 0 {
						row = row[:at+1]
					}
					ended = append(ended, row)
				}
				torchtest.Do(t, d, func(x *cgotorch.Exec) error {
					m := model(t, x, f, text.SwitchOptions{})
					ids, mask, _ := r.inputs(x)
					generate := func(eos []int, ids, mask *cgotorch.Tensor, o text.SwitchGenerateOptions) [][]int64 {
						m.Config.EOSTokenID = eos
						return must.Get(m.Generate(context.Background(), x, ids, mask, o))(t)
					}
					want := func(what string, got, want [][]int64) {
						if fmt.Sprint(got) != fmt.Sprint(want) {
							t.Errorf("%s: got %v, want %v", what, got, want)
						}
					}
					o := text.SwitchGenerateOptions{MaxNewTokens: 12}
					want("open", generate(nil, ids, mask, o), f.Generated.Open)
					want("ended", generate([]int{f.Generated.EOS}, ids, mask, o), ended)
					o.Cache = m.NewCache(x, text.CacheOptions{Batch: 2, Capacity: 12, Source: 9})
					defer o.Cache.Close()
					for range 2 {
						want("cache", generate(nil, ids, mask, o), f.Generated.Open)
					}
					for i := range r.IDs {
						got := generate(nil, x.Narrow(ids, 0, i, 1), x.Narrow(mask, 0, i, 1), text.SwitchGenerateOptions{MaxNewTokens: 12})
						want("one", got, f.Generated.Open[i:i+1])
					}
					steps := 0
					o.Step = func(x *cgotorch.Exec, c *text.Cache) *cgotorch.Tensor { steps++; return m.Step(x, c) }
					first := f.Generated.Open[0][0]
					generate([]int{int(first), int(f.Generated.Open[1][0])}, ids, mask, o)
					if steps != 2 {
						t.Errorf("%d steps for sequences of one token, want 2", steps)
					}
					return nil
				})
			})
		})
	}
}

func TestSwitch_Generate_Canceled(t *testing.T) {
	f := readCase(t, "tied")
	cause := errors.New("enough")
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		m := model(t, x, f, text.SwitchOptions{})
		ids, mask, _ := f.Runs[0].inputs(x)
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		step := func(x *cgotorch.Exec, c *text.Cache) *cgotorch.Tensor {
			cancel(cause)
			return m.Step(x, c)
		}
		_, err := m.Generate(ctx, x, ids, mask, text.SwitchGenerateOptions{MaxNewTokens: 100, Step: step})
		return err
	})
	if !errors.Is(err, cause) {
		t.Errorf("got error %v, want %v", err, cause)
	}
}
