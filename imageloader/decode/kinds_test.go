package decode

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/kinds.txt anew, with the Python of CGOTORCH_PEER")

// A kind is an image file that is made here. A new kind is one line of the function kinds.
type kind struct {
	name string
	data []byte
	// refused is the begin of the error, where the kind is not decoded. like is the name of a kind
	// with the same pixels, where Pillow does not read this kind, or reads it wrong. Without both,
	// the pixels have the checksum of Pillow's pixels in testdata/kinds.txt.
	refused, like string
}

// value returns sample c of a pixel of the picture that all kinds show.
func value(x, y, c int) int { return (x*9 + y*23 + c*71 + x*y) & 255 }

// A tiffKind makes a TIFF of 21 x 11 pixels. 0 in a field means the usual value.
type tiffKind struct {
	bigEndian, unsorted      bool
	bits, samples, colour    int // 0: 8, 1, 1
	coding, predictor, order int
	planes, flip             bool
	rows                     int    // of a strip
	tile                     [2]int // width, height
	long                     bool   // all numbers have 32 bits
	strip                    []byte // in place of the picture's one strip, coded
	more                     []tag  // added, or in place of a usual tag. A tag without numbers is left out
}

type tag struct {
	number int
	values []int
}

const tiffWidth, tiffHeight = 21, 11

func tagOf(number int, values ...int) tag { return tag{number, values} }

func (k tiffKind) file() []byte {
	var order binary.AppendByteOrder = binary.LittleEndian
	out := []byte("II*\x00")
	if k.bigEndian {
		order, out = binary.BigEndian, []byte("MM\x00*")
	}
	k.bits, k.samples = cmp.Or(k.bits, 8), cmp.Or(k.samples, 1)
	if k.samples >= 3 {
		k.colour = cmp.Or(k.colour, 2)
	}
	blockWidth, blockHeight := tiffWidth, cmp.Or(k.rows, tiffHeight)
	if k.tile[0] > 0 {
		blockWidth, blockHeight = k.tile[0], k.tile[1]
	}
	planes, chunk, planar := 1, k.samples, 1
	if k.planes {
		planes, chunk, planar = k.samples, 1, 2
	}
	var blocks [][]byte
	for plane := range planes {
		for top := 0; top < tiffHeight; top += blockHeight {
			for left := 0; left < tiffWidth; left += blockWidth {
				rows := blockHeight
				if k.tile[0] == 0 {
					rows = min(rows, tiffHeight-top)
				}
				var block []byte
				for y := top; y < top+rows; y++ {
					block = append(block, k.row(order, y, left, blockWidth, plane, chunk)...)
				}
				blocks = append(blocks, k.coded(block))
			}
		}
	}
	if k.strip != nil {
		blocks = [][]byte{slices.Clone(k.strip)}
	}
	var offsets, sizes []int
	for _, block := range blocks {
		if k.flip {
			for i, b := range block {
				block[i] = bits.Reverse8(b)
			}
		}
		offsets, sizes = append(offsets, 8+len(bytes.Join(blocks[:len(offsets)], nil))), append(sizes, len(block))
	}
	tags := []tag{tagOf(256, tiffWidth), tagOf(257, tiffHeight), tagOf(258, slices.Repeat([]int{k.bits}, k.samples)...),
		tagOf(259, cmp.Or(k.coding, 1)), tagOf(262, cmp.Or(k.colour, 1)), tagOf(277, k.samples), tagOf(284, planar)}
	if k.flip {
		tags = append(tags, tagOf(266, 2))
	}
	if k.predictor > 0 {
		tags = append(tags, tagOf(317, k.predictor))
	}
	if k.colour == 3 {
		colours := tagOf(320)
		for i := range 3 << k.bits {
			colours.values = append(colours.values, i*40503&0xffff)
		}
		tags = append(tags, colours)
	}
	if k.tile[0] > 0 {
		tags = append(tags, tagOf(322, blockWidth), tagOf(323, blockHeight), tagOf(324, offsets...), tagOf(325, sizes...))
	} else {
		tags = append(tags, tagOf(273, offsets...), tagOf(278, blockHeight), tagOf(279, sizes...))
	}
	for _, m := range k.more {
		tags = append(slices.DeleteFunc(tags, func(t tag) bool { return t.number == m.number }), m)
	}
	tags = slices.DeleteFunc(tags, func(t tag) bool { return len(t.values) == 0 })
	slices.SortFunc(tags, func(a, b tag) int { return a.number - b.number })
	if k.unsorted {
		slices.Reverse(tags)
	}
	pixels := bytes.Join(blocks, nil)
	directory := 8 + len(pixels)
	out = append(order.AppendUint32(out, uint32(directory)), pixels...)
	out = order.AppendUint16(out, uint16(len(tags)))
	far, after := []byte(nil), directory+2+12*len(tags)+4
	for _, t := range tags {
		var numbers []byte
		size, kind := 2, 3
		if k.long || slices.Max(t.values) > 0xffff || t.number == 273 || t.number == 324 {
			size, kind = 4, 4
		}
		for _, v := range t.values {
			if size == 4 {
				numbers = order.AppendUint32(numbers, uint32(v))
			} else {
				numbers = order.AppendUint16(numbers, uint16(v))
			}
		}
		out = order.AppendUint16(order.AppendUint16(out, uint16(t.number)), uint16(kind))
		out = order.AppendUint32(out, uint32(len(t.values)))
		if len(numbers) <= 4 {
			out = append(out, append(numbers, 0, 0, 0)[:4]...)
		} else {
			out = order.AppendUint32(out, uint32(after+len(far)))
			far = append(far, numbers...)
		}
	}
	return append(append(out, 0, 0, 0, 0), far...)
}

