package pth

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/pickle"
)

// ErrFormat is wrapped by the errors for a file that is damaged, cut short, or not a file of
// torch.save.
var ErrFormat = errors.New("not a whole file of torch.save")

// Limits of a file. They bound the time and the memory that a hostile file can take.
const (
	mostPickle = 64 << 20 // bytes of its pickle
	mostValues = 1 << 22  // tensors and other values
	mostNames  = 64 << 20 // bytes of their names
	mostDepth  = 200      // objects inside each other
)

// File is an open file. Several goroutines may read it at once.
type File struct {
	name    string
	source  io.ReaderAt
	close   func() error
	program bool                 // it is a TorchScript archive
	big     bool                 // elements are stored with their high byte first
	entries map[string]*zip.File // the storages of a zip file, by their keys
	tensors []safetensors.Info
	index   map[string]int // of tensors, by their names
	views   map[string]*tensor
	values  map[string]any
}

// Open opens a file and reads everything but the elements of its tensors. The caller must Close the
// File. The error for a bad file wraps [ErrFormat]. That for a file of another kind names the kind.
// [OpenWeights] also opens safetensors files.
func Open(path string) (*File, error) {
	file, err := regular(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("pth: %w", err)
	}
	f, err := NewFile(file, info.Size(), path)
	if err != nil {
		file.Close()
		return nil, err
	}
	f.close = file.Close
	return f, nil
}

// NewFile makes a File of the first `size` bytes of source. Errors show `name` as the name of the
// file.
func NewFile(source io.ReaderAt, size int64, name string) (*File, error) {
	f := &File{name: name, source: source, index: map[string]int{}, views: map[string]*tensor{}, values: map[string]any{}}
	head := make([]byte, min(max(size, 0), torchzip.HeadLength))
	if n, err := source.ReadAt(head, 0); n < len(head) || n < 4 {
		return nil, f.bad("it has %d bytes: %w", n, err)
	}
	if err := kindOf(name, head); err != nil {
		return nil, err
	}
	var root any
	var err error
	if string(head[:4]) == "PK\x03\x04" {
		root, err = f.openZip(size)
	} else {
		root, err = f.openOld(size)
	}
	if err != nil {
		return nil, err
	}
	w := walker{file: f, path: map[any]bool{}}
	if err := w.walk("", root, 0); err != nil {
		return nil, f.bad("%w", err)
	}
	if f.program && len(f.tensors) == 0 {
		return nil, fmt.Errorf("pth: %s: %w: a frozen TorchScript program: torch.jit.freeze has removed the names of its weights: where the PyTorch model was made, run torch.save(model.state_dict(), path)", name, errKind)
	}
	return f, nil
}

func (f *File) bad(format string, args ...any) error {
	return fmt.Errorf("pth: %s: %w: %w", f.name, ErrFormat, fmt.Errorf(format, args...))
}

// openZip reads the pickle of a zip file and returns its object.
func (f *File) openZip(size int64) (any, error) {
	archive, err := torchzip.Directory(f.source, size)
	if err != nil {
		return nil, f.bad("%w", err)
	}
	byName := make(map[string]*zip.File, len(archive.File))
	names := make(map[string]bool, len(archive.File))
	folder := ""
	for _, entry := range archive.File {
		byName[entry.Name], names[entry.Name] = entry, true
		prefix, rest, _ := strings.Cut(entry.Name, "/")
		if rest == "data.pkl" && folder == "" {
			folder = prefix + "/"
		}
		f.program = f.program || strings.HasPrefix(rest, "code/")
	}
	if err := kindOfZip(f.name, names); err != nil {
		return nil, err
	}
	if folder == "" {
		return nil, f.bad("the zip file has no data.pkl: torch.save did not write it")
	}
	if order := byName[folder+"byteorder"]; order != nil {
		if text, err := readEntry(order, 16); err != nil {
			return nil, f.bad("its byteorder cannot be read: %w", err)
		} else if f.big = string(text) == "big"; !f.big && string(text) != "little" {
			return nil, f.bad("its byte order is %q", text)
		}
	}
	entry := byName[folder+"data.pkl"]
	// torch.save does not compress the pickle, and a pickle of names compresses to a twentieth.
	most := min(mostPickle, 1<<16+40*int64(min(entry.CompressedSize64, mostPickle)))
	text, err := readEntry(entry, most)
	if err != nil {
		return nil, f.bad("data.pkl: %w", err)
	}
	f.entries = map[string]*zip.File{} // only of storages that tensors use
	root, _, err := pickle.Read(text, pickle.Builder{Call: build, Storage: func(id []any) (any, error) {
		s, err := storageOf(id)
		if err != nil {
			return nil, err
		}
		return s, f.found(s, byName[folder+"data/"+s.key], size)
	}})
	if err != nil {
		return nil, f.bad("%w", err)
	}
	return root, nil
}

