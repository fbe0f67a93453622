package decode

// #include "cgotorch_decode.h"
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"io"
	"sync"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"
	"golang.org/x/image/webp"
)

// longestSide is the limit of a side in pixels. The C library has the same limit.
const longestSide = 1_000_000

// picture is an image that Go decoded: RGB or grey pixels, with no bytes between the rows. err is
// the error if there are no pixels.
type picture struct {
	pix                     []byte
	width, height, channels int
	err                     error
}

// foreign reports whether Go decodes this format, and not the C library.
func (f Format) foreign() bool { return f >= GIF }

// bytesOfPixel returns how many bytes an image takes for each pixel. `rgb` is the number for the
// decoded pixels as RGB. `decoder` is the number for the format's decoder, which holds the image
// and other data. The decoder of GIF also holds a second image, for interlaced rows. The decoder
// of WebP also holds a second image and the alpha channel. The decoder of TIFF also holds a block
// of rows, in a slice that grows. The block may have all rows. A hostile file can make the
// decoders of WebP and TIFF take more.
func bytesOfPixel(format Format, config image.Config) (rgb, decoder int) {
	switch format {
	case GIF:
		return 3, 2
	case BMP:
		return 3, 4
	case TIFF:
		if config.ColorModel == color.RGBA64Model || config.ColorModel == color.NRGBA64Model {
			return 3, 26
		}
		return 3, 13
	}
	return 3, 10
}

// decodeForeign decodes those images whose formats Go decodes. It begins at image number `begin`.
// It stops at the first image of these formats for which the memory has no room. It waits for
// memory, and until the images are decoded. `pictures` has the results; its keys are counted from
// `begin`. `end` is the number of the image at which it stopped. `taken` is the number of bytes
// that it took from p.memory. The caller gives these bytes back.
func (p *Pool) decodeForeign(images []Image, begin int) (pictures map[int]picture, end, taken int) {
	var mine []int
	var pixels, decoding int // pixels: bytes of all pictures. decoding: most bytes that a decoder needs for one image
	for end = begin; end < len(images); end++ {
		data := images[end].Data
		format := Sniff(data)
		if !format.foreign() {
			continue
		}
		if pictures == nil {
			pictures = map[int]picture{}
		}
		config, err := openForeign(data, format, p.maxPixels)
		if err != nil {
			pictures[end-begin] = picture{err: err}
			continue
		}
		rgb, decoder := bytesOfPixel(format, config)
		size := config.Width * config.Height
		need := pixels + size*rgb + max(decoding, size*decoder)*min(len(mine)+1, p.workers)
		if len(mine) > 0 && need > p.memory.limit {
			break
		}
		pixels, decoding, taken = pixels+size*rgb, max(decoding, size*decoder), need
		mine = append(mine, end)
	}
	if len(mine) == 0 {
		return pictures, end, 0
	}
	p.memory.take(taken)
	var lock sync.Mutex
	share(len(mine), p.workers, func(i int) {
		at := mine[i]
		got, err := decodeForeign(images[at].Data, Sniff(images[at].Data), p.maxPixels)
		if err != nil {
			got = picture{err: err}
		}
		lock.Lock()
		defer lock.Unlock()
		pictures[at-begin] = got
	})
	return pictures, end, taken
}

