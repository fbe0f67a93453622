package text_test

import (
	"fmt"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// BenchmarkSwitch_Step runs one step of the decoder with resident experts. On CUDA the model is
// google/switch-base-128 in bfloat16. On the CPU a smaller model has 4 blocks and 8 experts. The
// captured step is one launch.
func BenchmarkSwitch_Step(b *testing.B) {
	for _, d := range []cgotorch.Device{cgotorch.CPU, cgotorch.CUDA(0)} {
		config, o := switchBase128(), text.SwitchOptions{DType: cgotorch.BFloat16}
		if d.IsCUDA() {
			if n, _ := cgotorch.CUDACount(); n == 0 {
				continue
			}
		} else {
			config.NumLayers, config.NumDecoderLayers, config.NumSparseEncoderLayers, config.NumSparseDecoderLayers = 4, 4, 2, 2
			config.NumExperts, o.DType = 8, cgotorch.Float32
		}
		benchmarkStep(b, cgotorch.DefaultStream(d), config, o)
	}
}

func benchmarkStep(b *testing.B, s *cgotorch.Stream, config text.SwitchConfig, o text.SwitchOptions) {
	var m *text.Switch
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	must(s.Do(func(x *cgotorch.Exec) error { m = text.NewSwitch(x, config, o); return nil }))
	defer nn.Close(m)
	for _, batch := range []int{1, 8} {
		var c *text.Cache
		start := func() {
			must(s.Do(func(x *cgotorch.Exec) error {
				ids := x.RandInt(cgotorch.Int64, 0, config.VocabSize, int64(batch), 32)
				if c == nil {
					c = m.NewCache(x, text.CacheOptions{Batch: batch, Capacity: 128, Source: 128})
				}
				m.Decoder.Start(x, c, m.Encode(x, ids, nil), nil)
				return nil
			}))
		}
		start()
		step := func(x *cgotorch.Exec) error {
			x.Tidy(func() *cgotorch.Tensor { c.Next(x, m.Step(x, c)); return nil })
			return nil
		}
		graph, err := s.Capture(step, cgotorch.CaptureOptions{WarmUp: 2})
		must(err)
		for _, way := range []struct {
			name string
			run  func() error
		}{{"eager", func() error { return s.Do(step) }}, {"captured", func() error { return graph.Launch(s) }}} {
			b.Run(fmt.Sprintf("device=%v/batch=%d/%s", s.Device(), batch, way.name), func(b *testing.B) {
				for i := range b.N { // b.Loop would stop the clock before the wait for the device
					if i%128 == 0 {
						must(s.Synchronize())
						b.StopTimer()
						start()
						must(s.Synchronize())
						b.StartTimer()
					}
					must(way.run())
				}
				must(s.Synchronize())
				b.ReportMetric(float64(batch*b.N)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
		must(graph.Close())
		must(c.Close())
	}
}
