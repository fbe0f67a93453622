package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/aoti"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// settings are the fields of a model's model.json. All may be left out.
type settings struct {
	Architecture string   `json:"architecture"` // of model.safetensors: a name of vision.Names
	Image        *picture `json:"image"`        // the model's input is normalised images [N, 3, height, width]
	Softmax      bool     `json:"softmax"`      // the answer is softmax of the model's result
	Outputs      []string `json:"outputs"`      // names of all results, in Python's order; empty: as Python names them
	BatchSizes   []int    `json:"batch_sizes"`
	Lengths      []int64  `json:"lengths"`      // as serve.Options.Lengths
	MaxDelayMS   float64  `json:"max_delay_ms"` // as serve.Options.MaxDelay
	Autocast     string   `json:"autocast"`     // a dtype, such as bfloat16
	DType        string   `json:"dtype"`        // of an architecture's weights, cast once; float32 without it
	Dependent    bool     `json:"dependent"`    // as serve.Options.Dependent: an answer may then hold what other callers have sent
	// Samples are serve.Options.Samples by the input's name: entries as nested lists of numbers, all as
	// long as each other. An example is {"input_ids": [[101, 7592, 102], [101, 2088, 102]]}.
	Samples map[string]any `json:"samples"`
	// Bounds are serve.Spec's Least and Most of inputs, by name, such as [0, 30521] for token ids of a
	// vocabulary of 30,522.
	Bounds map[string][2]int64 `json:"bounds"`

	labels []string
	name   string // of the model's folder
}

// wrong returns an error for the settings.
func (s *settings) wrong(format string, args ...any) error {
	return fmt.Errorf("%s/model.json: %w", s.name, fmt.Errorf(format, args...))
}

// picture says how an image becomes a model's input.
type picture struct {
	Size   int        `json:"size"`   // height and width of the input
	Resize int        `json:"resize"` // length of the shorter side before the centre is cut out; 0 resizes to Size alone
	Mean   [3]float64 `json:"mean"`   // zeros stand for ImageNet's
	Std    [3]float64 `json:"std"`
}

// opener opens models on a device.
type opener struct {
	device     cgotorch.Device
	batchSizes []int
	queue      int
	maxPixels  int
	compiled   bool // compiled packages may be loaded
	log        func(format string, args ...any)
}

// network is a model with its inputs.
type network struct {
	forward   func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor
	inputs    []serve.Spec
	accepts   func(shapes ...[]int64) error // why sizes do not fit; nil if it is not known
	unguarded bool                          // sizes may change, and conditions of its code on them are not known
	outputs   []string                      // names of the results, in their order; nil if they are not known
	least     int64                         // smallest batch; 0 means 1
	most      int64                         // largest batch; 0 means that there is no bound
	weights   int64
	dtype     cgotorch.DType // of the input of images, if it is not float32
	close     func() error
}

// The files of a model, in the order in which they are looked for.
const (
	checkpointFile  = "checkpoint.safetensors" // of examples/train
	safetensorsFile = "model.safetensors"      // weights of an architecture
	programFile     = "model.pt2"              // of torch.export.save
	compiledFile    = "compiled.pt2"           // of AOTInductor
)

var modelFiles = []string{checkpointFile, safetensorsFile, programFile, compiledFile}

// open opens the model in a folder. `root` is the folder on disk that `files` begins at.
func (o *opener) open(files fs.FS, root, name, version string) (*serve.Model, error) {
	s, err := readSettings(files, name)
	if err != nil {
		return nil, err
	}
	folder := path.Join(name, version)
	file := ""
	for _, f := range modelFiles {
		if _, err := fs.Stat(files, path.Join(folder, f)); err == nil {
			file = f
			break
		}
	}
	if file == "" {
		return nil, fmt.Errorf("the folder %s has none of %s", folder, strings.Join(modelFiles, ", "))
	}
	full := filepath.Join(root, filepath.FromSlash(folder), file)
	switch {
	case file == compiledFile && !o.compiled:
		return nil, fmt.Errorf("%s is code: -allow-compiled loads it", full)
	case file == compiledFile:
		return o.program(files, path.Join(folder, file), s, compiled)
	case file == programFile:
		return o.program(files, path.Join(folder, file), s, exported)
	}
	return o.weights(full, s)
}