// row returns one row of a block, before it is coded. A tile's pixels outside the image are 0.
func (k tiffKind) row(order binary.AppendByteOrder, y, left, width, plane, chunk int) []byte {
	var out, before []byte
	v, filled := 0, 0
	for i := range width * chunk {
		x, c := left+i/chunk, plane+i%chunk
		s := 0
		if x < tiffWidth && y < tiffHeight {
			s = value(x, y, c)
		}
		switch k.bits {
		case 8:
			out = append(out, byte(s))
		case 16:
			out = order.AppendUint16(out, uint16(s<<8|(s*37&255)))
		default:
			v, filled = v<<k.bits|s>>(8-min(k.bits, 8)), filled+k.bits
			for ; filled >= 8; filled -= 8 {
				out = append(out, byte(v>>(filled-8)))
			}
		}
	}
	if filled > 0 {
		out = append(out, byte(v<<(8-filled)))
	}
	if k.predictor == 2 {
		before = slices.Clone(out)
		for i := chunk * k.bits / 8; i < len(out); i += k.bits / 8 {
			if k.bits == 8 {
				out[i] = before[i] - before[i-chunk]
				continue
			}
			decode := binary.ByteOrder(binary.LittleEndian)
			if k.bigEndian {
				decode = binary.BigEndian
			}
			decode.PutUint16(out[i:], decode.Uint16(before[i:])-decode.Uint16(before[i-2*chunk:]))
		}
	}
	return out
}

func (k tiffKind) coded(block []byte) []byte {
	switch k.coding {
	case lzwCodes: // each code has 9 bits, because the table is cleared in time
		var codes []int
		for i, b := range block {
			if i%200 == 0 {
				codes = append(codes, 256)
			}
			codes = append(codes, int(b))
		}
		var out []byte
		v, filled := 0, 0
		for _, code := range append(codes, 257, 0) {
			for v, filled = v<<9|code, filled+9; filled >= 8; filled -= 8 {
				out = append(out, byte(v>>(filled-8)))
			}
		}
		return out
	case deflate, deflateOld:
		return zlibOf(block)
	case packBits:
		var out []byte
		for i, b := range block { // runs of one, of both forms, and a byte that means nothing
			if i%2 == 0 {
				out = append(out, 0, b)
			} else {
				out = append(out, 0x80, 0, b)
			}
		}
		return out
	}
	return slices.Clone(block)
}

