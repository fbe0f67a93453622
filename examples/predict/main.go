// Predict classifies pictures with a model that examples/train has trained.
//
//	go run ./examples/predict -checkpoint runs/train/checkpoint.safetensors cat.jpg dog.png
//
// For each file it prints the most probable classes. The exit status is 1 if some file could not
// be read or decoded, or if there is any other error.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

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

func main() {
	path := flag.String("checkpoint", filepath.Join("runs", "train", "checkpoint.safetensors"), "what examples/train has saved")
	device := flag.String("device", "auto", "auto, cpu, cuda or cuda:N")
	top := flag.Int("top", 5, "classes to print for each picture")
	flag.Parse()
	failed, err := predict(*path, *device, *top, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "predict:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

func predict(path, deviceName string, top int, files []string) (failed bool, err error) {
	if len(files) == 0 {
		return false, fmt.Errorf("name one picture or more, as in: predict -checkpoint %s cat.jpg", path)
	}
	if top < 1 {
		return false, fmt.Errorf("-top %d: at least 1", top)
	}
	info, err := checkpoint.Inspect(path)
	if err != nil {
		return false, err
	}
	var s settings
	if err := json.Unmarshal(info.Config, &s); err != nil || len(s.Classes) == 0 || s.Config.Size < 1 {
		return false, fmt.Errorf("%s was not saved by examples/train", path)
	}
	pixels, read, err := decodeAll(files, s)
	if err != nil {
		return false, err
	}
	if len(read) == 0 {
		return true, nil
	}
	device, err := chooseDevice(deviceName)
	if err != nil {
		return false, err
	}
	err = cgotorch.DefaultStream(device).Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		model, err := vision.New(x, s.Config.Model, vision.Options{Classes: len(s.Classes), ImageSize: nn.Square(s.Config.Size)})
		if err != nil {
			return err
		}
		defer nn.Close(model)
		if err := checkpoint.LoadModel(x, path, model, nn.LoadOptions{}); err != nil {
			return err
		}
		nn.SetTraining(model, false)
		size := int64(s.Config.Size)
		images := vision.Normalize(x, cgotorch.FromSlice(x, pixels, int64(len(read)), size, size, 3), vision.ImageNetMean, vision.ImageNetStd)
		k := min(top, len(s.Classes))
		probabilities, classes := x.TopK(x.Softmax(model.Forward(x, images), 1), k, 1, cgotorch.TopKOptions{})
		p, c := cgotorch.ToSlice[float32](x, probabilities), cgotorch.ToSlice[int64](x, classes)
		out := bufio.NewWriter(os.Stdout)
		for i, file := range read {
			fmt.Fprintln(out, file)
			for j := range k {
				fmt.Fprintf(out, "  %6.2f %%  %s\n", 100*p[i*k+j], s.Classes[c[i*k+j]])
			}
		}
		return out.Flush()
	})
	return len(read) < len(files), err
}

// decodeAll decodes the files. It prints an error for each file that it cannot read or decode.
// `read` has the names of the decoded files.
func decodeAll(files []string, s settings) (pixels []byte, read []string, err error) {
	var transform decode.Transform = decode.ResizeCenterCrop{Resize: s.Config.Size * 8 / 7, Height: s.Config.Size, Width: s.Config.Size}
	if s.Config.Crop == "pad" {
		transform = decode.Resize{Height: s.Config.Size, Width: s.Config.Size}
	}
	pool, err := decode.NewPool(decode.Options{Transform: transform})
	if err != nil {
		return nil, nil, err
	}
	defer pool.Close()
	bytes := 3 * s.Config.Size * s.Config.Size
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil {
			dst, results := make([]byte, bytes), make([]decode.Result, 1)
			if err = pool.Decode([]decode.Image{{Data: data}}, dst, results); err == nil {
				err = results[0].Err
			}
			if err == nil {
				pixels, read = append(pixels, dst...), append(read, file)
				continue
			}
			err = fmt.Errorf("%s: %w", file, err)
		}
		fmt.Fprintln(os.Stderr, "predict:", err)
	}
	return pixels, read, nil
}

func chooseDevice(name string) (cgotorch.Device, error) {
	device, err := cgotorch.ParseDevice(name)
	if err != nil {
		return device, err
	}
	return device, device.Check()
}
