// DCGAN trains two models against each other: a generator makes images of noise, and a
// discriminator tells them from photographs. After each epoch it writes a picture of 64 samples.
//
//	go run ./examples/dcgan [-epochs N] [-out FOLDER] [ARCHIVE]
package main

import (
	"context"
	"flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/prefetcher"
)

const (
	side  = 32 // pixels of an image
	noise = 64 // numbers that the generator makes an image of
	width = 64 // channels of the last layers
	batch = 128
)

func main() {
	epochs := flag.Int("epochs", 5, "passes over the images")
	out := flag.String("out", filepath.Join("runs", "dcgan"), "folder for the pictures")
	flag.Parse()
	archive := flag.Arg(0)
	if archive == "" {
		_, source, _, _ := runtime.Caller(0)
		archive = filepath.Join(filepath.Dir(source), "..", "train", "data", "cifar10-10k.tgz")
	}
	run(context.Background(), archive, *out, *epochs)
}

// pair has the two models, their optimizers and their steps.
type pair struct {
	generator, discriminator *nn.Sequential
	ofG, ofD                 *optim.Optimizer
	stepD, stepG             *cgotorch.Captured
	fixed                    *cgotorch.Tensor // the noise of the pictures
}

func newPair(x *cgotorch.Exec) (*pair, error) {
	up := func(in, out, stride, padding int) nn.Module {
		return nn.NewConvTranspose2d(x, in, out, nn.Square(4), nn.ConvTranspose2dOptions{Stride: nn.Square(stride), Padding: nn.Square(padding), NoBias: true})
	}
	down := func(in, out, stride, padding int) nn.Module {
		return nn.NewConv2d(x, in, out, nn.Square(4), nn.Conv2dOptions{Stride: nn.Square(stride), Padding: nn.Square(padding), NoBias: true})
	}
	norm := func(channels int) nn.Module { return nn.NewBatchNorm2d(x, channels, nn.BatchNormOptions{}) }
	leaky := &nn.LeakyReLU{NegativeSlope: 0.2}
	p := &pair{
		generator: nn.NewSequential(
			up(noise, 4*width, 1, 0), norm(4*width), &nn.ReLU{}, // 4x4
			up(4*width, 2*width, 2, 1), norm(2*width), &nn.ReLU{}, // 8x8
			up(2*width, width, 2, 1), norm(width), &nn.ReLU{}, // 16x16
			up(width, 3, 2, 1), &nn.Tanh{}), // 32x32, from -1 to 1
		discriminator: nn.NewSequential(
			down(3, width, 2, 1), leaky,
			down(width, 2*width, 2, 1), norm(2*width), leaky,
			down(2*width, 4*width, 2, 1), norm(4*width), leaky,
			down(4*width, 1, 1, 0), &nn.Flatten{}),
	}
	for _, m := range []*nn.Sequential{p.generator, p.discriminator} {
		nn.Apply(m, func(m any) { // the paper's first weights
			switch m := m.(type) {
			case *nn.Conv2d:
				nn.Normal(x, m.Weight, 0, 0.02)
			case *nn.ConvTranspose2d:
				nn.Normal(x, m.Weight, 0, 0.02)
			}
		})
	}
	o := optim.AdamOptions{LR: 2e-4, Betas: cgotorch.Set([2]float64{0.5, 0.999})}
	p.ofG = cgotorch.Must(optim.NewAdam(o, optim.Group{Params: nn.Parameters(p.generator)}))
	p.ofD = cgotorch.Must(optim.NewAdam(o, optim.Group{Params: nn.Parameters(p.discriminator)}))
	p.stepD, p.stepG = cgotorch.NewCaptured(p.trainDiscriminator, cgotorch.CapturedOptions{}), cgotorch.NewCaptured(p.trainGenerator, cgotorch.CapturedOptions{})
	p.fixed = x.Keep(x.Randn(cgotorch.Float32, 64, noise, 1, 1))
	return p, nil
}

// trainDiscriminator shows photographs and made images, and returns the loss.
func (p *pair) trainDiscriminator(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	photographs := in[0]
	made := p.generator.Forward(x.NoGrad(), x.Randn(cgotorch.Float32, photographs.Shape()[0], noise, 1, 1))
	ofPhotographs, ofMade := p.discriminator.Forward(x, photographs), p.discriminator.Forward(x, made)
	loss := x.Add(nn.BCEWithLogits(x, ofPhotographs, x.OnesLike(ofPhotographs), nn.BCEOptions{}), nn.BCEWithLogits(x, ofMade, x.ZerosLike(ofMade), nn.BCEOptions{}))
	p.ofD.Minimize(x, loss)
	return []*cgotorch.Tensor{loss}
}

// trainGenerator makes images that the discriminator is to take for photographs, and returns the
// loss.
func (p *pair) trainGenerator(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	p.ofD.ZeroGrad() // this backward goes through the discriminator too
	made := p.generator.Forward(x, x.Randn(cgotorch.Float32, in[0].Shape()[0], noise, 1, 1))
	seen := p.discriminator.Forward(x, made)
	loss := nn.BCEWithLogits(x, seen, x.OnesLike(seen), nn.BCEOptions{})
	p.ofG.Minimize(x, loss)
	return []*cgotorch.Tensor{loss}
}

// picture writes the generator's images of the fixed noise.
func (p *pair) picture(x *cgotorch.Exec, path string) error {
	made := p.generator.Forward(x.NoGrad(), p.fixed)
	img := images.ToImage(x, images.Grid(x, x.AddScalar(x.MulScalar(made, 0.5), 0.5), images.GridOptions{}))
	file := cgotorch.Must(os.Create(path))
	defer file.Close()
	return png.Encode(file, img)
}

func (p *pair) close() {
	p.stepD.Close()
	p.stepG.Close()
	p.ofD.Close()
	p.ofG.Close()
	nn.Close(p.generator)
	nn.Close(p.discriminator)
	p.fixed.Close()
}

func run(ctx context.Context, archive, out string, epochs int) {
	device := cgotorch.Must(cgotorch.ParseDevice("auto"))
	cgotorch.Check(os.MkdirAll(out, 0o755))
	loader := cgotorch.Must(imageloader.Open(archive, imageloader.Options{
		Train: true, Split: "train", DropLast: true, BatchSize: batch, Crop: imageloader.Crop{Transform: decode.Resize{Height: side, Width: side}},
	}))
	defer loader.Close()
	half := []float64{0.5} // from -1 to 1, as the generator's images
	ahead := cgotorch.Must(prefetcher.New(loader, device, prefetcher.Options{Mean: half, Std: half}))
	defer ahead.Close()

	stream := cgotorch.DefaultStream(device)
	p := cgotorch.Must(cgotorch.DoValue(stream, newPair))
	defer p.close()
	for epoch := range epochs {
		cgotorch.Must(cgotorch.DoEach(stream, ahead.Epoch(ctx), func(x *cgotorch.Exec, batch *prefetcher.Batch) error {
			photographs, _ := batch.Use(x)
			ofD, ofG := p.stepD.Run(x, photographs)[0], p.stepG.Run(x, photographs)[0]
			if batch.Index%20 == 0 {
				fmt.Printf("epoch %d, batch %d: discriminator %.3f, generator %.3f\n", epoch, batch.Index, x.Item(ofD), x.Item(ofG))
			}
			return nil
		}))
		path := filepath.Join(out, fmt.Sprintf("epoch%d.png", epoch))
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { return p.picture(x, path) }))
		fmt.Println("wrote", path)
	}
}