// found keeps the entry of a storage, or tells why the storage cannot be in it. The file has `size`
// bytes.
func (f *File) found(s *storage, entry *zip.File, size int64) error {
	if entry == nil {
		return fmt.Errorf("the storage %s is not in the file", s.key)
	}
	stored := entry.Method == zip.Store && entry.CompressedSize64 != entry.UncompressedSize64
	if stored || entry.CompressedSize64 > uint64(size) || entry.UncompressedSize64/torchzip.MostRatio > entry.CompressedSize64 {
		return fmt.Errorf("the storage %s cannot have %d bytes", s.key, entry.UncompressedSize64)
	}
	bytes := max(s.width(), 1)
	if s.elements > math.MaxInt64/bytes || int64(entry.UncompressedSize64) < s.elements*bytes {
		return fmt.Errorf("the storage %s has %d bytes, and needs %d of %d", s.key, entry.UncompressedSize64, s.elements, bytes)
	}
	f.entries[s.key] = entry
	return nil
}

func readEntry(entry *zip.File, most int64) ([]byte, error) {
	if int64(entry.UncompressedSize64) > most || entry.UncompressedSize64 > math.MaxInt64 {
		return nil, fmt.Errorf("it has %d bytes, more than %d", entry.UncompressedSize64, most)
	}
	r, err := entry.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// openOld reads a file of PyTorch before 1.6. Such a file has five pickles: a magic number, a
// version, the machine, the object, and the keys of the storages. Then come the storages.
func (f *File) openOld(size int64) (any, error) {
	whole := make([]byte, min(size, mostPickle))
	if _, err := f.source.ReadAt(whole[:min(size, torchzip.HeadLength)], 0); err != nil && err != io.EOF {
		return nil, fmt.Errorf("pth: %s: %w", f.name, err)
	}
	if !bytes.Contains(whole[:min(len(whole), 16)], torchzip.OldMagic) {
		return nil, f.bad("it begins with %q", whole[:min(len(whole), 8)])
	}
	if _, err := f.source.ReadAt(whole, 0); err != nil && err != io.EOF {
		return nil, fmt.Errorf("pth: %s: %w", f.name, err)
	}
	storages := map[string]*storage{}
	at := 0
	var objects [5]any
	for i := range objects {
		var n int
		var err error
		objects[i], n, err = pickle.Read(whole[at:], pickle.Builder{Call: build, Storage: func(id []any) (any, error) {
			s, err := storageOf(id)
			if err != nil {
				return nil, err
			}
			if known := storages[s.key]; known != nil {
				s = known
			} else if s.width() == 0 {
				return nil, fmt.Errorf("a storage of the class %.200s, of which this package does not know the size: save the file again with a newer PyTorch", s.foreign)
			}
			storages[s.key] = s
			if len(id) > 5 && id[5] != nil {
				return s.part(id[5])
			}
			return s, nil
		}})
		if err != nil {
			return nil, f.bad("%w", err)
		}
		at += n
	}
	keys, ok := objects[4].(*pickle.List)
	if !ok {
		return nil, f.bad("it has no list of storages")
	}
	return objects[3], f.place(storages, keys.Items, int64(at), size)
}

// place finds the storages, which begin at `position` in the order of the keys.
func (f *File) place(storages map[string]*storage, keys []any, position, size int64) error {
	for _, key := range keys {
		name, _ := key.(string)
		s := storages[name]
		if s == nil {
			return f.bad("the storage %v belongs to no tensor", key)
		}
		head := make([]byte, 8)
		if _, err := f.source.ReadAt(head, position); err != nil {
			return f.bad("it ends before the storage %s", name)
		}
		elements := int64(binary.LittleEndian.Uint64(head))
		s.at = position + 8
		if bytes := s.width(); elements != s.elements || elements > (size-s.at)/bytes {
			return f.bad("the storage %s has %d elements, want %d, with %d bytes left", name, elements, s.elements, size-s.at)
		} else {
			position = s.at + elements*bytes
		}
	}
	for _, s := range storages {
		if s.at == 0 {
			return f.bad("the storage %s is not in the file", s.key)
		}
	}
	return nil
}

// Name returns the path given to Open, or the name given to NewFile.
func (f *File) Name() string { return f.name }

// Tensors lists the tensors in the order of the file's object. Do not change the list.
func (f *File) Tensors() []safetensors.Info { return f.tensors }

// Lookup returns the tensor of this name. It returns false if the file has no such tensor.
func (f *File) Lookup(name string) (safetensors.Info, bool) {
	i, ok := f.index[name]
	if !ok {
		return safetensors.Info{}, false
	}
	return f.tensors[i], true
}

// Values returns what is in the file beside tensors, by the same kind of names: int64, float64,
// bool, string, nil or [Object]. An example is the epoch of a checkpoint. Do not change the map.
func (f *File) Values() map[string]any { return f.values }

// Metadata returns nil: such a file has no map of strings.
func (f *File) Metadata() map[string]string { return nil }

// Read returns the elements of a tensor. They are row-major, each with its low byte first. Some
// tensors cannot be read, such as quantized and sparse ones. [File.Tensors] lists them with 0
// bytes, and with a DType that says why. Read of such a tensor fails, and says how to save it in
// Python.
func (f *File) Read(name string) ([]byte, error) {
	t := f.views[name]
	if t == nil {
		return nil, fmt.Errorf("pth: %s: there is no tensor %s", f.name, name)
	}
	if t.refused != "" {
		return nil, fmt.Errorf("pth: %s: tensor %s: %s", f.name, name, t.refused)
	}
	if f.big && t.storage.dtype != t.dtype && sizes[t.dtype] > 1 { // PyTorch itself reads other numbers than were saved
		return nil, fmt.Errorf("pth: %s: tensor %s: it is %s in a file of a big-endian machine: save it there with another dtype", f.name, name, t.dtype)
	}
	size := sizes[t.dtype]
	from, length := t.offset*size, t.span()*size
	data := make([]byte, length)
	var err error
	if length == 0 {
		return data, nil
	} else if f.entries == nil {
		_, err = f.source.ReadAt(data, t.storage.begin()+from)
	} else {
		err = readPart(f.entries[t.storage.key], from, data)
	}
	if err != nil {
		return nil, f.bad("tensor %s: %w", name, err)
	}
	data = t.gather(data)
	if f.big || t.conj || t.neg {
		t.finish(data, f.big)
	}
	return data, nil
}

// readPart reads a part of a zip file's entry. PyTorch does not compress entries, so a part is read
// directly. A whole entry is compared with its checksum.
func readPart(entry *zip.File, from int64, data []byte) error {
	if entry.Method == zip.Store && int64(len(data)) < int64(entry.UncompressedSize64) {
		raw, err := entry.OpenRaw()
		if err != nil {
			return err
		}
		if seeker, ok := raw.(io.Seeker); ok {
			if _, err := seeker.Seek(from, io.SeekStart); err != nil {
				return err
			}
			_, err = io.ReadFull(raw, data)
			return err
		}
	}
	r, err := entry.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.CopyN(io.Discard, r, from); err != nil {
		return err
	}
	if _, err := io.ReadFull(r, data); err != nil {
		return err
	}
	if from+int64(len(data)) < int64(entry.UncompressedSize64) {
		return nil
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF { // zip compares the checksum at the end
		return err
	}
	return nil
}

// Close closes the file. A second Close does nothing.
func (f *File) Close() error {
	if f == nil || f.close == nil {
		return nil
	}
	close := f.close
	f.close = nil
	return close()
}
