// Audio trains a classifier of sounds. Each sound is raw samples. A short-time Fourier transform
// on the device makes a spectrogram of it, and a small convolutional network classifies that. The
// program makes the sounds itself: tones, sweeps and noise.
//
//	go run ./examples/audio
package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/prefetcher"
)

const length, rate, window, hop = 2048, 8000, 256, 128

func main() {
	sounds, labels := synthesise(1200)
	table := cgotorch.Must(data.NewTable(data.Of("sound", sounds, length), data.Of("label", labels)))
	loader := cgotorch.Must(data.NewLoader(table, data.Options{BatchSize: 32, Shuffle: true}))
	device := cgotorch.Must(cgotorch.ParseDevice("auto"))
	ahead := cgotorch.Must(prefetcher.NewTensors(loader, device, prefetcher.TensorOptions{}))

	stream := cgotorch.DefaultStream(device)
	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (*nn.Sequential, error) {
		stride := nn.Conv2dOptions{Stride: nn.Square(2)}
		return nn.NewSequential(
			nn.NewConv2d(x, 1, 8, nn.Square(5), stride), nn.NewBatchNorm2d(x, 8, nn.BatchNormOptions{}), &nn.ReLU{}, nn.NewConv2d(x, 8, 16, nn.Square(3), stride), &nn.ReLU{},
			nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
				return x.MeanDim(in, []int64{2, 3}, cgotorch.SumOptions{})
			}),
			nn.NewLinear(x, 16, 3, nn.LinearOptions{})), nil
	}))
	opt := cgotorch.Must(optim.NewAdam(optim.AdamOptions{LR: 0.01}, optim.Group{Params: nn.Parameters(model)}))

	cgotorch.Must(cgotorch.DoEach(stream, ahead.Epoch(context.Background()), func(x *cgotorch.Exec, batch *prefetcher.TensorBatch) error {
		in := batch.Use(x)
		loss := nn.CrossEntropy(x, model.Forward(x, spectrogram(x, in["sound"])), in["label"], nn.CrossEntropyOptions{})
		opt.Minimize(x, loss)
		if batch.Index%5 == 0 {
			fmt.Printf("batch %d: loss %.4f\n", batch.Index, x.Item(loss)) // x.Item waits for the device
		}
		return nil
	}))
} // the end of the process frees everything; a longer program closes opt, model, ahead and loader

// spectrogram maps sounds [N, length] to log magnitudes [N, 1, frequencies, times].
func spectrogram(x *cgotorch.Exec, sound *cgotorch.Tensor) *cgotorch.Tensor {
	hann := x.Call("aten::hann_window", window)[0].(*cgotorch.Tensor)
	complex := x.Call("aten::stft", sound, window, hop, window, hann, false, true, true)[0].(*cgotorch.Tensor)
	return x.Unsqueeze(x.Log1p(x.Abs(complex)), 1)
}

// synthesise returns n sounds and their classes: 0 a tone, 1 a rising sweep, 2 noise.
func synthesise(n int) (sounds []float32, labels []int64) {
	for i := range n {
		frequency, phase := 200+2000*rand.Float64(), 0.0
		for t := range length {
			rise := float64(i%3) * 1500 * float64(t) / length
			phase += 2 * math.Pi * (frequency + rise) / rate
			v := math.Sin(phase)
			if i%3 == 2 {
				v = rand.NormFloat64()
			}
			sounds = append(sounds, float32(v+0.3*rand.NormFloat64()))
		}
		labels = append(labels, int64(i%3))
	}
	return sounds, labels
}