func readSettings(files fs.FS, name string) (s settings, err error) {
	s.name = name
	text, err := readText(files, path.Join(name, "model.json"))
	if err == nil {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		err = d.Decode(&s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, s.wrong("%w", err)
	}
	if s.Image != nil && (s.Image.Size < 1 || s.Image.Resize < 0 || s.Image.Resize > 0 && s.Image.Resize < s.Image.Size) {
		return s, s.wrong("image.size is %d and image.resize %d; size is the height and width of the model's input, and resize is 0 or at least as large", s.Image.Size, s.Image.Resize)
	}
	labels, err := readText(files, path.Join(name, "labels.txt"))
	for line := range strings.Lines(strings.TrimRight(labels, "\r\n")) {
		s.labels = append(s.labels, strings.TrimSpace(line))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return s, err
}

// readText returns the text of a file in UTF-8, without a byte-order mark.
func readText(files fs.FS, name string) (string, error) {
	data, err := fs.ReadFile(files, name)
	text := strings.TrimPrefix(string(data), "\ufeff")
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return "", fmt.Errorf("%s is no text in UTF-8: save it in UTF-8", name)
	}
	return text, err
}

// trained is what examples/train has saved in a checkpoint, beside the tensors.
type trained struct {
	Config struct {
		Model string `json:"model"`
		Size  int    `json:"size"`
		Crop  string `json:"crop"`
	} `json:"config"`
	Classes []string `json:"classes"`
}

// checkpointSettings completes the settings by those in a checkpoint.
func checkpointSettings(path string, s settings) (settings, error) {
	info, err := checkpoint.Inspect(path)
	if err != nil {
		return s, err
	}
	var t trained
	if err := json.Unmarshal(info.Config, &t); err != nil || len(t.Classes) == 0 || t.Config.Size < 1 {
		return s, fmt.Errorf("%s was not saved by examples/train", path)
	}
	s.Architecture, s.labels, s.Softmax = t.Config.Model, t.Classes, true
	s.Image = &picture{Size: t.Config.Size, Resize: t.Config.Size * 8 / 7}
	if t.Config.Crop == "pad" {
		s.Image.Resize = 0
	}
	return s, nil
}

// weights opens a model of package vision with the weights in a file.
func (o *opener) weights(path string, s settings) (*serve.Model, error) {
	if filepath.Base(path) != safetensorsFile {
		var err error
		if s, err = checkpointSettings(path, s); err != nil {
			return nil, err
		}
	}
	if s.Architecture == "" || s.Image == nil || len(s.labels) == 0 {
		return nil, fmt.Errorf("%s needs a model.json with architecture and image.size, and a labels.txt", path)
	}
	dtype, err := cgotorch.Float32, error(nil)
	if s.DType != "" {
		if dtype, err = cgotorch.ParseDType(s.DType); err != nil {
			return nil, s.wrong("dtype: %w", err)
		}
	}
	var model nn.Module
	err = cgotorch.DefaultStream(o.device).Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		made, err := vision.New(x, s.Architecture, vision.Options{Classes: len(s.labels), ImageSize: nn.Square(s.Image.Size)})
		if err != nil {
			return err
		}
		defer nn.Close(made)
		if err := checkpoint.LoadModel(x, path, made, nn.LoadOptions{}); err != nil {
			return err
		}
		nn.SetTraining(made, false)
		nn.To(x, made, nn.ToOptions{ChannelsLast: true})
		model = nn.Fuse(x, made, nn.FuseOptions{}) // Fuse gives a model with fewer operators, only for inference
		nn.To(x, model, nn.ToOptions{DType: dtype})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return o.serve(network{
		forward: func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			return []*cgotorch.Tensor{x.To(model.Forward(x, in[0]), cgotorch.Float32)}
		},
		dtype:   dtype,
		outputs: []string{"output0"},
		weights: bytesOf(model),
		close:   func() error { nn.Close(model); return nil },
	}, s)
}

func bytesOf(model nn.Module) (bytes int64) {
	for _, t := range nn.State(model) {
		bytes += t.Tensor.Numel() * int64(t.Tensor.DType().Size())
	}
	return bytes
}

