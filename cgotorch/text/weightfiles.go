package text

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// weightFiles returns the safetensors files in a folder, as [safetensors.Files] lists them. If
// the folder's model.safetensors.index.json is damaged, the error also wraps
// [cgotorch.ErrInvalidArgument].
func weightFiles(folder string) ([]string, error) {
	files, _, err := safetensors.Files(folder)
	if errors.Is(err, safetensors.ErrFormat) {
		err = fmt.Errorf("%w: %w", err, cgotorch.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	return files, nil
}

var dtypes = map[string]cgotorch.DType{"F64": cgotorch.Float64, "F32": cgotorch.Float32, "F16": cgotorch.Float16, "BF16": cgotorch.BFloat16}

// weights holds open safetensors files. `of` has the file of each tensor, by the tensor's name.
type weightSet struct {
	files []*safetensors.File
	of    map[string]*safetensors.File
}

// source says from which file, and under which name, one of a model's tensors is loaded.
type source struct {
	to        *cgotorch.Tensor
	shape     []int64 // of the tensor
	file      *safetensors.File
	name      string
	info      safetensors.Info
	quantized *quantizedSource // in place of file, name and info, or nil
	host      []byte           // the memory of `to` where it lies in host memory, or nil
}

func openWeights(paths []string) (weightSet, error) {
	w := weightSet{of: map[string]*safetensors.File{}}
	for _, path := range paths {
		f, err := safetensors.Open(path)
		if err != nil {
			return w, fmt.Errorf("text: %w", err)
		}
		w.files = append(w.files, f)
		for _, t := range f.Tensors() {
			if other := w.of[t.Name]; other != nil {
				return w, fmt.Errorf("text: %s: tensor %s is in %s too: %w", path, t.Name, other.Name(), cgotorch.ErrInvalidArgument)
			}
			w.of[t.Name] = f
		}
	}
	return w, nil
}

func (w weightSet) close() {
	for _, f := range w.files {
		f.Close()
	}
}

func (w weightSet) names() string {
	var names []string
	for _, f := range w.files {
		names = append(names, f.Name())
	}
	return strings.Join(names, ", ")
}

// dtype returns the dtype of the first tensor, or float32.
func (w weightSet) dtype() cgotorch.DType {
	for _, f := range w.files {
		for _, t := range f.Tensors() {
			if dtype := dtypes[t.DType]; dtype != 0 && !strings.Contains(t.Name[strings.LastIndexByte(t.Name, '.')+1:], "scale") {
				return dtype
			}
		}
	}
	return cgotorch.Float32
}

func (s source) check() error {
	switch {
	case !slices.Equal(s.info.Shape, s.shape):
		return fmt.Errorf("text: %s: tensor %s is %s%v, and the model's has the shape %v: %w", s.file.Name(), s.name, s.info.DType, s.info.Shape, s.shape, cgotorch.ErrInvalidArgument)
	case dtypes[s.info.DType] == 0:
		return fmt.Errorf("text: %s: tensor %s is %s, want F32, BF16, F16 or F64: %w", s.file.Name(), s.name, s.info.DType, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// few joins errors. If there are more errors than the constant `most` says, it joins only the first
// ones. It then adds the number of the errors that it left out.
func few(errs []error) error {
	const most = 8
	if n := len(errs); n > most {
		errs = append(errs[:most:most], fmt.Errorf("text: and %d more", n-most))
	}
	return errors.Join(errs...)
}

// convert copies a tensor whose dtype or layout is another one in the file.
func (s source) convert(x *cgotorch.Exec) error {
	if s.quantized != nil {
		return s.quantized.convert(x, s.to)
	}
	data, err := s.file.Read(s.name)
	if err != nil {
		return fmt.Errorf("text: %w", err)
	}
	x.Tidy(func() *cgotorch.Tensor {
		nn.Copy(x, s.to, cgotorch.FromBytes(x, data, dtypes[s.info.DType], s.info.Shape))
		return nil
	})
	return nil
}

func hasTokenizer(folder string) bool {
	return exists(filepath.Join(folder, "tokenizer.json")) || exists(filepath.Join(folder, "tekken.json"))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