func tiffKinds(t testing.TB) (out []kind) {
	add := func(name string, k tiffKind) { out = append(out, kind{name: "tiff " + name, data: k.file()}) }
	like := func(name, like string, k tiffKind) {
		out = append(out, kind{name: "tiff " + name, data: k.file(), like: "tiff " + like})
	}
	refused := func(name, text string, k tiffKind) {
		out = append(out, kind{name: "tiff " + name, data: k.file(), refused: text})
	}
	codings := []struct {
		name   string
		number int
	}{{"raw", 1}, {"lzw", lzwCodes}, {"deflate", deflate}, {"old deflate", deflateOld}, {"packbits", packBits}}
	for _, big := range []bool{false, true} {
		end := map[bool]string{false: "little", true: "big"}[big]
		for _, coding := range codings {
			c := coding.number
			name := func(s string) string { return s + ", " + coding.name + ", " + end }
			add(name("rgb"), tiffKind{bigEndian: big, coding: c, samples: 3})
			add(name("strips of 4"), tiffKind{bigEndian: big, coding: c, samples: 3, rows: 4})
			add(name("planes"), tiffKind{bigEndian: big, coding: c, samples: 3, planes: true})
			add(name("planes in strips of 3"), tiffKind{bigEndian: big, coding: c, samples: 3, planes: true, rows: 3})
			add(name("planes in overlong strips"), tiffKind{bigEndian: big, coding: c, samples: 3, planes: true, more: []tag{tagOf(278, 1<<32-1)}})
			add(name("tiles"), tiffKind{bigEndian: big, coding: c, samples: 3, tile: [2]int{16, 16}})
			add(name("tiles of planes"), tiffKind{bigEndian: big, coding: c, samples: 3, planes: true, tile: [2]int{16, 16}})
			add(name("grey tiles"), tiffKind{bigEndian: big, coding: c, tile: [2]int{32, 16}})
			add(name("white is zero"), tiffKind{bigEndian: big, coding: c, more: []tag{tagOf(262, 0)}})
			add(name("palette"), tiffKind{bigEndian: big, coding: c, colour: 3})
			add(name("palette in tiles"), tiffKind{bigEndian: big, coding: c, colour: 3, tile: [2]int{16, 16}})
			add(name("mirrored bytes"), tiffKind{bigEndian: big, coding: c, samples: 3, flip: true})
			add(name("mirrored bytes of grey"), tiffKind{bigEndian: big, coding: c, flip: true, rows: 4})
			for _, b := range []int{1, 2, 4} {
				add(name(fmt.Sprint(b, " bits")), tiffKind{bigEndian: big, coding: c, bits: b})
				add(name(fmt.Sprint(b, " bits mirrored")), tiffKind{bigEndian: big, coding: c, bits: b, flip: true})
				add(name(fmt.Sprint(b, " bits, white is zero")), tiffKind{bigEndian: big, coding: c, bits: b, rows: 2, more: []tag{tagOf(262, 0)}})
				add(name(fmt.Sprint(b, " bits of a palette")), tiffKind{bigEndian: big, coding: c, bits: b, colour: 3})
				add(name(fmt.Sprint(b, " bits of a palette in tiles")), tiffKind{bigEndian: big, coding: c, bits: b, colour: 3, tile: [2]int{16, 16}})
			}
			for extra, what := range []string{"unspecified", "associated", "alpha"} {
				add(name("a fourth sample: "+what), tiffKind{bigEndian: big, coding: c, samples: 4, more: []tag{tagOf(338, extra)}})
				add(name("five samples: "+what), tiffKind{bigEndian: big, coding: c, samples: 5, more: []tag{tagOf(338, extra, 0)}})
				add(name("16 bits, a fourth sample: "+what), tiffKind{bigEndian: big, coding: c, bits: 16, samples: 4, more: []tag{tagOf(338, extra)}})
			}
			add(name("16 bits"), tiffKind{bigEndian: big, coding: c, bits: 16, samples: 3})
			add(name("16 bits in tiles"), tiffKind{bigEndian: big, coding: c, bits: 16, samples: 3, tile: [2]int{16, 16}})
			add(name("16 bits of grey"), tiffKind{bigEndian: big, coding: c, bits: 16})
			add(name("16 bits of grey in tiles"), tiffKind{bigEndian: big, coding: c, bits: 16, tile: [2]int{16, 16}})
			like(name("16 bits of grey, mirrored"), "16 bits of grey, raw, little", tiffKind{bigEndian: big, coding: c, bits: 16, flip: true})
			like(name("16 bits in planes"), "16 bits, raw, little", tiffKind{bigEndian: big, coding: c, bits: 16, samples: 3, planes: true})
			like(name("16 bits, white is zero"), "white is zero, raw, little", tiffKind{bigEndian: big, coding: c, bits: 16, more: []tag{tagOf(262, 0)}})
			if c == lzwCodes || c == deflate {
				for _, b := range []int{8, 16} {
					add(name(fmt.Sprint(b, " bits, predictor")), tiffKind{bigEndian: big, coding: c, bits: b, samples: 3, predictor: 2})
					add(name(fmt.Sprint(b, " bits, predictor in planes")), tiffKind{bigEndian: big, coding: c, bits: b, samples: 3, predictor: 2, planes: true, rows: 3})
					add(name(fmt.Sprint(b, " bits, predictor in tiles")), tiffKind{bigEndian: big, coding: c, bits: b, samples: 3, predictor: 2, tile: [2]int{16, 16}})
				}
			} else {
				add(name("a predictor that does not count"), tiffKind{bigEndian: big, coding: c, samples: 3, more: []tag{tagOf(317, 2)}})
			}
		}
		add("unsorted, "+end, tiffKind{bigEndian: big, samples: 3, unsorted: true})
		add("long numbers, "+end, tiffKind{bigEndian: big, samples: 3, long: true, rows: 4})
	}
	add("without sizes of strips", tiffKind{samples: 3, more: []tag{tagOf(279)}})
	add("without sizes of strips, deflate", tiffKind{samples: 3, coding: deflate, more: []tag{tagOf(279)}})
	like("without sizes of four strips, lzw", "rgb, raw, little", tiffKind{samples: 3, coding: lzwCodes, rows: 3, more: []tag{tagOf(279)}})
	like("sizes that are 0", "rgb, raw, little", tiffKind{samples: 3, more: []tag{tagOf(279, 0)}})
	add("BitsPerSample once", tiffKind{samples: 3, more: []tag{tagOf(258, 8)}})
	add("BitsPerSample five times", tiffKind{samples: 3, more: []tag{tagOf(258, 8, 8, 8, 8, 8)}})
	like("without SamplesPerPixel", "rgb, raw, little", tiffKind{samples: 3, more: []tag{tagOf(277)}})
	add("without RowsPerStrip", tiffKind{samples: 3, more: []tag{tagOf(278)}})
	add("RowsPerStrip 2^32-1", tiffKind{samples: 3, more: []tag{tagOf(278, 1<<32-1)}})
	add("without Compression", tiffKind{samples: 3, more: []tag{tagOf(259)}})
	add("without PlanarConfiguration", tiffKind{samples: 3, more: []tag{tagOf(284)}})
	add("without a colour model", tiffKind{more: []tag{tagOf(262)}})
	add("without ExtraSamples", tiffKind{samples: 4})
	add("ExtraSamples 999", tiffKind{samples: 4, more: []tag{tagOf(338, 999)}})
	like("associated alpha in planes", "a fourth sample: associated, raw, little", tiffKind{samples: 4, planes: true, more: []tag{tagOf(338, 1)}})
	add("alpha in planes", tiffKind{samples: 4, planes: true, more: []tag{tagOf(338, 2)}})
	add("SampleFormat 1", tiffKind{samples: 3, more: []tag{tagOf(339, 1, 1, 1)}})
	add("more bytes than rows", tiffKind{samples: 3, coding: deflate, more: []tag{tagOf(257, 7)}})
	for orientation := 1; orientation <= 8; orientation++ {
		add(fmt.Sprint("orientation ", orientation), tiffKind{samples: 3, more: []tag{tagOf(274, orientation)}})
	}
	for _, name := range []string{"group3-zero-is-white", "group3-zero-is-black", "group4-zero-is-white", "group4-zero-is-black"} {
		f, err := openTIFF(read(t, "good", name+".tif"), defaultMaxPixels)
		if err != nil {
			t.Fatal(err)
		}
		add(name+" mirrored", tiffKind{bits: 1, coding: f.compression, flip: true, strip: f.bytesOf(0, 0),
			more: []tag{tagOf(256, f.width), tagOf(257, f.height), tagOf(262, f.colour), tagOf(278, f.height)}})
	}

	refused("2D fax", "TIFF with unsupported fax codes: T4Options is 1", tiffKind{bits: 1, coding: group3, more: []tag{tagOf(292, 1)}})
	refused("filled fax", "TIFF with unsupported fax codes: T4Options is 4", tiffKind{bits: 1, coding: group3, more: []tag{tagOf(292, 4)}})
	refused("uncompressed fax", "TIFF with unsupported fax codes: T6Options is 2", tiffKind{bits: 1, coding: group4, more: []tag{tagOf(293, 2)}})
	refused("fax without a first end of a line", "TIFF with unsupported fax codes: no end of a line", tiffKind{bits: 1, coding: group3})
	refused("fax of bytes", "TIFF with unsupported fax codes of 8 bits", tiffKind{coding: group4})
	refused("fax without ends of lines", "TIFF with unsupported compression 2 (fax codes", tiffKind{bits: 1, coding: 2})
	refused("old JPEG", "TIFF with unsupported compression 6 (old JPEG)", tiffKind{samples: 3, coding: 6})
	refused("JPEG", "TIFF with unsupported compression 7 (JPEG)", tiffKind{samples: 3, coding: 7})
	refused("LZMA", "TIFF with unsupported compression 34925 (LZMA)", tiffKind{samples: 3, coding: 34925})
	refused("zstd", "TIFF with unsupported compression 50000 (Zstandard)", tiffKind{samples: 3, coding: 50000})
	refused("WebP", "TIFF with unsupported compression 50001 (WebP)", tiffKind{samples: 3, coding: 50001})
	refused("an unknown compression", "TIFF with unsupported compression 77 (unknown)", tiffKind{samples: 3, coding: 77})
	refused("old LZW", "TIFF with unsupported compression 5 (LZW of before", tiffKind{coding: lzwCodes, strip: []byte{0, 1, 2, 3}})
	refused("CMYK", "TIFF with unsupported colour model 5 (CMYK)", tiffKind{samples: 4, colour: 5})
	refused("YCbCr", "TIFF with unsupported colour model 6 (YCbCr)", tiffKind{samples: 3, colour: 6})
	refused("Lab", "TIFF with unsupported colour model 8 (CIELab)", tiffKind{samples: 3, colour: 8})
	refused("signed", "TIFF with unsupported sample format 2 (signed integers)", tiffKind{more: []tag{tagOf(339, 2)}})
	refused("floats", "TIFF with unsupported sample format 3 (floats)", tiffKind{bits: 16, more: []tag{tagOf(339, 3)}})
	refused("12 bits", "TIFF with unsupported samples of 12 bits", tiffKind{bits: 12})
	refused("32 bits", "TIFF with unsupported samples of 32 bits", tiffKind{bits: 32})
	refused("4 bits of RGB", "TIFF with unsupported samples of 4 bits in colour model 2", tiffKind{bits: 4, samples: 3})
	refused("16 bits of a palette", "TIFF with unsupported samples of 16 bits in colour model 3", tiffKind{bits: 16, colour: 3, more: []tag{tagOf(320, 1, 2, 3)}})
	refused("565", "TIFF with unsupported samples of different sizes: 5 and 6 bits", tiffKind{samples: 3, more: []tag{tagOf(258, 5, 6, 5)}})
	refused("grey with alpha", "TIFF with unsupported 2 samples a pixel", tiffKind{samples: 2, more: []tag{tagOf(338, 2)}})
	refused("two alphas", "TIFF with unsupported alpha: sample 5 of 5", tiffKind{samples: 5, more: []tag{tagOf(338, 0, 1)}})
	refused("more extra samples than samples", "TIFF with unsupported 3 samples a pixel, 1 of them extra", tiffKind{samples: 3, more: []tag{tagOf(338, 2)}})
	refused("predictor 3", "TIFF with unsupported predictor 3", tiffKind{coding: deflate, more: []tag{tagOf(317, 3)}})
	refused("a predictor of bits", "TIFF with unsupported predictor 2 of samples of 1 bits", tiffKind{bits: 1, coding: deflate, more: []tag{tagOf(317, 2)}})
	refused("fill order 3", "TIFF with unsupported fill order 3", tiffKind{more: []tag{tagOf(266, 3)}})
	refused("planar configuration 3", "TIFF with unsupported planar configuration 3", tiffKind{more: []tag{tagOf(284, 3)}})
	refused("strips and tiles", "TIFF with unsupported blocks", tiffKind{tile: [2]int{16, 16}, more: []tag{tagOf(273, 8)}})
	refused("no blocks", "TIFF with unsupported blocks", tiffKind{more: []tag{tagOf(273)}})
	return out
}

