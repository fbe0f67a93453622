package pth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// Weights are the tensors of a file, or of several files. A [*File] and a [*safetensors.File] are
// Weights.
type Weights interface {
	Name() string                                // the path or name that errors show
	Tensors() []safetensors.Info                 // do not change the list
	Lookup(name string) (safetensors.Info, bool) // false if there is no such tensor
	Read(name string) ([]byte, error)            // elements, row-major, each with its low byte first
	Metadata() map[string]string                 // nil without metadata; do not change the map
	Close() error                                // a second Close does nothing
}

// OpenWeights opens a file of torch.save or a safetensors file. It looks at the file's bytes, and
// not at its name. A folder, or an index such as model.safetensors.index.json, opens all files that
// [safetensors.Files] lists. The caller must Close the Weights.
//
// OpenWeights fails with [ErrFormat] or [safetensors.ErrFormat] for a damaged file. The error for a
// file of another known kind, such as an ONNX model, names the kind.
func OpenWeights(path string) (Weights, error) {
	files, metadata, err := safetensors.Files(path)
	if err != nil {
		return nil, err
	}
	all := &shards{name: path, metadata: metadata, of: map[string]Weights{}}
	for _, name := range files {
		w, err := openOne(name)
		if errors.Is(err, fs.ErrNotExist) && metadata != nil {
			err = fmt.Errorf("pth: %s: the index names the file %s, which is missing: get it too: %w", path, name, fs.ErrNotExist)
		}
		if err == nil {
			if metadata == nil { // one file, and no index that names it
				return w, nil
			}
			err = all.add(w)
		}
		if err != nil {
			all.Close()
			return nil, err
		}
	}
	return all, nil
}

// newWeights is [OpenWeights] for the first `size` bytes of source. Errors show `name` as the name
// of the file.
func newWeights(source io.ReaderAt, size int64, name string) (Weights, error) {
	head := make([]byte, min(max(size, 0), torchzip.HeadLength))
	if _, err := source.ReadAt(head, 0); err != nil && err != io.EOF {
		return nil, fmt.Errorf("pth: %s: %w", name, err)
	}
	switch f := torchzip.Recognize(head); f {
	case torchzip.SafeTensors:
		return safetensors.NewFile(source, size, name)
	case torchzip.TorchSave:
		return NewFile(source, size, name)
	default:
		if err := kindOf(name, head); err != nil {
			return nil, err
		}
	}
	if bytes.HasPrefix(head, []byte("PK\x03\x04")) {
		return NewFile(source, size, name)
	}
	return safetensors.NewFile(source, size, name)
}

// regular opens a file. It refuses what is no file before it opens it, because the open of a pipe
// waits for a writer.
func regular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("pth: %s is no file: give the path of a file of weights", path)
	}
	var file *os.File
	if err == nil {
		file, err = os.Open(path)
	}
	if err != nil {
		return nil, fmt.Errorf("pth: %w; check the path", err)
	}
	return file, nil
}

// An owner is Weights with the file from which they read.
type owner struct {
	Weights
	file *os.File
}

func (o *owner) Close() error {
	if o.file == nil {
		return nil
	}
	file := o.file
	o.file = nil
	return file.Close()
}

func openOne(name string) (Weights, error) {
	file, err := regular(name)
	if err != nil {
		return nil, err
	}
	var w Weights
	info, err := file.Stat()
	if err != nil {
		err = fmt.Errorf("pth: %w", err)
	} else {
		w, err = newWeights(file, info.Size(), name)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return &owner{w, file}, nil
}

// shards are Weights of several files.
type shards struct {
	name     string
	metadata map[string]string
	files    []Weights
	tensors  []safetensors.Info
	of       map[string]Weights
}

func (s *shards) add(w Weights) error {
	s.files = append(s.files, w)
	for _, t := range w.Tensors() {
		if other := s.of[t.Name]; other != nil {
			return fmt.Errorf("pth: %s: tensor %s is in %s too: %w", w.Name(), t.Name, other.Name(), ErrFormat)
		}
		s.of[t.Name] = w
	}
	s.tensors = append(s.tensors, w.Tensors()...)
	return nil
}

func (s *shards) Name() string                { return s.name }
func (s *shards) Tensors() []safetensors.Info { return s.tensors }
func (s *shards) Metadata() map[string]string { return s.metadata }

func (s *shards) Lookup(name string) (safetensors.Info, bool) {
	if w := s.of[name]; w != nil {
		return w.Lookup(name)
	}
	return safetensors.Info{}, false
}

func (s *shards) Read(name string) ([]byte, error) {
	if w := s.of[name]; w != nil {
		return w.Read(name)
	}
	return nil, fmt.Errorf("pth: %s: there is no tensor %s", s.name, name)
}

func (s *shards) Close() error {
	var errs []error
	for _, w := range s.files {
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}
