package decode

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
)

// The tags of a TIFF that decide its pixels.
const (
	tagWidth        = 256
	tagHeight       = 257
	tagBits         = 258
	tagCompression  = 259
	tagColour       = 262
	tagFillOrder    = 266
	tagStrips       = 273
	tagSamples      = 277
	tagRowsPerStrip = 278
	tagStripBytes   = 279
	tagPlanes       = 284
	tagFax3         = 292
	tagFax4         = 293
	tagPredictor    = 317
	tagColourMap    = 320
	tagTileWidth    = 322
	tagTileHeight   = 323
	tagTiles        = 324
	tagTileBytes    = 325
	tagInkSet       = 332
	tagExtraSamples = 338
	tagSampleFormat = 339
)

// The colour models of a TIFF that are decoded.
const (
	whiteIsZero = iota
	blackIsZero
	rgbSamples
	colourMap
	inks = 5
)

// The kinds of a fourth sample. Colours of the kind `associated` are multiplied by alpha.
const (
	associated   = 1
	unassociated = 2
)

// numbers are the numbers of a tag.
type numbers struct {
	raw   []byte
	size  int // bytes of a number
	order binary.ByteOrder
}

func (n numbers) count() int { return len(n.raw) / max(n.size, 1) }

func (n numbers) at(i int) int {
	switch at := n.raw[i*n.size:]; n.size {
	case 1:
		return int(at[0])
	case 2:
		return int(n.order.Uint16(at))
	default:
		return int(n.order.Uint32(at))
	}
}

// tiffFile is the first image of a TIFF file. All its values are checked, but width and height.
type tiffFile struct {
	data      []byte
	order     binary.ByteOrder
	tags      map[int]numbers
	maxPixels int

	width, height         int
	samples, bits         int // of a pixel, of a sample
	colour                int // colour model
	alpha                 int // the kind of a fourth sample, or 0
	compression           int
	planes, flipped, diff bool // planes: each sample has blocks of its own. flipped: the first bit of a byte is the lowest
	blockWidth            int  // a block is a tile, or a strip
	blockHeight           int
	places, sizes         numbers // offsets of the blocks, and their bytes
}

// openTIFF reads the first directory. It refuses all images that tiffFile.decode does not decode,
// except for damaged pixels.
func openTIFF(data []byte, maxPixels int) (*tiffFile, error) {
	if len(data) < 8 {
		return nil, refuse(ErrTruncated, "truncated TIFF")
	}
	if data[2] == '+' || data[3] == '+' {
		return nil, refuse(ErrUnsupported, "BigTIFF is unsupported: save it as TIFF")
	}
	f := &tiffFile{data: data, order: binary.LittleEndian, tags: map[int]numbers{}, maxPixels: maxPixels}
	if data[0] == 'M' {
		f.order = binary.BigEndian
	}
	if err := f.readTags(); err != nil {
		return nil, err
	}
	f.width, f.height = f.number(tagWidth, 0), f.number(tagHeight, 0)
	f.compression, f.colour = max(f.number(tagCompression, 1), 1), f.number(tagColour, whiteIsZero)
	if err := f.readSamples(); err != nil {
		return nil, err
	}
	if err := f.readCoding(); err != nil {
		return nil, err
	}
	return f, f.readBlocks()
}

