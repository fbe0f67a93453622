package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

const top = 5 // number of classes in an answer

// classifier finds the classes of pictures. Several goroutines may use a classifier at the same
// time.
type classifier struct {
	classes []string
	size    int64 // height and width of the model's input
	pool    *decode.Pool
	model   nn.Module
	batcher *serve.Batcher
}

// answer is a class and its probability.
type answer struct {
	Class       string  `json:"class"`
	Probability float32 `json:"probability"`
}

// settings holds the fields that this program reads from a checkpoint's config. examples/train
// saves that config together with the tensors.
type settings struct {
	Config struct {
		Model string `json:"model"`
		Size  int    `json:"size"`
		Crop  string `json:"crop"`
	} `json:"config"`
	Classes []string `json:"classes"`
}

// newClassifier loads the model and captures it for each batch size. It waits for the device. The
// caller closes the classifier.
func newClassifier(path, deviceName string, sizes []int) (*classifier, error) {
	device, err := cgotorch.ParseDevice(deviceName)
	if err != nil {
		return nil, err
	}
	info, err := checkpoint.Inspect(path)
	if err != nil {
		return nil, err
	}
	var s settings
	if err := json.Unmarshal(info.Config, &s); err != nil || len(s.Classes) == 0 || s.Config.Size < 1 {
		return nil, fmt.Errorf("%s was not saved by examples/train", path)
	}
	c := &classifier{classes: s.Classes, size: int64(s.Config.Size)}
	if err := c.start(device, path, s, sizes); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *classifier) start(device cgotorch.Device, path string, s settings, sizes []int) (err error) {
	var transform decode.Transform = decode.ResizeCenterCrop{Resize: s.Config.Size * 8 / 7, Height: s.Config.Size, Width: s.Config.Size}
	if s.Config.Crop == "pad" {
		transform = decode.Resize{Height: s.Config.Size, Width: s.Config.Size}
	}
	if c.pool, err = decode.NewPool(decode.Options{Transform: transform}); err != nil {
		return err
	}
	err = cgotorch.DefaultStream(device).Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		trained, err := vision.New(x, s.Config.Model, vision.Options{Classes: len(s.Classes), ImageSize: nn.Square(s.Config.Size)})
		if err != nil {
			return err
		}
		defer nn.Close(trained)
		if err := checkpoint.LoadModel(x, path, trained, nn.LoadOptions{}); err != nil {
			return err
		}
		nn.SetTraining(trained, false)
		c.model = nn.Fuse(x, trained, nn.FuseOptions{}) // Fuse gives a model with fewer operators, only for inference
		return nil
	})
	if err != nil {
		return err
	}
	forward := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		images := vision.Normalize(x, in[0], vision.ImageNetMean, vision.ImageNetStd)
		probabilities, numbers := x.TopK(x.Softmax(c.model.Forward(x, images), 1), min(top, len(c.classes)), 1, cgotorch.TopKOptions{})
		return []*cgotorch.Tensor{probabilities, numbers}
	}
	pixels := serve.Spec{Name: "pixels", DType: cgotorch.Uint8, Shape: []int64{c.size, c.size, 3}}
	c.batcher, err = serve.New(device, forward, serve.Options{Inputs: []serve.Spec{pixels}, BatchSizes: sizes})
	return err
}

// classify returns the most probable classes of a picture. It waits for the device. It fails with
// a *decode.Error for a picture that cannot be decoded, and with [serve.ErrQueueFull].
func (c *classifier) classify(ctx context.Context, picture []byte) ([]answer, error) {
	pixels, results := make([]byte, 3*c.size*c.size), make([]decode.Result, 1)
	if err := c.pool.Decode([]decode.Image{{Data: picture}}, pixels, results); err != nil {
		return nil, err
	}
	if results[0].Err != nil {
		return nil, results[0].Err
	}
	out, err := c.batcher.Predict(ctx, serve.Of(pixels, 1, c.size, c.size, 3))
	if err != nil {
		return nil, err
	}
	probabilities, err := serve.Elements[float32](out[0])
	if err != nil {
		return nil, err
	}
	numbers, err := serve.Elements[int64](out[1])
	if err != nil {
		return nil, err
	}
	var answers []answer
	for i, n := range numbers {
		answers = append(answers, answer{c.classes[n], probabilities[i]})
	}
	return answers, nil
}

// close frees everything that the method `start` has made, also after a failure of `start`.
func (c *classifier) close() error {
	var errs []error
	errs = append(errs, c.batcher.Close())
	if c.model != nil {
		nn.Close(c.model)
	}
	if c.pool != nil {
		errs = append(errs, c.pool.Close())
	}
	return errors.Join(errs...)
}
