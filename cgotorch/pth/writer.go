package pth

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// Write writes a state dict that torch.load reads, also with weights_only=True. The dict has the
// tensors in their order. Write fails if a name is used twice, if PyTorch has no such dtype, or if
// the length of the data does not fit the shape.
func Write(w io.Writer, tensors []safetensors.Tensor) error {
	for i, t := range tensors {
		size, ok := sizes[t.DType]
		if _, known := storageClass(t.DType); !ok || !known {
			return fmt.Errorf("pth: tensor %s: torch.save has no storage of %s", t.Name, t.DType)
		}
		if slices.ContainsFunc(tensors[:i], func(o safetensors.Tensor) bool { return o.Name == t.Name }) {
			return fmt.Errorf("pth: tensor %s is there twice", t.Name)
		}
		if t.Read == nil && int64(len(t.Data)) != count(t.Shape)*size {
			return fmt.Errorf("pth: tensor %s: %s of shape %v has %d bytes, and %d are given", t.Name, t.DType, t.Shape, count(t.Shape)*size, len(t.Data))
		}
	}
	z := archiver{Writer: zip.NewWriter(w)}
	z.add("data.pkl", stateDict(tensors))
	z.add("byteorder", []byte("little"))
	for i, t := range tensors {
		data := t.Data
		if t.Read != nil {
			var err error
			if data, err = t.Read(); err != nil {
				return fmt.Errorf("pth: tensor %s: %w", t.Name, err)
			}
			if int64(len(data)) != count(t.Shape)*sizes[t.DType] {
				return fmt.Errorf("pth: tensor %s: %s of shape %v has %d bytes, and %d are given", t.Name, t.DType, t.Shape, count(t.Shape)*sizes[t.DType], len(data))
			}
		}
		z.add("data/"+strconv.Itoa(i), data)
	}
	z.add("version", []byte("3\n"))
	if z.err == nil {
		z.err = z.Close()
	}
	if z.err != nil {
		return fmt.Errorf("pth: %w", z.err)
	}
	return nil
}

func count(shape []int64) int64 {
	n := int64(1)
	for _, size := range shape {
		n *= size
	}
	return n
}

func storageClass(dtype string) (string, bool) {
	for class, of := range storageTypes {
		if of == dtype && of != "" {
			return string(class[len("torch."):]), true
		}
	}
	return "", false
}

// An archiver writes entries as torch.save does: without compression, each content at a multiple of
// 64 bytes, so that it can be mapped into memory.
type archiver struct {
	*zip.Writer
	at  int64
	err error
}

func (z *archiver) add(name string, data []byte) {
	if z.err != nil {
		return
	}
	const align, head, extraHead = 64, 30, 4
	name = "archive/" + name
	padding := int(-(z.at + head + int64(len(name)) + extraHead) & (align - 1))
	extra := append([]byte{'F', 'B', byte(padding), byte(padding >> 8)}, bytes.Repeat([]byte{'Z'}, padding)...)
	entry, err := z.CreateRaw(&zip.FileHeader{
		Name: name, Method: zip.Store, Extra: extra, CRC32: crc32.ChecksumIEEE(data),
		CompressedSize64: uint64(len(data)), UncompressedSize64: uint64(len(data)),
	})
	if err == nil {
		_, err = entry.Write(data)
	}
	z.at += head + int64(len(name)) + int64(len(extra)) + int64(len(data))
	z.err = err
}

// stateDict returns the pickle of an OrderedDict.
func stateDict(tensors []safetensors.Tensor) []byte {
	var p []byte
	text := func(s string) {
		p = append(p, 'X')
		p = binary.LittleEndian.AppendUint32(p, uint32(len(s)))
		p = append(p, s...)
	}
	integer := func(v int64) {
		p = append(p, 0x8a, 8) // LONG1
		p = binary.LittleEndian.AppendUint64(p, uint64(v))
	}
	class := func(module, name string) { p = append(p, "c"+module+"\n"+name+"\n"...) }
	tuple := func(values ...int64) {
		p = append(p, '(')
		for _, v := range values {
			integer(v)
		}
		p = append(p, 't')
	}
	p = append(p, 0x80, 2)
	class("collections", "OrderedDict")
	p = append(p, ')', 'R', '(')
	for i, t := range tensors {
		text(t.Name)
		class("torch._utils", "_rebuild_tensor_v2")
		p = append(p, '(', '(')
		text("storage")
		name, _ := storageClass(t.DType)
		class("torch", name)
		text(strconv.Itoa(i))
		text("cpu")
		integer(count(t.Shape))
		p = append(p, 't', 'Q')
		integer(0)
		tuple(t.Shape...)
		strides := make([]int64, len(t.Shape))
		step := int64(1)
		for d := len(strides) - 1; d >= 0; d-- {
			strides[d] = step
			step *= t.Shape[d]
		}
		tuple(strides...)
		p = append(p, 0x89)
		class("collections", "OrderedDict")
		p = append(p, ')', 'R', 't', 'R')
	}
	return append(p, 'u', '.')
}
