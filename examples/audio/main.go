// Audio trains a classifier of sounds. Each sound is raw samples. A short-time Fourier transform
// on the device makes a spectrogram of it, and a small convolutional network classifies that. The
// program makes the sounds itself: tones, sweeps and noise.
//
//	go run ./examples/audio
package main

import (
	"context"
	"fmt"
	"log"
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
	if err := train(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func train(ctx context.Context) error {
	sounds, labels := synthesise(1200)
	table, err := data.NewTable(data.Of("sound", sounds, length), data.Of("label", labels))
	if err != nil {
		return err
	}
	loader, err := data.NewLoader(table, data.Options{BatchSize: 32, Shuffle: true})
	if err != nil {
		return err
	}
	defer loader.Close()
	device, err := cgotorch.ParseDevice("auto")
	if err != nil {
		return err
	}
	ahead, err := prefetcher.NewTensors(loader, device, prefetcher.TensorOptions{})
	if err != nil {
		return err
	}
	defer ahead.Close()

	stream := cgotorch.DefaultStream(device)
	var model *nn.Sequential
	var opt *optim.Optimizer
	err = stream.Do(func(x *cgotorch.Exec) error {
		stride := nn.Conv2dOptions{Stride: nn.Square(2)}
		model = nn.NewSequential(
			nn.NewConv2d(x, 1, 8, nn.Square(5), stride), nn.NewBatchNorm2d(x, 8, nn.BatchNorm2dOptions{}), &nn.ReLU{}, nn.NewConv2d(x, 8, 16, nn.Square(3), stride), &nn.ReLU{},
			nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
				return x.MeanDim(in, []int64{2, 3}, cgotorch.SumOptions{})
			}),
			nn.NewLinear(x, 16, 3, nn.LinearOptions{}))
		opt, err = optim.NewAdam(optim.AdamOptions{LR: 0.01}, optim.Group{Params: nn.Parameters(model)})
		return err
	})
	if err != nil {
		return err
	}
	defer nn.Close(model)
	defer opt.Close()

	for batch, err := range ahead.Epoch(ctx) {
		if err != nil {
			return err
		}
		err = stream.Do(func(x *cgotorch.Exec) error {
			in := batch.Use(x)
			opt.ZeroGrad()
			loss := nn.CrossEntropy(x, model.Forward(x, spectrogram(x, in["sound"])), in["label"], nn.CrossEntropyOptions{})
			x.Backward(loss)
			opt.Step(x)
			if batch.Index%5 == 0 {
				fmt.Printf("batch %d: loss %.4f\n", batch.Index, x.Item(loss)) // x.Item waits for the device
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

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
