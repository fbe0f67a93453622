package decode

import (
	"encoding/binary"
	"image"
	"slices"
)

// faxInverted reports whether Go's decoder returns black for white. It reads the bits of fax codes
// by the photometric tag, as if black runs were zeros where zero is black. They are ones in every
// file, and the tag says only how ones look.
func faxInverted(data []byte) bool {
	const compression, photometric = 259, 262
	const group3, group4, blackIsZero = 3, 4, 1
	order := orderOf(data)
	directory := int(order.Uint32(data[4:]))
	coding, interpretation := 0, 0
	for i := range int(order.Uint16(data[directory:])) {
		at := directory + 2 + 12*i
		switch order.Uint16(data[at:]) {
		case compression:
			coding = sumOf(data, at, order)
		case photometric:
			interpretation = sumOf(data, at, order)
		}
	}
	return (coding == group3 || coding == group4) && interpretation == blackIsZero
}

func orderOf(data []byte) binary.ByteOrder {
	if data[0] == 'M' {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// boundBlocks returns the file with strips no higher than the image. Without this limit, Go's
// decoder lets a compressed block inflate to the size in the file's tags, even above the image's
// size. boundBlocks refuses a file with tiles larger than maxPixels. It also refuses a file whose
// blocks are the same bytes again and again. Such a file could be small and still keep the
// decoder busy for hours.
func boundBlocks(data []byte, config image.Config, maxPixels int) ([]byte, error) {
	const (
		rowsPerStrip, stripBytes, tileWidth, tileHeight, tileBytes = 278, 279, 322, 323, 325
		short, long                                                = 3, 4

		spare = 4 // limit: all blocks have at most `spare` times the file's bytes, all tiles `spare` times maxPixels
	)
	order := orderOf(data)
	directory := int(order.Uint32(data[4:]))
	tile := map[uint16]uint32{tileWidth: 1, tileHeight: 1}
	out := data
	for i := range int(order.Uint16(data[directory:])) {
		at := directory + 2 + 12*i
		tag, kind := order.Uint16(data[at:]), order.Uint16(data[at+2:])
		if tag == stripBytes || tag == tileBytes {
			if total := sumOf(data, at, order); total > spare*len(data)+1<<20 {
				return nil, refuse(ErrCorrupt, "corrupt TIFF: its blocks have %d bytes, in a file of %d", total, len(data))
			}
		}
		if tag != rowsPerStrip && tag != tileWidth && tag != tileHeight {
			continue
		}
		if order.Uint32(data[at+4:]) != 1 || kind != short && kind != long {
			return nil, refuse(ErrCorrupt, "corrupt TIFF: tag %d is not one number", tag)
		}
		value := uint32(order.Uint16(data[at+8:]))
		if kind == long {
			value = order.Uint32(data[at+8:])
		}
		if tag != rowsPerStrip {
			tile[tag] = value
		} else if int(value) > config.Height { // often 2^32-1, which means all rows
			out = slices.Clone(data)
			order.PutUint16(out[at+2:], long)
			order.PutUint32(out[at+8:], uint32(config.Height))
		}
	}
	across, down := int(tile[tileWidth]), int(tile[tileHeight])
	if max(across, down) > longestSide || across*down > maxPixels || roundUp(config.Width, across)*roundUp(config.Height, down) > spare*maxPixels {
		return nil, refuse(ErrTooLarge, "TIFF with tiles of %dx%d: raise MaxPixels", across, down)
	}
	return out, nil
}

func roundUp(n, unit int) int { return (n + max(unit, 1) - 1) / max(unit, 1) * max(unit, 1) }

// sumOf adds up the numbers of the tag entry at the offset `at`. The entry is valid, because Go's
// decoder has read it already.
func sumOf(data []byte, at int, order binary.ByteOrder) (total int) {
	const short = 3
	size, count := 4, int(order.Uint32(data[at+4:]))
	if order.Uint16(data[at+2:]) == short {
		size = 2
	}
	if at += 8; size*count > 4 {
		at = int(order.Uint32(data[at:]))
	}
	for ; count > 0; count, at = count-1, at+size {
		if size == 2 {
			total += int(order.Uint16(data[at:]))
		} else {
			total += int(order.Uint32(data[at:]))
		}
	}
	return total
}
