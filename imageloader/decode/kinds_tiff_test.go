package decode

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

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
			add(name("CMYK"), tiffKind{bigEndian: big, coding: c, samples: 4, colour: 5, rows: 4})
			add(name("CMYK in tiles"), tiffKind{bigEndian: big, coding: c, samples: 4, colour: 5, tile: [2]int{16, 16}})
			add(name("CMYK in planes"), tiffKind{bigEndian: big, coding: c, samples: 4, colour: 5, planes: true})
			add(name("CMYK of 16 bits"), tiffKind{bigEndian: big, coding: c, bits: 16, samples: 4, colour: 5})
			add(name("CMYK and a fifth sample"), tiffKind{bigEndian: big, coding: c, samples: 5, colour: 5, more: []tag{tagOf(338, 0)}})
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
	add("a long orientation", tiffKind{samples: 3, long: true, more: []tag{tagOf(274, 6)}})
	add("an orientation of a big-endian file", tiffKind{samples: 3, bigEndian: true, more: []tag{tagOf(274, 8)}})
	add("a long orientation of a big-endian file", tiffKind{samples: 3, bigEndian: true, long: true, more: []tag{tagOf(274, 3)}})
	add("an unsorted orientation", tiffKind{samples: 3, unsorted: true, more: []tag{tagOf(274, 5)}})
	add("an orientation of a palette", tiffKind{colour: 3, bits: 4, more: []tag{tagOf(274, 7)}})
	for orientation := 0; orientation <= 9; orientation++ {
		add(fmt.Sprint("orientation ", orientation), tiffKind{samples: 3, more: []tag{tagOf(274, orientation)}})
	}
	for _, name := range []string{"group3-zero-is-white", "group3-zero-is-black", "group4-zero-is-white", "group4-zero-is-black"} {
		f := must.Get(openTIFF(read(t, "good", name+".tif"), defaultMaxPixels))(t)
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
	refused("other inks", "TIFF with unsupported ink set 2", tiffKind{samples: 4, colour: 5, more: []tag{tagOf(332, 2)}})
	refused("CMYK with associated alpha", "TIFF with unsupported alpha: sample 5 of 5", tiffKind{samples: 5, colour: 5, more: []tag{tagOf(338, 1)}})
	refused("three inks", "TIFF with unsupported 3 samples a pixel", tiffKind{samples: 3, colour: 5})
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
