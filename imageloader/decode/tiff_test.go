package decode

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"testing"
	"time"
)

// sharedBlocks returns a TIFF file in which all blocks are the same bytes. The blocks are strips
// of one row, or tiles when tileWidth is above 0.
func sharedBlocks(width, height, tileWidth, tileHeight, compression int, block []byte) []byte {
	const long = 4
	blocks := height
	if tileWidth > 0 {
		blocks = (width + tileWidth - 1) / tileWidth * ((height + tileHeight - 1) / tileHeight)
	}
	type entry struct{ tag, count, value int }
	const entries, header = 10, 8
	offsets := header + 2 + 12*entries + 4
	counts := offsets + 4*blocks
	at := counts + 4*blocks
	where := []entry{{273, blocks, offsets}, {277, 1, 1}, {278, 1, 1}, {279, blocks, counts}, {284, 1, 1}}
	if tileWidth > 0 {
		where = []entry{{277, 1, 1}, {322, 1, tileWidth}, {323, 1, tileHeight}, {324, blocks, offsets}, {325, blocks, counts}}
	}
	out := []byte("II*\x00\x08\x00\x00\x00")
	all := append([]entry{{256, 1, width}, {257, 1, height}, {258, 1, 8}, {259, 1, compression}, {262, 1, 1}}, where...)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(all)))
	for _, e := range all {
		if e.count == 1 && e.value == offsets {
			e.value = at
		} else if e.count == 1 && e.value == counts {
			e.value = len(block)
		}
		out = binary.LittleEndian.AppendUint16(out, uint16(e.tag))
		out = binary.LittleEndian.AppendUint16(out, long)
		out = binary.LittleEndian.AppendUint32(out, uint32(e.count))
		out = binary.LittleEndian.AppendUint32(out, uint32(e.value))
	}
	out = append(out, 0, 0, 0, 0)
	for range blocks {
		out = binary.LittleEndian.AppendUint32(out, uint32(at))
	}
	for range blocks {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(block)))
	}
	return append(out, block...)
}

func zlibOf(p []byte) []byte {
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	w.Write(p)
	w.Close()
	return out.Bytes()
}

// A TIFF whose blocks share their bytes is refused when it would take more work than an honest
// file.
func TestPool_Decode_SharedBlocks(t *testing.T) {
	const packBits, deflate = 32773, 8
	for _, test := range []struct {
		name string
		data []byte
		want error
	}{
		{"rows of their own size", sharedBlocks(64, 64, 0, 0, 1, make([]byte, 64)), nil},
		{"tiles", sharedBlocks(60, 50, 16, 16, deflate, zlibOf(make([]byte, 256))), nil},
		{"rows of the whole file", sharedBlocks(1, 60_000, 0, 0, packBits, bytes.Repeat([]byte{0x81, 0}, 300_000)), ErrCorrupt},
		{"raw rows of the whole file", sharedBlocks(1, 60_000, 0, 0, 1, make([]byte, 600_000)), ErrCorrupt},
		{"tiles above the image", sharedBlocks(999_999, 8, 8, 999_999, deflate, zlibOf(make([]byte, 100))), ErrTooLarge},
	} {
		began := time.Now()
		_, result := decodeOne(t, test.data, Options{Transform: Resize{Height: 4, Width: 4}})
		if !errors.Is(result.Err, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, result.Err, test.want)
		}
		t.Logf("%s: %d bytes, %v, %v", test.name, len(test.data), result.Err, time.Since(began))
	}
}

// A strip has no more rows than the image, whatever its tag says. A tile is not larger than
// MaxPixels.
func TestTIFFFile_BlocksAboveImage(t *testing.T) {
	f, err := openTIFF(read(t, "good", "all-rows-strip.tif"), defaultMaxPixels)
	if err != nil || f.blockHeight != f.height {
		t.Errorf("got a strip of %d rows, %v; want %d", f.blockHeight, err, f.height)
	}
	for _, side := range []int{20_000, 1<<32 - 1} {
		if err := Check(sharedBlocks(25, 18, side, side, 1, make([]byte, 25*18))); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a tile of %d x %d: %v", side, side, err)
		}
	}
}
