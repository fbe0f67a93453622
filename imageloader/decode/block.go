package decode

import (
	"bytes"
	"compress/zlib"
	"errors"
	"io"
	"math/bits"

	"golang.org/x/image/ccitt"
	"golang.org/x/image/tiff/lzw"
)

// The codings of a TIFF's blocks that are decoded.
const (
	uncompressed = 1
	group3       = 3
	group4       = 4
	lzwCodes     = 5
	deflate      = 8
	packBits     = 32773
	deflateOld   = 32946
)

// layout says how the blocks of a TIFF make up the image.
type layout struct {
	across, down, planes int // blocks are counted along a row first, and planes last
	chunk                int // samples of a pixel in a block
	kept                 int // samples of a pixel that decide its colour
}

func (f *tiffFile) layout() layout {
	l := layout{(f.width + f.blockWidth - 1) / f.blockWidth, (f.height + f.blockHeight - 1) / f.blockHeight, 1, f.samples, 1}
	switch {
	case f.colour == inks, f.colour == rgbSamples && f.alpha == associated:
		l.kept = 4
	case f.colour == rgbSamples:
		l.kept = 3
	}
	if f.planes {
		l.planes, l.chunk = l.kept, 1
	}
	return l
}

// decode returns the pixels. It refuses a file whose tiles are far larger than the image. It also
// refuses a file whose blocks are the same bytes again and again. Such a file could be small and
// still keep the decoder busy for hours.
func (f *tiffFile) decode() (picture, error) {
	const spare = 4 // limit: all blocks have at most `spare` times the file's bytes, all tiles `spare` times maxPixels
	l := f.layout()
	if f.blockWidth > longestSide || f.blockHeight > longestSide || f.blockWidth*f.blockHeight > f.maxPixels ||
		l.across*f.blockWidth*l.down*f.blockHeight > spare*f.maxPixels {
		return picture{}, refuse(ErrTooLarge, "TIFF with tiles of %dx%d: raise MaxPixels", f.blockWidth, f.blockHeight)
	}
	blocks, total := l.across*l.down*l.planes, 0
	if n := f.places.count(); n < blocks {
		return picture{}, refuse(ErrCorrupt, "corrupt TIFF: %d strips or tiles, want %d", n, blocks)
	}
	for i := range f.places.count() {
		total += f.sizeOf(i)
	}
	if total > spare*len(f.data)+1<<20 {
		return picture{}, refuse(ErrCorrupt, "corrupt TIFF: its blocks have %d bytes, in a file of %d", total, len(f.data))
	}
	pix := make([]byte, f.width*f.height*l.kept)
	row := make([]byte, (f.blockWidth*l.chunk*f.bits+7)/8)
	for i := range blocks {
		if err := f.readBlock(i, l, pix, row); err != nil {
			return picture{}, err
		}
	}
	return f.coloured(pix), nil
}

// readBlock writes the samples of block i into pix. It uses `row`, which has room for a row of the
// block.
func (f *tiffFile) readBlock(i int, l layout, pix, row []byte) error {
	left, top, plane := i%l.across*f.blockWidth, i/l.across%l.down*f.blockHeight, i/l.across/l.down
	width, rows := min(f.blockWidth, f.width-left), min(f.blockHeight, f.height-top)
	in, err := f.open(f.bytesOf(i, rows*len(row)), rows)
	for y := top; y < top+rows && err == nil; y++ {
		if _, err = io.ReadFull(in, row); err != nil {
			break
		}
		if f.diff {
			f.addUp(row, l.chunk)
		}
		f.pick(pix[(y*f.width+left)*l.kept+plane:], row, width, l)
	}
	if _, summed := in.(zlib.Resetter); summed && err == nil {
		if _, err = in.Read(row[:1]); err == io.EOF { // after the last byte, Read compares the checksum
			err = nil
		}
	}
	if refused := new(Error); err == nil || errors.As(err, &refused) {
		return err
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse(ErrTruncated, "truncated TIFF")
	}
	return refuse(ErrCorrupt, "corrupt TIFF: %v", err)
}

// sizeOf returns the number of stored bytes of block i. Where the file lacks it, the block ends
// where the next block begins, or with the file.
func (f *tiffFile) sizeOf(i int) int {
	if i < f.sizes.count() && f.sizes.at(i) > 0 {
		return f.sizes.at(i)
	}
	end, place := len(f.data), f.places.at(i)
	if i+1 < f.places.count() && f.places.at(i+1) > place {
		end = min(end, f.places.at(i+1))
	}
	return max(end-place, 0)
}

// bytesOf returns the stored bytes of block i, which has `size` bytes when it is unpacked. Where a
// file ends early, they are fewer.
func (f *tiffFile) bytesOf(i, size int) []byte {
	if f.compression != uncompressed {
		size = f.sizeOf(i)
	}
	from := min(f.places.at(i), len(f.data))
	raw := f.data[from:min(from+size, len(f.data))]
	if f.flipped {
		raw = bytes.Clone(raw)
		for j, b := range raw {
			raw[j] = bits.Reverse8(b)
		}
	}
	return raw
}