// share calls f(0) to f(n-1) and waits for all calls. It uses at most `workers` goroutines.
func share(n, workers int, f func(int)) {
	var group sync.WaitGroup
	next := make(chan int)
	for range min(n, workers) {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range next {
				f(i)
			}
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
}

func probeForeign(data []byte, format Format) (Info, error) {
	config, err := openForeign(data, format, longestSide*longestSide)
	if err != nil {
		return Info{}, err
	}
	info := Info{Format: format, Width: config.Width, Height: config.Height, Channels: 3, Bits: 8, ColorSpace: RGB,
		Orientation: int(C.ctd_orientation(bytesOf(data), C.size_t(len(data))))}
	switch config.ColorModel {
	case color.GrayModel, color.Gray16Model:
		info.Channels, info.ColorSpace = 1, Grey
	case color.NRGBAModel, color.NRGBA64Model:
		info.Channels, info.Alpha = 4, true
	case color.YCbCrModel:
		info.ColorSpace = YCbCr
	case color.NYCbCrAModel:
		info.Channels, info.ColorSpace, info.Alpha = 4, YCbCr, true
	}
	if _, ok := config.ColorModel.(color.Palette); ok {
		info.Channels, info.ColorSpace = 1, Palette
	}
	switch config.ColorModel {
	case color.Gray16Model, color.RGBA64Model, color.NRGBA64Model:
		info.Bits = 16
	}
	return info, nil
}

// openForeign reads the header. It refuses an image with more than maxPixels pixels, or with a
// side above longestSide.
func openForeign(data []byte, format Format, maxPixels int) (config image.Config, err error) {
	defer catch(format, &err)
	in := &source{Reader: *bytes.NewReader(data)}
	switch format {
	case GIF:
		config, err = gif.DecodeConfig(in)
	case BMP:
		config, err = bmp.DecodeConfig(in)
	case TIFF:
		if len(data) > 3 && (data[2] == '+' || data[3] == '+') {
			return image.Config{}, refuse(ErrUnsupported, "BigTIFF is unsupported: save it as TIFF")
		}
		config, err = tiff.DecodeConfig(in)
	case WebP:
		config, err = configOfWebP(data, in)
	}
	if err != nil {
		return image.Config{}, in.refusal(format, err)
	}
	return config, checkSize(format, config.Width, config.Height, maxPixels)
}

func checkSize(format Format, width, height, maxPixels int) error {
	switch {
	case width < 1 || height < 1:
		return refuse(ErrCorrupt, "corrupt %v: %dx%d pixels", format, width, height)
	case max(width, height) > longestSide:
		return refuse(ErrTooLarge, "%dx%d has a side above the limit of %d pixels", width, height, longestSide)
	case width*height > maxPixels:
		return refuse(ErrTooLarge, "%dx%d is %.4g Mpx, above the limit of %.4g Mpx: raise MaxPixels", width, height,
			float64(width)*float64(height)/1e6, float64(maxPixels)/1e6)
	}
	return nil
}

func decodeForeign(data []byte, format Format, maxPixels int) (out picture, err error) {
	defer catch(format, &err)
	config, err := openForeign(data, format, maxPixels)
	if err != nil {
		return picture{}, err
	}
	if format == TIFF {
		if data, err = boundBlocks(data, config, maxPixels); err != nil {
			return picture{}, err
		}
	}
	in := &source{Reader: *bytes.NewReader(data)}
	var img image.Image
	switch format {
	case GIF:
		img, err = gif.Decode(in)
	case BMP:
		img, err = bmp.Decode(in)
	case TIFF:
		img, err = tiff.Decode(in)
	case WebP:
		img, err = webp.Decode(in)
	}
	if err != nil {
		return picture{}, in.refusal(format, err)
	}
	if format == GIF {
		return onScreen(img.(*image.Paletted), config), nil
	}
	out = flatten(img)
	if format == TIFF && faxInverted(data) {
		for i, v := range out.pix {
			out.pix[i] = 255 - v
		}
	}
	return out, nil
}

// catch turns a decoder's panic into an error. The decoders are not a part of this project, and
// the files come from the user. So a panic must not end the program.
func catch(format Format, err *error) {
	if r := recover(); r != nil {
		*err = refuse(ErrCorrupt, "corrupt %v: its decoder panicked: %v", format, r)
	}
}

// source remembers whether a decoder tried to read past the end.
type source struct {
	bytes.Reader
	ended bool
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.ended = s.ended || (n < len(p))
	return n, err
}

func (s *source) ReadByte() (byte, error) {
	b, err := s.Reader.ReadByte()
	s.ended = s.ended || err != nil
	return b, err
}

func (s *source) ReadAt(p []byte, at int64) (int, error) {
	n, err := s.Reader.ReadAt(p, at)
	s.ended = s.ended || n < len(p)
	return n, err
}

func (s *source) refusal(format Format, err error) error {
	var refused *Error
	var unsupported tiff.UnsupportedError
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, bmp.ErrUnsupported):
		return refuse(ErrUnsupported, "BMP of an unsupported kind (compressed, or an old header)")
	case errors.As(err, &unsupported):
		return refuse(ErrUnsupported, "TIFF with unsupported %s", string(unsupported))
	case s.ended, errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return refuse(ErrTruncated, "truncated %v", format)
	}
	return refuse(ErrCorrupt, "corrupt %v: %v", format, fmt.Sprint(err))
}
