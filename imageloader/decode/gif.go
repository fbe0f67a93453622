package decode

import (
	"image"
	"image/color"
	"slices"
)

// onScreen returns the whole picture of a GIF, which the format calls the screen. The first frame
// lies at its place on the screen. The rest of the screen gets one colour: the transparent entry
// of the palette, or entry 0 if no entry is transparent.
func onScreen(frame *image.Paletted, screen image.Config) picture {
	colours := slices.Clone(frame.Palette)
	global, _ := screen.ColorModel.(color.Palette)
	ground := 0
	for i, c := range colours {
		if _, _, _, a := c.RGBA(); a != 0 {
			continue
		}
		ground = i
		if len(global) == len(colours) {
			colours[i] = global[i] // Go's decoder makes the transparent entry black
		}
	}
	out := picture{pix: make([]byte, screen.Width*screen.Height*3), width: screen.Width, height: screen.Height, channels: 3}
	rgb := triples(colours)
	for i := 0; i < len(out.pix) && len(colours) > 0; i += 3 {
		copy(out.pix[i:i+3], rgb[ground][:])
	}
	at := frame.Rect.Intersect(image.Rect(0, 0, screen.Width, screen.Height))
	for y := at.Min.Y; y < at.Max.Y; y++ {
		for x := at.Min.X; x < at.Max.X; x++ {
			copy(out.pix[(y*screen.Width+x)*3:][:3], rgb[frame.ColorIndexAt(x, y)][:])
		}
	}
	return out
}

// triples returns 256 colours without their alpha. A colour that the palette lacks is black.
func triples(palette color.Palette) (out [256][3]byte) {
	for i, c := range palette {
		n := color.NRGBAModel.Convert(c).(color.NRGBA)
		out[i] = [3]byte{n.R, n.G, n.B}
	}
	return out
}