// program opens a program of PyTorch.
func (o *opener) program(files fs.FS, name string, s settings, load func(x *cgotorch.Exec, at io.ReaderAt, size int64, name string) (network, error)) (*serve.Model, error) {
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	at, ok := file.(io.ReaderAt)
	if !ok {
		return nil, fmt.Errorf("%s is no file", name)
	}
	var n network
	err = cgotorch.DefaultStream(o.device).Do(func(x *cgotorch.Exec) (err error) {
		n, err = load(x.NoGrad(), at, info.Size(), name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return o.serve(n, s)
}

func exported(x *cgotorch.Exec, at io.ReaderAt, size int64, name string) (n network, err error) {
	program, err := pt2.LoadFrom(x, at, size, name, pt2.Options{Fuse: true})
	if err != nil {
		return n, err
	}
	n.close, n.weights, n.outputs, n.accepts = program.Close, bytesOf(program), program.Outputs(), program.Accepts
	var names []string // of the tensors; the program has one value only for its other inputs
	for _, v := range program.Inputs() {
		if v.Bounds != nil {
			return n, errors.Join(fmt.Errorf("%s: the input %s is an integer that may change, and no tensor", name, v.Name), program.Close())
		}
		if v.Tensor {
			names = append(names, v.Name)
			n.add(v.Name, v.DType, len(v.Shape), func(i int) (int64, int64) { return v.Shape[i].Min, v.Shape[i].Max })
		}
	}
	n.forward = func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		args := pt2.Keywords{}
		for i, t := range in {
			args[names[i]] = t
		}
		return program.Tensors(x, args)
	}
	return n, nil
}

func compiled(x *cgotorch.Exec, at io.ReaderAt, size int64, name string) (n network, err error) {
	model, err := aoti.LoadFrom(x, at, size, name, aoti.Options{})
	if err != nil {
		return n, err
	}
	n.forward, n.close, n.weights = model.Forward, model.Close, size
	for i, in := range model.Inputs() {
		n.add(fmt.Sprint("input", i), in.DType, len(in.Shape), func(i int) (int64, int64) { return in.Shape[i].Min, in.Shape[i].Max })
		for _, size := range in.Shape {
			n.unguarded = n.unguarded || size.Min < size.Max
		}
	}
	return n, nil
}

// add adds an input whose first dimension is the batch. bounds returns the sizes that a dimension
// may have.
func (n *network) add(name string, dtype cgotorch.DType, dims int, bounds func(i int) (least, most int64)) {
	s := serve.Spec{Name: name, DType: dtype}
	for i := range dims {
		least, most := bounds(i)
		switch {
		case i > 0 && least == most:
			s.Shape = append(s.Shape, most)
		case i > 0:
			s.Shape = append(s.Shape, -1)
		default:
			n.least, n.most = least, most
		}
	}
	n.inputs = append(n.inputs, s)
}

// serve makes a Batcher of a network.
func (o *opener) serve(n network, s settings) (*serve.Model, error) {
	if n.dtype == 0 && (s.DType != "" || s.Architecture != "") {
		return nil, errors.Join(s.wrong("architecture and dtype are for model.safetensors; a program has its own"), n.close())
	}
	options := serve.Options{
		Inputs: n.inputs, Lengths: s.Lengths, Unpad: true, Dependent: s.Dependent, BatchSizes: o.batchSizes, Queue: o.queue,
		MaxDelay: time.Duration(s.MaxDelayMS * float64(time.Millisecond)), Log: func(text string) { o.log("%s", text) },
	}
	if n.unguarded {
		o.log("%s: a compiled package holds ranges of sizes and no guards, so conditions of its Python code on sizes are not checked: compare a result of each size with PyTorch, or serve the exported program", s.name)
	}
	closeAll := n.close
	var table *cgotorch.Tensor // normalises pixels; nil if the input is no image
	err := func() (err error) {
		if s.Autocast != "" {
			if options.Autocast, err = cgotorch.ParseDType(s.Autocast); err != nil {
				return s.wrong("autocast: %w", err)
			}
		}
		if options.Outputs, err = s.outputNames(n.outputs); err != nil {
			return err
		}
		if len(s.BatchSizes) > 0 {
			options.BatchSizes = s.BatchSizes
		}
		if n.most > 0 {
			options.Pad = n.least > 1
			options.BatchSizes = slices.DeleteFunc(slices.Clone(options.BatchSizes), func(size int) bool { return int64(size) < n.least || int64(size) > n.most })
			if len(options.BatchSizes) == 0 {
				options.BatchSizes = []int{int(min(n.most, max(n.least, 32)))}
			}
		}
		side := 0
		if s.Image != nil {
			side = s.Image.Size
		}
		if err := n.fit(&options, side, func(format string, args ...any) { o.log("%s: "+format, append([]any{s.name}, args...)...) }); err != nil {
			return s.wrong("%w", err)
		}
		if err := setBounds(options.Inputs, s.Bounds); err != nil {
			return s.wrong("%w", err)
		}
		if options.Samples, err = samplesOf(options.Inputs, s.Samples); err != nil {
			return s.wrong("%w", err)
		}
		if s.Image == nil {
			return nil
		}
		pool, err := o.pool(*s.Image)
		if err != nil {
			return err
		}
		closeAll = func() error { return errors.Join(n.close(), pool.Close(), table.Close()) }
		options.Inputs = []serve.Spec{{Name: "image", Decoder: pool}}
		table, err = o.table(*s.Image, n.dtype)
		return err
	}()
	if err != nil {
		return nil, errors.Join(err, closeAll())
	}
	b, err := serve.New(o.device, func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		if table != nil {
			pixels := x.Permute(x.Empty(table.DType(), in[0].Shape()...), 0, 3, 1, 2)
			images.Normalize(x, in[0], nil, table, pixels)
			in = []*cgotorch.Tensor{pixels}
		}
		out := n.forward(x, in...)
		if s.Softmax && len(out) > 0 {
			out[0] = x.Softmax(x.To(out[0], cgotorch.Float32), 1)
		}
		return out
	}, options)
	if err != nil {
		if errors.Is(err, cgotorch.ErrInvalidArgument) { // such as an image of another size than the model's
			err = s.wrong("%w", err)
		}
		return nil, errors.Join(err, closeAll())
	}
	if err := s.checkLabels(b); err != nil {
		return nil, errors.Join(err, b.Close(), closeAll())
	}
	if s.Image != nil && len(s.labels) == 0 {
		o.log("%s/labels.txt is not there: answers have the numbers of classes", s.name)
	}
	return &serve.Model{Batcher: b, Labels: s.labels, Weights: n.weights, Free: closeAll}, nil
}

// checkLabels fails if no result of the model can have as many classes as there are labels.
func (s *settings) checkLabels(b *serve.Batcher) error {
	outputs := b.Outputs()
	fits := slices.ContainsFunc(outputs, func(out serve.Spec) bool {
		n := len(out.Shape)
		return n > 0 && (out.Shape[n-1] < 0 || out.Shape[n-1] == int64(len(s.labels)))
	})
	if fits || len(s.labels) == 0 {
		return nil
	}
	return fmt.Errorf("%s/labels.txt has %d lines, and no result of the model has so many classes: %q is %v for each entry",
		s.name, len(s.labels), outputs[0].Name, outputs[0].Shape)
}

// outputNames returns the names of the results: those of the settings, or else the model's own. It
// fails for names that do not fit the model's own.
func (s *settings) outputNames(own []string) ([]string, error) {
	if len(s.Outputs) == 0 {
		return own, nil
	}
	if own != nil && len(s.Outputs) != len(own) {
		return nil, s.wrong("outputs has %d names, and the model has %d results, in this order: %q; name all of them, or leave outputs out", len(s.Outputs), len(own), own)
	}
	for i, name := range s.Outputs {
		if at := slices.Index(own, name); at >= 0 && at != i {
			return nil, s.wrong("outputs has %q at place %d, and this is the model's own name of result %d, in this order: %q; leave outputs out, or keep the order", name, i, at, own)
		}
	}
	return s.Outputs, nil
}

// setBounds sets the bounds of inputs, by name.
func setBounds(inputs []serve.Spec, bounds map[string][2]int64) error {
	for name, b := range bounds {
		i := slices.IndexFunc(inputs, func(s serve.Spec) bool { return s.Name == name })
		if i < 0 {
			return fmt.Errorf("bounds are for the input %q, which the model does not have", name)
		}
		inputs[i].Least, inputs[i].Most = b[0], b[1]
	}
	return nil
}

// samplesOf returns the samples in the order of the inputs.
func samplesOf(inputs []serve.Spec, samples map[string]any) (list []serve.Array, err error) {
	if len(samples) == 0 {
		return nil, nil
	}
	for _, in := range inputs {
		sample, ok := samples[in.Name]
		if !ok || len(samples) != len(inputs) {
			return nil, fmt.Errorf("samples are for the inputs %q; give them for each input, and %q is one", slices.Sorted(maps.Keys(samples)), in.Name)
		}
		a := serve.Array{DType: in.DType}
		if err := appendSample(&a, sample, 0); err != nil {
			return nil, fmt.Errorf("samples of %q: %w", in.Name, err)
		}
		list = append(list, a)
	}
	return list, nil
}

// appendSample appends nested lists of numbers, which begin at a dimension.
func appendSample(a *serve.Array, v any, dim int) error {
	if rows, ok := v.([]any); ok {
		if dim == len(a.Shape) && len(a.Data) == 0 {
			a.Shape = append(a.Shape, int64(len(rows)))
		}
		if dim >= len(a.Shape) || int64(len(rows)) != a.Shape[dim] {
			return fmt.Errorf("a list of %d values is not as long as the lists beside it", len(rows))
		}
		for _, row := range rows {
			if err := appendSample(a, row, dim+1); err != nil {
				return err
			}
		}
		return nil
	}
	n, ok := v.(float64)
	if !ok || dim != len(a.Shape) {
		return fmt.Errorf("%v is no number at the depth of the others", v)
	}
	one, ok := elementOf(a.DType, n)
	if !ok {
		return fmt.Errorf("%v is no %v", n, a.DType)
	}
	a.Data = append(a.Data, one...)
	return nil
}

// elementOf returns the bytes of a number.
func elementOf(d cgotorch.DType, v float64) (data []byte, ok bool) {
	to := func(n any, back float64) ([]byte, bool) {
		data, err := binary.Append(nil, binary.NativeEndian, n)
		return data, err == nil && back == v
	}
	switch d {
	case cgotorch.Float64:
		return to(v, v)
	case cgotorch.Float32:
		return to(float32(v), v)
	case cgotorch.Float16:
		return to(cgotorch.ToFloat16(float32(v)), v)
	case cgotorch.BFloat16:
		return to(cgotorch.ToBFloat16(float32(v)), v)
	case cgotorch.Int64:
		return to(int64(v), float64(int64(v)))
	case cgotorch.Int32:
		return to(int32(v), float64(int32(v)))
	case cgotorch.Int16:
		return to(int16(v), float64(int16(v)))
	case cgotorch.Int8:
		return to(int8(v), float64(int8(v)))
	case cgotorch.Uint8:
		return to(uint8(v), float64(uint8(v)))
	case cgotorch.Bool:
		return to(v == 1, float64(max(0, min(1, math.Trunc(v)))))
	}
	return nil, false
}

// table returns what normalises an image's pixels. It is made once, and not for each batch.
func (o *opener) table(p picture, dtype cgotorch.DType) (table *cgotorch.Tensor, err error) {
	if dtype == 0 {
		dtype = cgotorch.Float32
	}
	if p.Mean == [3]float64{} {
		p.Mean = vision.ImageNetMean
	}
	if p.Std == [3]float64{} {
		p.Std = vision.ImageNetStd
	}
	err = cgotorch.DefaultStream(o.device).Do(func(x *cgotorch.Exec) error {
		table = x.Keep(images.NormalizationTable(x, p.Mean[:], p.Std[:], dtype))
		return nil
	})
	return table, err
}

func (o *opener) pool(p picture) (*decode.Pool, error) {
	var t decode.Transform = decode.ResizeCenterCrop{Resize: p.Resize, Height: p.Size, Width: p.Size}
	if p.Resize == 0 {
		t = decode.Resize{Height: p.Size, Width: p.Size}
	}
	return decode.NewPool(decode.Options{Transform: t, MaxPixels: o.maxPixels})
}
