package decode

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
)

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
	like("300 colours of 8 bits", "8 bits, header of 40", bmpKind{bits: 8, colours: 300})
	add("555 with alpha", bmpKind{header: 56, bits: 16, coding: 3, masks: []uint32{0x7c00, 0x3e0, 0x1f, 0x8000}})
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
