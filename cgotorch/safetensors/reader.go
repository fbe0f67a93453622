package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrFormat is wrapped by the errors for a file that is damaged, cut short, or not a safetensors
// file.
var ErrFormat = errors.New("not a whole safetensors file")

// errTorchSave is wrapped by the error for a file that PyTorch's torch.save wrote. That error
// wraps [ErrFormat] too.
var errTorchSave = fmt.Errorf("%w: torch.save wrote it: checkpoint.LoadModel and pth.OpenWeights read such files", ErrFormat)

// File is an open file whose header has been checked. It may be read by several goroutines at once.
type File struct {
	name     string
	source   io.ReaderAt
	close    func() error
	base     int64 // where the elements of the first tensor begin
	tensors  []Info
	index    map[string]int
	metadata map[string]string
}

// Open opens a file, reads its header and checks it. The caller must Close the File. An error
// names the file, and the tensor if the error belongs to a tensor. The error for a bad file wraps
// [ErrFormat].
func Open(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w; check the path", err)
	}
	if !info.Mode().IsRegular() { // before os.Open, which would wait for a writer of a pipe
		return nil, fmt.Errorf("safetensors: %s: not a regular file; give the path of a .safetensors file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f, err := NewFile(file, info.Size(), path)
	if err != nil {
		file.Close()
		return nil, err
	}
	f.close = file.Close
	return f, nil
}

// NewFile makes a File of the first `size` bytes of source. It reads and checks the header. The
// error for a bad file wraps [ErrFormat]. Errors show `name` as the name of the file.
func NewFile(source io.ReaderAt, size int64, name string) (*File, error) {
	f := &File{name: name, source: source, close: func() error { return nil }}
	if err := f.readHeader(size); err != nil {
		return nil, fmt.Errorf("safetensors: %s: %w", name, err)
	}
	return f, nil
}

func (f *File) readHeader(size int64) error {
	if size < 8 {
		return fmt.Errorf("%w: it has %d bytes, and the length of the header alone takes 8", ErrFormat, size)
	}
	prefix := make([]byte, min(size, 9))
	if err := f.read(prefix, 0); err != nil {
		return err
	}
	length := binary.LittleEndian.Uint64(prefix)
	switch {
	case prefix[len(prefix)-1] != '{' && (bytes.HasPrefix(prefix, []byte("PK\x03\x04")) || bytes.HasPrefix(prefix, []byte("\x80\x02"))):
		return errTorchSave
	case length > maxHeader:
		return fmt.Errorf("%w: it says that its header has %d bytes, and the most is %d", ErrFormat, length, maxHeader)
	case int64(length) > size-8:
		return fmt.Errorf("%w: its header has %d bytes, and the file ends after %d of them: it is cut short", ErrFormat, length, size-8)
	}
	header := make([]byte, length)
	if err := f.read(header, 8); err != nil {
		return err
	}
	f.base = 8 + int64(length)
	var err error
	if f.tensors, f.metadata, err = decodeHeader(header, size-f.base); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	f.index = make(map[string]int, len(f.tensors))
	for i, t := range f.tensors {
		f.index[t.Name] = i
	}
	return nil
}

func (f *File) read(data []byte, at int64) error {
	n, err := f.source.ReadAt(data, at)
	switch {
	case n == len(data):
		return nil
	case err == io.EOF:
		return fmt.Errorf("%w: it became shorter while it was read", ErrFormat)
	}
	return err
}

// Name returns the path given to [Open], or the name given to [NewFile].
func (f *File) Name() string { return f.name }

// Tensors lists the tensors in the order of their bytes. Do not change the list.
func (f *File) Tensors() []Info { return f.tensors }

// Metadata returns the file's map of strings. It returns nil if the file has none. Do not change
// the map.
func (f *File) Metadata() map[string]string { return f.metadata }

// Lookup returns the tensor of this name. It returns false if the file has no such tensor.
func (f *File) Lookup(name string) (Info, bool) {
	i, ok := f.index[name]
	if !ok {
		return Info{}, false
	}
	return f.tensors[i], true
}

// Read returns the elements of a tensor. They are row-major, each with its low byte first.
func (f *File) Read(name string) ([]byte, error) {
	t, ok := f.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("safetensors: %s: there is no tensor %s", f.name, name)
	}
	data := make([]byte, t.Bytes)
	if err := f.ReadInto(name, data); err != nil {
		return nil, err
	}
	return data, nil
}

// ReadInto is [File.Read] into the slice `data`, which must have exactly the length of the
// tensor's elements in bytes.
func (f *File) ReadInto(name string, data []byte) error {
	t, ok := f.Lookup(name)
	switch {
	case !ok:
		return fmt.Errorf("safetensors: %s: there is no tensor %s", f.name, name)
	case int64(len(data)) != t.Bytes:
		return fmt.Errorf("safetensors: %s: tensor %s has %d bytes, to be read into %d", f.name, name, t.Bytes, len(data))
	}
	if err := f.read(data, f.base+t.begin); err != nil {
		return fmt.Errorf("safetensors: %s: tensor %s: %w", f.name, name, err)
	}
	return nil
}

// Offset returns the position in the file at which the elements of a tensor begin.
func (f *File) Offset(t Info) int64 { return f.base + t.begin }

// Close closes the file.
func (f *File) Close() error {
	if f == nil {
		return nil
	}
	if err := f.close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}