// open returns a reader of the unpacked bytes of a block. Fax codes are read up to `rows` rows.
func (f *tiffFile) open(raw []byte, rows int) (io.Reader, error) {
	in := bytes.NewReader(raw)
	switch f.compression {
	case packBits:
		return &packed{rest: raw}, nil
	case lzwCodes:
		if len(raw) > 1 && raw[0] == 0 && raw[1]&1 == 1 {
			return nil, lacks("compression 5 (LZW of before TIFF 5.0)")
		}
		return lzw.NewReader(in, lzw.MSB, 8), nil
	case deflate, deflateOld:
		return zlib.NewReader(in)
	case group3: // an end of a line is eleven bits of 0, and one of 1
		if len(raw) > 1 && (raw[0] != 0 || raw[1]>>4 != 1) {
			return nil, lacks("fax codes: no end of a line before the first line")
		}
		return ccitt.NewReader(in, ccitt.MSB, ccitt.Group3, f.blockWidth, rows, &ccitt.Options{Invert: true}), nil
	case group4:
		return ccitt.NewReader(in, ccitt.MSB, ccitt.Group4, f.blockWidth, rows, &ccitt.Options{Invert: true}), nil
	}
	return in, nil
}

// addUp undoes the predictor: each sample of a row is stored as the difference to the sample of
// the pixel at its left.
func (f *tiffFile) addUp(row []byte, chunk int) {
	if f.bits == 8 {
		for i := chunk; i < len(row); i++ {
			row[i] += row[i-chunk]
		}
		return
	}
	for i := 2 * chunk; i < len(row); i += 2 {
		f.order.PutUint16(row[i:], f.order.Uint16(row[i:])+f.order.Uint16(row[i-2*chunk:]))
	}
}

// pick copies the samples of a row that decide the colour, with 8 bits each. Of 16 bits it keeps
// the upper 8.
func (f *tiffFile) pick(to, row []byte, width int, l layout) {
	if f.bits < 8 { // one sample
		mask := byte(1<<f.bits - 1)
		for x := range width {
			to[x] = row[x*f.bits/8] >> (8 - f.bits - x*f.bits%8) & mask
		}
		return
	}
	size, samples := f.bits/8, min(l.kept, l.chunk)
	if f.bits == 16 && f.order.Uint16([]byte{0, 1}) != 1 {
		row = row[1:]
	}
	for x := range width {
		for c := range samples {
			to[x*l.kept+c] = row[(x*l.chunk+c)*size]
		}
	}
}

// coloured turns the samples that decide the colour into grey or RGB.
func (f *tiffFile) coloured(pix []byte) picture {
	out := picture{pix: pix, width: f.width, height: f.height, channels: 3}
	switch {
	case f.colour == colourMap:
		colours := f.tags[tagColourMap]
		n := colours.count() / 3 // a pixel outside the map is black
		out.pix = make([]byte, 3*len(pix))
		for i, v := range pix {
			for c := 0; c < 3 && int(v) < n; c++ {
				out.pix[3*i+c] = byte(colours.at(c*n+int(v)) >> 8)
			}
		}
	case f.colour == inks, f.colour == rgbSamples && f.alpha == associated:
		for i := range f.width * f.height {
			fourth := int(pix[4*i+3])
			for c := range 3 {
				v := int(pix[4*i+c])
				if f.colour == inks { // the rest of the light, without black and the ink
					product := v*(255-fourth) + 128
					v = 255 - fourth - (product+product>>8)>>8
				} else {
					v = min(255*v/max(fourth, 1), 255*min(fourth, 1))
				}
				pix[3*i+c] = byte(v)
			}
		}
		out.pix = pix[:f.width*f.height*3]
	case f.colour != rgbSamples:
		out.channels = 1
		for i, v := range pix {
			if f.bits < 8 {
				v *= byte(255 / (1<<f.bits - 1))
			}
			if f.colour == whiteIsZero {
				v = 255 - v
			}
			pix[i] = v
		}
	}
	return out
}

// packed reads runs of bytes: a count, and as many bytes or one byte that is repeated.
type packed struct {
	rest, run []byte
	repeated  [128]byte
}

func (p *packed) Read(to []byte) (int, error) {
	for len(p.run) == 0 {
		if len(p.rest) < 2 {
			return 0, io.EOF
		}
		count := int(int8(p.rest[0]))
		p.rest = p.rest[1:]
		switch {
		case count >= 0:
			n := min(count+1, len(p.rest))
			p.run, p.rest = p.rest[:n], p.rest[n:]
		case count > -128:
			p.run = p.repeated[:1-count]
			for i := range p.run {
				p.run[i] = p.rest[0]
			}
			p.rest = p.rest[1:]
		}
	}
	n := copy(to, p.run)
	p.run = p.run[n:]
	return n, nil
}
