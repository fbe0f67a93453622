package decode

// picture is an image decoded by Go: RGB or grey pixels without gaps, or why there are none.
type picture struct {
	pix                     []byte
	width, height, channels int
	err                     error
}

func probeForeign(data []byte, format Format) (Info, error) {
	return Info{}, refuse(ErrUnsupported, "%v is not decoded yet", format)
}

func decodeForeign(data []byte, format Format, maxPixels int) (picture, error) {
	return picture{}, refuse(ErrUnsupported, "%v is not decoded yet", format)
}

func (p *Pool) decodeForeign(images []Image, begin int) (map[int]picture, int) {
	return nil, len(images)
}