// A bmpKind makes a BMP of 13 x 7 pixels.
type bmpKind struct {
	header, bits, coding int // 0: 40, 24, 0
	masks                []uint32
	gap                  int // bytes before the pixels, or -1: the file does not tell where they are
	topDown, grey        bool
	colours              int // of the palette; 0: all
}

func (k bmpKind) file() []byte {
	const width, height = 13, 7
	k.header, k.bits = cmp.Or(k.header, 40), cmp.Or(k.bits, 24)
	le := binary.LittleEndian
	var rows, palette, masks []byte
	for y := range height {
		if !k.topDown {
			y = height - 1 - y
		}
		row, v, filled := []byte(nil), 0, 0
		for x := range width {
			switch p := value(x, y, 0); {
			case k.bits <= 8:
				if k.colours > 0 {
					p %= k.colours
				} else {
					p >>= 8 - k.bits
				}
				for v, filled = v<<k.bits|p, filled+k.bits; filled >= 8; filled -= 8 {
					row = append(row, byte(v>>(filled-8)))
				}
			default:
				for c := range k.bits / 8 {
					row = append(row, byte(value(x, y, c)))
				}
			}
		}
		if filled > 0 {
			row = append(row, byte(v<<(8-filled)))
		}
		rows = append(rows, append(row, make([]byte, (4-len(row)%4)%4)...)...)
	}
	if k.bits <= 8 {
		for i := range cmp.Or(k.colours, 1<<k.bits) {
			c := []byte{byte(i * 37), byte(i*101 + 9), byte(200 - i*3), 0}
			if k.grey {
				c = []byte{byte(i * 85), byte(i * 85), byte(i * 85), 0}
			}
			if k.header == 12 {
				c = c[:3]
			}
			palette = append(palette, c...)
		}
	}
	for _, m := range k.masks {
		masks = le.AppendUint32(masks, m)
	}
	info := le.AppendUint32(nil, uint32(k.header))
	h := int32(height)
	if k.topDown {
		h = -h
	}
	if k.header == 12 {
		info = le.AppendUint16(le.AppendUint16(info, width), height)
		info = le.AppendUint16(le.AppendUint16(info, 1), uint16(k.bits))
	} else {
		info = le.AppendUint32(le.AppendUint32(info, width), uint32(h))
		info = le.AppendUint16(le.AppendUint16(info, 1), uint16(k.bits))
		info = le.AppendUint32(le.AppendUint32(info, uint32(k.coding)), uint32(len(rows)))
		info = le.AppendUint32(le.AppendUint32(info, 2835), 2835)
		info = le.AppendUint32(le.AppendUint32(info, uint32(k.colours)), 0)
		info = append(info, masks...)
		info = append(info, make([]byte, max(k.header-len(info), 0))...)
	}
	before := append(info, palette...)
	at := 14 + len(before) + k.gap
	if k.gap < 0 {
		at, k.gap = 0, 0
	}
	out := le.AppendUint32([]byte("BM"), uint32(14+len(before)+k.gap+len(rows)))
	out = le.AppendUint32(append(out, 0, 0, 0, 0), uint32(at))
	return append(append(append(out, before...), bytes.Repeat([]byte{0xAB}, k.gap)...), rows...)
}