// readTags reads the entries of the first directory. They may have any order.
func (f *tiffFile) readTags() error {
	at := int(f.order.Uint32(f.data[4:]))
	if at+2 > len(f.data) {
		return refuse(ErrTruncated, "truncated TIFF")
	}
	entries := int(f.order.Uint16(f.data[at:]))
	if at += 2; at+12*entries > len(f.data) {
		return refuse(ErrTruncated, "truncated TIFF")
	}
	for ; entries > 0; entries, at = entries-1, at+12 {
		entry := f.data[at:][:12]
		tag, kind, count := int(f.order.Uint16(entry)), int(f.order.Uint16(entry[2:])), int(f.order.Uint32(entry[4:]))
		single, known := true, true
		switch tag {
		case tagBits, tagStrips, tagStripBytes, tagColourMap, tagTiles, tagTileBytes, tagExtraSamples, tagSampleFormat:
			single = false
		case tagWidth, tagHeight, tagCompression, tagColour, tagFillOrder, tagSamples, tagRowsPerStrip, tagPlanes, tagFax3,
			tagInkSet, tagFax4, tagPredictor, tagTileWidth, tagTileHeight:
		default:
			known = false
		}
		if !known {
			continue
		}
		n := numbers{order: f.order}
		switch kind {
		case 1:
			n.size = 1
		case 3:
			n.size = 2
		case 4:
			n.size = 4
		default:
			return refuse(ErrUnsupported, "TIFF with unsupported numbers: tag %d has type %d", tag, kind)
		}
		if single && count != 1 {
			return refuse(ErrCorrupt, "corrupt TIFF: tag %d is not one number", tag)
		}
		n.raw = entry[8:]
		if size := n.size * count; size <= 4 {
			n.raw = n.raw[:size]
		} else if from := int(f.order.Uint32(n.raw)); from+size > len(f.data) {
			return refuse(ErrTruncated, "truncated TIFF")
		} else {
			n.raw = f.data[from : from+size]
		}
		if other, twice := f.tags[tag]; twice && !(n.size == other.size && bytes.Equal(n.raw, other.raw)) {
			return refuse(ErrCorrupt, "corrupt TIFF: two different tags %d", tag)
		}
		f.tags[tag] = n
	}
	return nil
}

// number returns the number of a tag, or `missing` where the file lacks the tag.
func (f *tiffFile) number(tag, missing int) int {
	if n := f.tags[tag]; n.count() > 0 {
		return n.at(0)
	}
	return missing
}

// lacks returns the error for a kind of TIFF that is not decoded.
func lacks(format string, args ...any) error {
	return refuse(ErrUnsupported, "TIFF with unsupported %s", fmt.Sprintf(format, args...))
}

// readSamples reads what a pixel consists of.
func (f *tiffFile) readSamples() error {
	bits, extra, format := f.tags[tagBits], f.tags[tagExtraSamples], f.tags[tagSampleFormat]
	f.samples, f.bits = f.number(tagSamples, max(bits.count(), 1)), f.number(tagBits, 1)
	for i := range min(bits.count(), f.samples) {
		if bits.at(i) != f.bits {
			return lacks("samples of different sizes: %d and %d bits", f.bits, bits.at(i))
		}
	}
	for i := range format.count() {
		if v := format.at(i); v != 1 {
			names := map[int]string{2: "signed integers", 3: "floats"}
			return lacks("sample format %d (%s)", v, cmp.Or(names[v], "no unsigned integers"))
		}
	}
	colours := 1
	switch f.colour {
	case whiteIsZero, blackIsZero, colourMap:
	case rgbSamples:
		colours = 3
	case inks:
		colours = 4
		if set := f.number(tagInkSet, 1); set != 1 {
			return lacks("ink set %d, only 1 (CMYK) is known", set)
		}
	default:
		names := map[int]string{4: "mask", 6: "YCbCr", 8: "CIELab", 9: "ICCLab", 10: "ITULab", 32803: "colour filters",
			32844: "LogL", 32845: "LogLuv", 34892: "linear raw"}
		return lacks("colour model %d (%s)", f.colour, cmp.Or(names[f.colour], "unknown"))
	}
	most := 16
	if f.colour == colourMap {
		most = 8
	}
	if sized := f.bits == 8 || f.bits == most || colours == 1 && (f.bits == 1 || f.bits == 2 || f.bits == 4); !sized {
		return lacks("samples of %d bits in colour model %d", f.bits, f.colour)
	}
	if f.samples < colours || f.samples < colours+extra.count() || colours == 1 && f.samples > 1 || f.samples > 6 {
		return lacks("%d samples a pixel, %d of them extra, in colour model %d", f.samples, extra.count(), f.colour)
	}
	if f.colour == rgbSamples && f.samples == 4 {
		f.alpha = unassociated // what a file without ExtraSamples means
	}
	for i := range extra.count() {
		if i == 0 && f.colour == rgbSamples {
			f.alpha = extra.at(0)
		} else if extra.at(i) == associated {
			return lacks("alpha: sample %d of %d", colours+i+1, f.samples)
		}
	}
	if colours := f.tags[tagColourMap]; f.colour == colourMap && (colours.count() == 0 || colours.count()%3 != 0 || colours.size == 1) {
		return refuse(ErrCorrupt, "corrupt TIFF: a colour map of %d numbers of %d bits", colours.count(), 8*colours.size)
	}
	return nil
}

