package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The decoder makes lists as long as a footer says, before it reads their elements. A
// footer of 100 bytes could so take gigabytes and half a minute. So this file first walks through
// the footer, which is a struct in Thrift's compact protocol.

const (
	maxFooter  = 64 << 20 // bytes of a footer
	maxStructs = 1 << 20  // structs in the lists of a footer, about one for each column of each row group
	maxDepth   = 32
)

// checkFooter fails if a file has no footer whose lists fit into it.
func checkFooter(file io.ReaderAt, size int64) error {
	var tail [8]byte
	_, err := file.ReadAt(tail[:], size-8)
	if size >= 12 && string(tail[4:]) == "PARE" {
		return errors.New("it is encrypted, which is not supported: write it without encryption")
	}
	if size < 12 || err != nil || string(tail[4:]) != "PAR1" {
		return errors.New("it is no Parquet file: its end is not PAR1; copy it again, or open it as what it is")
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if n > size-12 || n > maxFooter {
		return fmt.Errorf("its footer has %d bytes, which is too many", n)
	}
	w := walker{bytes: make([]byte, n)}
	if _, err := file.ReadAt(w.bytes, size-8-n); err != nil {
		return err
	}
	w.value(typeStruct, 0)
	if w.broken {
		return errors.New("its footer is damaged, or has too many columns and row groups")
	}
	return nil
}

// The types of Thrift's compact protocol.
const (
	typeTrue = 1 + iota
	typeFalse
	typeByte
	typeInt16
	typeInt32
	typeInt64
	typeDouble
	typeBinary
	typeList
	typeSet
	typeMap
	typeStruct
)

// walker goes through bytes of Thrift's compact protocol. `broken` is set at the first fault.
type walker struct {
	bytes   []byte
	structs int
	broken  bool
}

func (w *walker) skip(n uint64) {
	if n > uint64(len(w.bytes)) {
		w.broken, w.bytes = true, nil
		return
	}
	w.bytes = w.bytes[n:]
}

func (w *walker) byte() byte {
	if len(w.bytes) == 0 {
		w.broken = true
		return 0
	}
	b := w.bytes[0]
	w.bytes = w.bytes[1:]
	return b
}

func (w *walker) varint() uint64 {
	v, n := binary.Uvarint(w.bytes)
	if n <= 0 {
		w.broken, w.bytes = true, nil
		return 0
	}
	w.bytes = w.bytes[n:]
	return v
}

// value goes over one value. A boolean takes a byte, as in a list.
func (w *walker) value(kind byte, depth int) {
	if depth > maxDepth {
		w.broken = true
	}
	if w.broken {
		return
	}
	switch kind {
	case typeTrue, typeFalse, typeByte:
		w.skip(1)
	case typeInt16, typeInt32, typeInt64:
		w.varint()
	case typeDouble:
		w.skip(8)
	case typeBinary:
		w.skip(w.varint())
	case typeList, typeSet:
		head := w.byte()
		n := uint64(head >> 4)
		if n == 15 {
			n = w.varint()
		}
		if n > uint64(len(w.bytes)) { // an element has at least a byte
			w.broken = true
		}
		for ; n > 0 && !w.broken; n-- {
			w.value(head&15, depth+1)
		}
	case typeStruct:
		if w.structs++; w.structs > maxStructs {
			w.broken = true
		}
		for !w.broken {
			head := w.byte()
			if head == 0 {
				return
			}
			if head>>4 == 0 {
				w.varint() // the number of the field
			}
			if kind := head & 15; kind != typeTrue && kind != typeFalse {
				w.value(kind, depth+1)
			}
		}
	default: // Parquet has no maps
		w.broken = true
	}
}