func bmpKinds() (out []kind) {
	add := func(name string, k bmpKind) { out = append(out, kind{name: "bmp " + name, data: k.file()}) }
	like := func(name, like string, k bmpKind) {
		out = append(out, kind{name: "bmp " + name, data: k.file(), like: "bmp " + like})
	}
	refused := func(name, text string, k bmpKind) {
		out = append(out, kind{name: "bmp " + name, data: k.file(), refused: "BMP of an unsupported kind: " + text})
	}
	for _, header := range []int{12, 40, 52, 56, 64, 108, 124} {
		for _, bits := range []int{1, 4, 8, 16, 24, 32} {
			name := fmt.Sprintf("%d bits, header of %d", bits, header)
			add(name, bmpKind{header: header, bits: bits})
			add(name+", gap", bmpKind{header: header, bits: bits, gap: 6})
			add(name+", place unknown", bmpKind{header: header, bits: bits, gap: -1})
			if header > 12 {
				add(name+", top down", bmpKind{header: header, bits: bits, topDown: true})
			}
		}
	}
	for _, header := range []int{40, 52, 56, 108, 124} {
		for _, gap := range []int{0, 8, -1} {
			name := func(s string) string { return fmt.Sprintf("%s, header of %d, gap of %d", s, header, gap) }
			add(name("555"), bmpKind{header: header, bits: 16, coding: 3, gap: gap, masks: []uint32{0x7c00, 0x3e0, 0x1f}})
			add(name("565"), bmpKind{header: header, bits: 16, coding: 3, gap: gap, masks: []uint32{0xf800, 0x7e0, 0x1f}})
			add(name("BGR"), bmpKind{header: header, bits: 24, coding: 3, gap: gap, masks: []uint32{0xff0000, 0xff00, 0xff}})
			add(name("BGRX"), bmpKind{header: header, bits: 32, coding: 3, gap: gap, masks: []uint32{0xff0000, 0xff00, 0xff}})
			add(name("XBGR"), bmpKind{header: header, bits: 32, coding: 3, gap: gap, masks: []uint32{0xff000000, 0xff0000, 0xff00}})
			add(name("BGXR"), bmpKind{header: header, bits: 32, coding: 3, gap: gap, masks: []uint32{0xff000000, 0xff00, 0xff}})
			add(name("masks of 0"), bmpKind{header: header, bits: 32, coding: 3, gap: gap, masks: []uint32{0, 0, 0}})
			if header >= 56 {
				add(name("BGRA"), bmpKind{header: header, bits: 32, coding: 3, gap: gap, masks: []uint32{0xff0000, 0xff00, 0xff, 0xff000000}})
				add(name("RGBA"), bmpKind{header: header, bits: 32, coding: 3, gap: gap, masks: []uint32{0xff, 0xff00, 0xff0000, 0xff000000}})
				add(name("ABGR"), bmpKind{header: header, bits: 32, coding: 3, gap: gap, masks: []uint32{0xff000000, 0xff0000, 0xff00, 0xff}})
				add(name("BGAR"), bmpKind{header: header, bits: 32, coding: 3, gap: gap, masks: []uint32{0xff000000, 0xff00, 0xff, 0xff0000}})
			}
		}
	}
	add("5 colours of 8 bits", bmpKind{bits: 8, colours: 5})
	add("5 colours of 4 bits, gap", bmpKind{bits: 4, colours: 5, gap: 3})
	add("1 colour of 1 bit", bmpKind{bits: 1, colours: 1})
	add("4 colours of 8 bits", bmpKind{bits: 8, colours: 4})
	like("4 colours of 2 bits", "4 colours of 8 bits", bmpKind{bits: 2, colours: 4, gap: 2})
	add("grey palette", bmpKind{bits: 8, grey: true})
	like("RGB in 32 bits, other order", "RGBA, header of 56, gap of 0", bmpKind{header: 40, bits: 32, coding: 3, masks: []uint32{0xff, 0xff00, 0xff0000}})
	refused("10 bits a channel", "bit fields of 0x3ff00000, 0xffc00 and 0x3ff", bmpKind{bits: 32, coding: 3, masks: []uint32{0x3ff00000, 0xffc00, 0x3ff}})
	refused("a mask in two parts", "bit fields of 0x7c01", bmpKind{bits: 16, coding: 3, masks: []uint32{0x7c01, 0x3e0, 0x1e}})
	refused("a mask of 0", "bit fields of 0x7c00, 0x0", bmpKind{bits: 16, coding: 3, masks: []uint32{0x7c00, 0, 0x1f}})
	refused("a mask above the pixel", "bit fields of 0x1f0000", bmpKind{bits: 16, coding: 3, masks: []uint32{0x1f0000, 0x3e0, 0x1f}})
	refused("bit fields of a palette", "bit fields of 8 bits a pixel", bmpKind{bits: 8, coding: 3})
	refused("run lengths", "compression 1 (run lengths)", bmpKind{bits: 8, coding: 1})
	refused("run lengths of 4 bits", "compression 2 (run lengths)", bmpKind{bits: 4, coding: 2})
	refused("JPEG", "compression 4 (JPEG)", bmpKind{coding: 4})
	refused("PNG", "compression 5 (PNG)", bmpKind{coding: 5})
	refused("24 bits of run lengths of OS/2", "compression 4 (run lengths)", bmpKind{header: 64, coding: 4})
	refused("fax of OS/2", "compression 3 (fax codes)", bmpKind{header: 64, bits: 1, coding: 3})
	refused("a header of 16 bytes", "a header of 16 bytes", bmpKind{header: 16})
	refused("48 bits", "48 bits a pixel", bmpKind{bits: 48})
	return out
}

