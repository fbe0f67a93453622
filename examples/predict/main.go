// Predict classifies pictures, with a model that examples/train has trained or that PyTorch has
// exported.
//
//	go run ./examples/predict -checkpoint runs/train/checkpoint.safetensors cat.jpg dog.png
//	go run ./examples/predict -program resnet50.pt2 -classes imagenet.txt cat.jpg dog.png
//
// A program of torch.export has one input, normalised images [N, 3, height, width], and returns a
// value for each class. The file of -classes has the name of one class on each line.
//
// For each file it prints the most probable classes. The exit status is 1 if some file could not
// be read or decoded, or if there is any other error.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
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

// A classifier is a model with what it needs to know about pictures.
type classifier struct {
	nn.Module
	transform     decode.Transform
	height, width int
	classes       []string
}

func main() {
	path := flag.String("checkpoint", filepath.Join("runs", "train", "checkpoint.safetensors"), "what examples/train has saved")
	program := flag.String("program", "", "a file of torch.export.save, in place of a checkpoint")
	classes := flag.String("classes", "", "for -program: a file with the name of a class on each line")
	resize := flag.Int("resize", 0, "for -program: length of a picture's shorter side before its centre is cut out, as torchvision's resize_size; 0 means 8/7 of the model's input")
	device := flag.String("device", "auto", "auto, cpu, cuda or cuda:N")
	top := flag.Int("top", 5, "classes to print for each picture")
	flag.Parse()
	open := func(x *cgotorch.Exec) (*classifier, error) { return openCheckpoint(x, *path) }
	if *program != "" {
		open = func(x *cgotorch.Exec) (*classifier, error) { return openProgram(x, *program, *classes, *resize) }
	}
	failed, err := predict(open, *device, *top, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "predict:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

func predict(open func(x *cgotorch.Exec) (*classifier, error), deviceName string, top int, files []string) (failed bool, err error) {
	if len(files) == 0 {
		return false, fmt.Errorf("name one picture or more, as in: predict -checkpoint checkpoint.safetensors cat.jpg")
	}
	if top < 1 {
		return false, fmt.Errorf("-top %d: at least 1", top)
	}
	device, err := chooseDevice(deviceName)
	if err != nil {
		return false, err
	}
	stream := cgotorch.DefaultStream(device)
	model, err := cgotorch.DoValue(stream, func(x *cgotorch.Exec) (*classifier, error) { return open(x.NoGrad()) })
	if err != nil {
		return false, err
	}
	defer nn.Close(model.Module)
	pixels, read, err := decodeAll(files, model)
	if err != nil {
		return false, err
	}
	if len(read) == 0 {
		return true, nil
	}
	err = stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		images := cgotorch.FromSlice(x, pixels, int64(len(read)), int64(model.height), int64(model.width), 3)
		values := model.Forward(x, vision.Normalize(x, images, vision.ImageNetMean, vision.ImageNetStd))
		if shape := values.Shape(); len(shape) != 2 || shape[1] != int64(len(model.classes)) {
			return fmt.Errorf("the model returns %v, and there are %d names of classes", shape, len(model.classes))
		}
		k := min(top, len(model.classes))
		probabilities, classes := x.TopK(x.Softmax(values, 1), k, 1, cgotorch.TopKOptions{})
		p, c := cgotorch.ToSlice[float32](x, probabilities), cgotorch.ToSlice[int64](x, classes)
		out := bufio.NewWriter(os.Stdout)
		for i, file := range read {
			fmt.Fprintln(out, file)
			for j := range k {
				fmt.Fprintf(out, "  %6.2f %%  %s\n", 100*p[i*k+j], model.classes[c[i*k+j]])
			}
		}
		return out.Flush()
	})
	return len(read) < len(files), err
}

func openCheckpoint(x *cgotorch.Exec, path string) (*classifier, error) {
	info, err := checkpoint.Inspect(path)
	if err != nil {
		return nil, err
	}
	var s settings
	if err := json.Unmarshal(info.Config, &s); err != nil || len(s.Classes) == 0 || s.Config.Size < 1 {
		return nil, fmt.Errorf("%s was not saved by examples/train", path)
	}
	model, err := vision.New(x, s.Config.Model, vision.Options{Classes: len(s.Classes), ImageSize: nn.Square(s.Config.Size)})
	if err != nil {
		return nil, err
	}
	if err := checkpoint.LoadModel(x, path, model, nn.LoadOptions{}); err != nil {
		nn.Close(model)
		return nil, err
	}
	nn.SetTraining(model, false)
	c := &classifier{Module: model, height: s.Config.Size, width: s.Config.Size, classes: s.Classes}
	c.transform = decode.ResizeCenterCrop{Resize: s.Config.Size * 8 / 7, Height: s.Config.Size, Width: s.Config.Size}
	if s.Config.Crop == "pad" {
		c.transform = decode.Resize{Height: s.Config.Size, Width: s.Config.Size}
	}
	return c, nil
}

func openProgram(x *cgotorch.Exec, path, classesPath string, resize int) (*classifier, error) {
	if classesPath == "" {
		return nil, fmt.Errorf("-program needs -classes, a file with the name of a class on each line")
	}
	names, err := os.ReadFile(classesPath)
	if err != nil {
		return nil, err
	}
	program, err := pt2.Load(x, path, pt2.Options{})
	if err != nil {
		return nil, err
	}
	in := program.Inputs()
	if len(in) != 1 || len(in[0].Shape) != 4 || in[0].Shape[1].Max != 3 || in[0].Shape[3].Max > 1<<14 || in[0].Shape[2].Max > 1<<14 {
		program.Close()
		return nil, fmt.Errorf("%s wants %v, and not one batch of images [N, 3, height, width] of a fixed size", path, in)
	}
	c := &classifier{Module: program, height: int(in[0].Shape[2].Max), width: int(in[0].Shape[3].Max)}
	c.transform = decode.ResizeCenterCrop{Resize: cmp.Or(resize, min(c.height, c.width)*8/7), Height: c.height, Width: c.width}
	for name := range strings.Lines(string(names)) {
		c.classes = append(c.classes, strings.TrimSpace(name))
	}
	return c, nil
}

// decodeAll decodes the files. It prints an error for each file that it cannot read or decode.
// `read` has the names of the decoded files.
func decodeAll(files []string, model *classifier) (pixels []byte, read []string, err error) {
	pool, err := decode.NewPool(decode.Options{Transform: model.transform})
	if err != nil {
		return nil, nil, err
	}
	defer pool.Close()
	bytes := 3 * model.height * model.width
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
