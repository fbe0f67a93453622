package decode

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/streamtorch/streamtorch/internal/ctd"
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
// of WebP also holds a second image and the alpha channel, and a hostile file can make it take
// more. The decoder of TIFF holds indices of colours, or alpha.
func bytesOfPixel(format Format) (rgb, decoder int) {
	switch format {
	case GIF:
		return 3, 2
	case BMP:
		return 3, 0
	case TIFF:
		return 3, 1
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
		file, err := openForeign(data, format, p.maxPixels)
		if err != nil {
			pictures[end-begin] = picture{err: err}
			continue
		}
		rgb, decoder := bytesOfPixel(format)
		info := file.info()
		size := info.Width * info.Height
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
	file, err := openForeign(data, format, longestSide*longestSide)
	if err != nil {
		return Info{}, err
	}
	if err := ctd.Ready(); err != nil {
		return Info{}, &Error{Reason: err.Error(), Kind: ErrInternal}
	}
	info := file.info()
	info.Orientation = int(ctd.Orientation(bytesOf(data), uintptr(len(data))))
	return info, nil
}

// foreignFile is a file of which Go has read the header.
type foreignFile interface {
	info() Info // without the orientation
	decode() (picture, error)
}

// openForeign reads the header. It refuses an image with more than maxPixels pixels, or with a
// side above longestSide.
func openForeign(data []byte, format Format, maxPixels int) (file foreignFile, err error) {
	defer catch(format, &err)
	switch format {
	case GIF:
		file, err = openGIF(data)
	case BMP:
		file, err = openBMP(data)
	case TIFF:
		file, err = openTIFF(data, maxPixels)
	case WebP:
		file, err = openWebP(data)
	}
	if err != nil {
		return nil, err
	}
	info := file.info()
	return file, checkSize(format, info.Width, info.Height, maxPixels)
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
	file, err := openForeign(data, format, maxPixels)
	if err != nil {
		return picture{}, err
	}
	return file.decode()
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

func (s *source) refusal(format Format, err error) error {
	if s.ended || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return refuse(ErrTruncated, "truncated %v", format)
	}
	return refuse(ErrCorrupt, "corrupt %v: %v", format, err)
}
