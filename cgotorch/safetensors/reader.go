package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrFormat is in the errors of a file that is damaged, cut short, or no safetensors file.
var ErrFormat = errors.New("not a whole safetensors file")

// ErrTorchSave is in the error of a file that PyTorch's torch.save wrote. That error is an
// [ErrFormat] too.
var ErrTorchSave = fmt.Errorf("%w: torch.save wrote it: convert it in Python, with safetensors.torch.save_file(torch.load(…), …)", ErrFormat)

// File is an open file whose header has been checked. It may be read by several goroutines at once.
type File struct {
	name     string
	source   io.ReaderAt
	close    func() error
	base     int64 // where the elements begin
	tensors  []Info
	index    map[string]int
	metadata map[string]string
}

// Open opens a file, and reads and checks its header. The caller must Close the File. Errors name
// the file and, where there is one, the tensor. Errors of a bad file are [ErrFormat].
func Open(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if !info.Mode().IsRegular() {
		file.Close()
		return nil, fmt.Errorf("safetensors: %s: not a regular file; give the path of a .safetensors file", path)
	}
	f, err := NewFile(file, info.Size(), path)
	if err != nil {
		file.Close()
		return nil, err
	}
	f.close = file.Close
	return f, nil
}

// NewFile is [Open] for size bytes of source. Errors use name as the file's name.
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
	var prefix [8]byte
	if err := f.read(prefix[:], 0); err != nil {
		return err
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	switch {
	case int64(min(length, maxHeader+1)) > size-8 && (bytes.HasPrefix(prefix[:], []byte("PK\x03\x04")) || bytes.HasPrefix(prefix[:], []byte("\x80\x02"))):
		return ErrTorchSave
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

// Metadata returns the file's map of strings, nil if it has none. Do not change the map.
func (f *File) Metadata() map[string]string { return f.metadata }

// Lookup finds a tensor by its name.
func (f *File) Lookup(name string) (Info, bool) {
	i, ok := f.index[name]
	if !ok {
		return Info{}, false
	}
	return f.tensors[i], true
}

// Read returns the elements of a tensor, row-major and little end first.
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

// ReadInto is [File.Read] into data, which must have as many bytes as the tensor.
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

// Offset returns the place in the file at which the elements of a tensor begin.
func (f *File) Offset(t Info) int64 { return f.base + t.begin }

// Close closes the file.
func (f *File) Close() error {
	if err := f.close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}
