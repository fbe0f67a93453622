package decode

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// bmpFile is the content of a BMP's header.
type bmpFile struct {
	width, height, bits int // bits of a pixel
	topDown, alpha      bool
	palette             [256][3]byte
	fields              [3]bitField // red, green and blue of a pixel without a palette
	rows                []byte      // up to the end of the file
}

// bitField is the place of a channel in a pixel. The channel's largest value is `most`.
type bitField struct{ shift, most uint32 }

// openBMP reads the header. It refuses all images that bmpFile.decode does not decode, except for
// files that end early.
func openBMP(data []byte) (*bmpFile, error) {
	const file, os2Short, os2Long = 14, 12, 64 // bytes of a header
	const raw, bitFields = 0, 3                // codings
	number, short := binary.LittleEndian.Uint32, binary.LittleEndian.Uint16
	lacks := func(format string, args ...any) error {
		return refuse(ErrUnsupported, "BMP of an unsupported kind: %s", fmt.Sprintf(format, args...))
	}
	f := &bmpFile{}
	header, at := int(number(data[file:])), int(number(data[10:]))
	end := file + header // of what is before the pixels
	if end > len(data) {
		return nil, refuse(ErrTruncated, "truncated BMP")
	}
	info, coding, colours, entry := data[file:end], raw, 0, 4
	switch header {
	case os2Short:
		f.width, f.height, f.bits, entry = int(short(info[4:])), int(short(info[6:])), int(short(info[10:])), 3
	case 40, 52, 56, os2Long, 108, 124:
		f.width, f.height, f.bits = int(int32(number(info[4:]))), int(int32(number(info[8:]))), int(short(info[14:]))
		coding, colours = int(number(info[16:])), int(number(info[32:]))
	default:
		return nil, lacks("a header of %d bytes", header)
	}
	if f.height < 0 {
		f.height, f.topDown = -f.height, true
	}
	if coding != raw && (coding != bitFields || header == os2Long) {
		names := map[int]string{1: "run lengths", 2: "run lengths", 4: "JPEG", 5: "PNG"}
		if header == os2Long {
			names[3], names[4] = "fax codes", "run lengths"
		}
		return nil, lacks("compression %d (%s)", coding, cmp.Or(names[coding], "unknown"))
	}
	masks := [4]uint32{0xff0000, 0xff00, 0xff}
	switch f.bits {
	case 1, 2, 4, 8:
		if coding == bitFields {
			return nil, lacks("bit fields of %d bits a pixel", f.bits)
		}
		if colours == 0 {
			colours = 1 << f.bits
		}
		if colours > 1<<16 {
			return nil, refuse(ErrCorrupt, "corrupt BMP: a palette of %d colours", colours)
		}
		if at == end { // an old fault of writers: the palette is there too
			at = 0
		}
		for i := range min(colours, 1<<f.bits, (len(data)-end)/entry) {
			c := data[end+entry*i:]
			f.palette[i] = [3]byte{c[2], c[1], c[0]}
		}
		end += entry * colours
	case 16:
		masks = [4]uint32{0x7c00, 0x3e0, 0x1f}
	case 24, 32:
	default:
		return nil, lacks("%d bits a pixel", f.bits)
	}
	if coding == bitFields { // the masks lie behind the first 40 bytes of the header, whatever its size is
		count := 3
		if header >= 56 {
			count = 4
		}
		if end = max(end, file+40+12); end > len(data) {
			return nil, refuse(ErrTruncated, "truncated BMP")
		}
		var told [4]uint32
		for i := range count {
			told[i] = number(data[file+40+4*i:])
		}
		if told != [4]uint32{} { // without any mask, the masks are the usual ones
			masks = told
		}
	}
	f.alpha = masks[3] != 0
	for i := range f.fields {
		if f.bits <= 8 {
			break
		}
		shift := uint32(bits.TrailingZeros32(masks[i]))
		most := masks[i] >> shift
		if most == 0 || most > 255 || most&(most+1) != 0 || bits.Len32(masks[i]) > f.bits {
			return nil, lacks("bit fields of %#x, %#x and %#x", masks[0], masks[1], masks[2])
		}
		f.fields[i] = bitField{shift, most}
	}
	if at == 0 {
		at = end
	}
	f.rows = data[min(at, len(data)):]
	return f, nil
}

func (f *bmpFile) info() Info {
	info := Info{Format: BMP, Width: f.width, Height: f.height, Channels: 3, Bits: 8, ColorSpace: rgb, Alpha: f.alpha}
	switch {
	case f.bits <= 8:
		info.Channels, info.Bits, info.ColorSpace = 1, f.bits, palette
	case f.bits == 16:
		info.Bits = bits.Len32(f.fields[0].most)
	}
	if f.alpha {
		info.Channels = 4
	}
	return info
}

// decode returns the pixels as RGB. A pixel outside the palette is black.
func (f *bmpFile) decode() (picture, error) {
	out := picture{pix: make([]byte, f.width*f.height*3), width: f.width, height: f.height, channels: 3}
	stride := (f.width*f.bits + 31) / 32 * 4
	if stride*f.height > len(f.rows) {
		return picture{}, refuse(ErrTruncated, "truncated BMP")
	}
	var values [3][256]byte // of each field
	for c, field := range f.fields {
		for v := uint32(1); v <= field.most; v++ {
			values[c][v] = byte(v * 255 / field.most)
		}
	}
	size := f.bits / 8
	for y := range f.height {
		from, row := y, out.pix[y*f.width*3:][:f.width*3]
		if !f.topDown {
			from = f.height - 1 - y
		}
		line := f.rows[from*stride:][:stride]
		if f.bits == 8 {
			for x, index := range line[:f.width] {
				*(*[3]byte)(row[3*x:]) = f.palette[index]
			}
			continue
		}
		for x := range f.width {
			to := (*[3]byte)(row[3*x:])
			if f.bits <= 8 {
				at := x * f.bits
				*to = f.palette[line[at/8]>>(8-f.bits-at%8)&byte(1<<f.bits-1)]
				continue
			}
			pixel := uint32(0)
			for i := size - 1; i >= 0; i-- {
				pixel = pixel<<8 | uint32(line[x*size+i])
			}
			for c, field := range f.fields {
				to[c] = values[c][pixel>>field.shift&field.most]
			}
		}
	}
	return out, nil
}