// gifKinds makes GIF files of 12 x 9 pixels, with a frame of 7 x 5.
func gifKinds(t testing.TB) (out []kind) {
	colours := func(n, seed int) (p color.Palette) {
		for i := range n {
			p = append(p, color.RGBA{byte(i*29 + seed), byte(i*71 + 2*seed), byte(240 - i*13 - seed), 255})
		}
		return p
	}
	add := func(name string, global, local int, transparent int, at image.Rectangle, patch func(data []byte) []byte) {
		p := colours(max(global, local), 7)
		frame := image.NewPaletted(at, p)
		for i := range frame.Pix {
			frame.Pix[i] = byte(value(i%7, i/7, 0) % len(p))
		}
		file := &gif.GIF{Image: []*image.Paletted{frame}, Delay: []int{0}, Config: image.Config{Width: 12, Height: 9}}
		if global > 0 {
			file.Config.ColorModel = colours(global, 50)
			if local == 0 {
				file.Config.ColorModel = p
			}
		}
		if transparent >= 0 {
			p[transparent] = color.RGBA{}
		}
		var data bytes.Buffer
		if err := gif.EncodeAll(&data, file); err != nil {
			t.Fatal(err)
		}
		b := data.Bytes()
		if patch != nil {
			b = patch(b)
		}
		out = append(out, kind{name: "gif " + name, data: b})
	}
	inside, whole := image.Rect(3, 2, 10, 7), image.Rect(0, 0, 12, 9)
	for _, transparent := range []int{-1, 0, 5} {
		// Go writes a transparent entry as black. The palette gets its colour back.
		visible := func(b []byte) []byte {
			if transparent < 0 {
				return b
			}
			i := bytes.Index(b, []byte{0x21, 0xf9, 4}) + 8 // the frame, whose palette is behind 10 bytes
			at := 13
			if b[i+9]&0x80 != 0 {
				at = i + 10
			}
			copy(b[at+3*transparent:], []byte{200, 100, 50})
			return b
		}
		add(fmt.Sprint("palette, transparent ", transparent), 16, 0, transparent, whole, visible)
		add(fmt.Sprint("palette, frame inside, transparent ", transparent), 16, 0, transparent, inside, visible)
		add(fmt.Sprint("palette of the frame, transparent ", transparent), 0, 8, transparent, whole, visible)
		add(fmt.Sprint("both palettes, frame inside, transparent ", transparent), 4, 16, transparent, inside, visible)
	}
	add("frame above the screen", 16, 0, -1, inside, func(b []byte) []byte {
		b[6], b[8] = 9, 6
		return b
	})
	return out
}