// readCoding reads how the bytes of a block are coded.
func (f *tiffFile) readCoding() error {
	predictor := 1 // only these two codings have predictors
	switch f.compression {
	case uncompressed, packBits:
	case lzwCodes, deflate, deflateOld:
		predictor = f.number(tagPredictor, 1)
	case group3:
		if options := f.number(tagFax3, 0); options != 0 {
			return lacks("fax codes: T4Options is %d, only 0 is known", options)
		}
	case group4:
		if options := f.number(tagFax4, 0); options != 0 {
			return lacks("fax codes: T6Options is %d, only 0 is known", options)
		}
	default:
		names := map[int]string{2: "fax codes without ends of lines", 6: "old JPEG", 7: "JPEG", 34712: "JPEG 2000", 34887: "LERC",
			34925: "LZMA", 50000: "Zstandard", 50001: "WebP", 50002: "JPEG XL", 52546: "JPEG XL"}
		return lacks("compression %d (%s)", f.compression, cmp.Or(names[f.compression], "unknown"))
	}
	if f.bits != 1 && (f.compression == group3 || f.compression == group4) {
		return lacks("fax codes of %d bits", f.bits)
	}
	if f.diff = predictor == 2; predictor != 1 && !(f.diff && f.bits >= 8) {
		return lacks("predictor %d of samples of %d bits", predictor, f.bits)
	}
	order, planes := f.number(tagFillOrder, 1), f.number(tagPlanes, 1)
	if f.flipped = order == 2; order != 1 && !f.flipped {
		return lacks("fill order %d", order)
	}
	if f.planes = planes == 2; planes != 1 && !f.planes {
		return lacks("planar configuration %d", planes)
	}
	return nil
}

// readBlocks reads where the strips or tiles lie.
func (f *tiffFile) readBlocks() error {
	_, tiled := f.tags[tagTiles]
	_, striped := f.tags[tagStrips]
	switch {
	case tiled && striped:
		return lacks("blocks: both strips and tiles")
	case !tiled && !striped:
		return lacks("blocks: neither strips nor tiles")
	case tiled:
		f.blockWidth, f.blockHeight = f.number(tagTileWidth, 0), f.number(tagTileHeight, 0)
		f.places, f.sizes = f.tags[tagTiles], f.tags[tagTileBytes]
		if f.blockWidth < 1 || f.blockHeight < 1 {
			return refuse(ErrCorrupt, "corrupt TIFF: tiles of %dx%d", f.blockWidth, f.blockHeight)
		}
	default:
		f.blockWidth, f.blockHeight = f.width, f.height
		f.places, f.sizes = f.tags[tagStrips], f.tags[tagStripBytes]
		if rows := f.number(tagRowsPerStrip, 0); rows > 0 { // often 2^32-1, which means all rows
			f.blockHeight = min(rows, f.height)
		}
	}
	return nil
}

func (f *tiffFile) info() Info {
	info := Info{Format: TIFF, Width: f.width, Height: f.height, Channels: f.samples, Bits: f.bits, ColorSpace: grey,
		Alpha: f.alpha == associated || f.alpha == unassociated}
	switch f.colour {
	case rgbSamples:
		info.ColorSpace = rgb
	case inks:
		info.ColorSpace = cmyk
	case colourMap:
		info.ColorSpace = palette
	}
	return info
}
