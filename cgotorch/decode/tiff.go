package decode

import (
	"encoding/binary"
	"image"
	"slices"
)

// boundBlocks returns the file with its strips no higher than the image, and refuses one with tiles larger than maxPixels:
// Go's decoder lets a compressed block inflate to the size that these tags give, whatever the image's own.
func boundBlocks(data []byte, config image.Config, maxPixels int) ([]byte, error) {
	const (
		rowsPerStrip, tileWidth, tileHeight = 278, 322, 323
		short, long                         = 3, 4
	)
	var order binary.ByteOrder = binary.LittleEndian
	if data[0] == 'M' {
		order = binary.BigEndian
	}
	directory := int(order.Uint32(data[4:]))
	tile := map[uint16]uint32{tileWidth: 1, tileHeight: 1}
	out := data
	for i := range int(order.Uint16(data[directory:])) {
		at := directory + 2 + 12*i
		tag, kind := order.Uint16(data[at:]), order.Uint16(data[at+2:])
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
		} else if int(value) > config.Height { // often 2^32-1 for "all rows"
			out = slices.Clone(data)
			order.PutUint16(out[at+2:], long)
			order.PutUint32(out[at+8:], uint32(config.Height))
		}
	}
	if across, down := int(tile[tileWidth]), int(tile[tileHeight]); max(across, down) > longestSide || across*down > maxPixels {
		return nil, refuse(ErrTooLarge, "TIFF with tiles of %dx%d: raise MaxPixels", across, down)
	}
	return out, nil
}