// pixelsOfKind returns the checksum of an image's pixels, at their own size.
func pixelsOfKind(t *testing.T, data []byte) (uint32, error) {
	if err := Check(data); err != nil {
		return 0, err
	}
	info, err := Probe(data)
	if err != nil {
		return 0, err
	}
	size := Resize{Height: info.Height, Width: info.Width}
	if info.Orientation > 4 {
		size = Resize{Height: info.Width, Width: info.Height}
	}
	pix, result := decodeOne(t, data, Options{Transform: size, Workers: 1})
	return crc32.ChecksumIEEE(append(fmt.Appendf(nil, "%dx%d ", size.Width, size.Height), pix...)), result.Err
}

// Each kind of TIFF, BMP and GIF has the pixels of Pillow, or is refused by its name.
func TestPool_Decode_Kinds(t *testing.T) {
	all := slices.Concat(tiffKinds(t), bmpKinds(), gifKinds(t))
	const stored = "testdata/kinds.txt"
	if python := os.Getenv("CGOTORCH_PEER"); python != "" {
		dir := t.TempDir()
		for i, k := range all {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d %s", i, strings.ReplaceAll(k.name, "/", " "))), k.data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := exec.Command(python, "testdata/kinds.py", dir).Output()
		if err != nil {
			t.Fatal(err)
		}
		want, _ := os.ReadFile(stored)
		if *update {
			if err := os.WriteFile(stored, got, 0o644); err != nil {
				t.Fatal(err)
			}
		} else if !bytes.Equal(got, want) {
			t.Errorf("Pillow's pixels are not those of %s: run this test with -update", stored)
		}
	}
	text, err := os.ReadFile(stored)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = sum
	}
	tested := map[string]bool{}
	for _, k := range all {
		if tested[k.name] {
			t.Errorf("%s is there twice", k.name)
		}
		tested[k.name] = true
		sum, err := pixelsOfKind(t, k.data)
		if k.refused != "" {
			if !errors.Is(err, ErrUnsupported) || !strings.HasPrefix(err.Error(), k.refused) {
				t.Errorf("%s: got %v, want %q", k.name, err, k.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", k.name, err)
			continue
		}
		if got := fmt.Sprintf("%08x", sum); got != want[cmp.Or(k.like, k.name)] {
			t.Errorf("%s: the checksum is %s, want %q", k.name, got, want[cmp.Or(k.like, k.name)])
		}
	}
}
