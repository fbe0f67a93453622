package decode

import (
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/ctd"
)

const defaultMaxPixels = 100_000_000

// Options configures a [Pool]. Transform must be set.
type Options struct {
	Workers        int       // threads. 0 means one per core that this process may use
	Transform      Transform // the transform of each image, and the size of the results
	Channels       int       // 3: RGB, 1: grey. 0 means 3
	HorizontalFlip float64   // probability, 0 to 1, that Result.Flip is true
	MaxPixels      int       // number of pixels above which an image is refused. 0 means 100 million
	// Memory is the number of bytes that large images may take at a time, in all threads together. 0
	// means 512 MiB. See the Memory section of the package.
	Memory int
	// NoShrink decodes a JPEG at full size, even if the box is far larger than the result. See the
	// Shrinking section of the package.
	NoShrink bool
	// JPEGDevice decodes JPEG files beside the threads. Pixels, errors and random choices are the same
	// to the bit with and without it. nil means that there is none. Pool keeps the device until Close.
	JPEGDevice JPEGDevice
}

// JPEGDevice is a device that decodes JPEG files, such as the JPEGDecoder of cgotorch/images.
//
// The device takes images from the end of a batch, while the threads take images from its
// beginning. It takes sequential JPEG files in YCbCr with chroma of full size, half the width, or
// half the width and height. Their EXIF orientation must be 1. The transform must resize the
// image, to no less than an eighth, without padding and without shrinking. The threads decode
// every other image, and every image at which the device fails.
type JPEGDevice interface {
	// JPEGDevice returns the address of a ctd_device of csrc/include/cgotorch_decode.h. It is nil if
	// the device is closed.
	JPEGDevice() unsafe.Pointer
}

// Image is one encoded image of a batch.
type Image struct {
	Data []byte // the file's bytes. The pool only reads them, and only during the call
	Key  uint64 // fixes all random choices: equal keys give equal crops and flips, whatever Workers is
	// Sound is the field of that name of an earlier Result of the same Data, or 0. A JPEGDevice then
	// decodes the image without another check of its codes, unless Data has changed.
	Sound uint64
}

// Result is the outcome for one image.
type Result struct {
	// Err is an *Error with the fault of the image. The pixels are then 0. Err is nil when the image
	// was decoded.
	Err error

	Width, Height int // of the source image, after its orientation is applied. 0 when unknown

	// The box that was cut out, in pixels of the source image, after its orientation is applied. Top
	// and Left are less than 0 where the box begins in the padding. For ResizeCenterCrop the box lies
	// in the resized image.
	Top, Left, CropHeight, CropWidth int

	Flip bool // the caller should flip the image left to right: the pixels are not flipped

	OnDevice bool // Options.JPEGDevice has decoded the image
	// Sound is not 0 if all codes of the image were checked and are right. It is a number of Data's
	// bytes. Only images for a JPEGDevice are checked.
	Sound uint64
}

// Pool is a number of threads that decode batches. It is safe for concurrent use. Batches that
// are decoded at the same time share the threads.
type Pool struct {
	mu                      sync.RWMutex // Decode holds mu for reading. Close locks it, and so waits for Decode
	handle                  *ctd.Pool
	cleanup                 runtime.Cleanup
	height, width, channels int
	workers, atATime        int
	maxPixels               int
	maxMemory               int
	memory                  *memory // limit for the images that Go decodes
}

// NewPool starts the threads. The caller must close the pool. NewPool fails with
// ErrInvalidArgument for a value outside its range. It fails with ErrOutOfMemory when the system
// has no thread left.
func NewPool(options Options) (*Pool, error) {
	if options.Transform == nil {
		return nil, fmt.Errorf("decode: Options.Transform is nil: %w", ErrInvalidArgument)
	}
	if crop, ok := options.Transform.(RandomCrop); ok && paddingMode(crop.PaddingMode) < 0 {
		return nil, fmt.Errorf("decode: RandomCrop.PaddingMode is %q, want constant, edge, reflect or symmetric: %w", crop.PaddingMode, ErrInvalidArgument)
	}
	in := ctd.Options{
		Workers: narrow(options.Workers), Channels: narrow(options.Channels),
		HorizontalFlip: options.HorizontalFlip, MaxPixels: int64(options.MaxPixels),
		Memory: int64(options.Memory),
	}
	if options.NoShrink {
		in.NoShrink = 1
	}
	if options.JPEGDevice != nil {
		device := options.JPEGDevice.JPEGDevice()
		if device == nil {
			return nil, fmt.Errorf("decode: Options.JPEGDevice is closed, or holds a nil pointer: %w", ErrInvalidArgument)
		}
		in.Device = (*ctd.Device)(device)
		defer runtime.KeepAlive(options.JPEGDevice)
	}
	options.Transform.set(&in)
	p := &Pool{height: int(in.Height), width: int(in.Width), channels: options.Channels,
		maxPixels: options.MaxPixels, memory: newMemory(options.Memory)}
	if p.channels == 0 {
		p.channels = 3
	}
	if p.maxPixels == 0 {
		p.maxPixels = defaultMaxPixels
	}
	if p.memory.limit == 0 {
		p.memory.limit = defaultMemory
	}
	if err := take(ctd.PoolNew(&in, &p.handle)); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	p.workers, p.atATime = int(ctd.PoolWorkers(p.handle)), int(ctd.PoolAtATime(p.handle))
	p.maxMemory = int(ctd.PoolMaxMemory(p.handle))
	p.cleanup = runtime.AddCleanup(p, func(handle *ctd.Pool) { ctd.PoolFree(handle) }, p.handle)
	return p, nil
}

// Size returns the size of every result. A result is uint8, height x width x channels.
func (p *Pool) Size() (height, width, channels int) { return p.height, p.width, p.channels }

// Workers returns the number of threads.
func (p *Pool) Workers() int { return p.workers }

// AtATime returns the most images that the threads and Options.JPEGDevice work on at a time.
// Batches that have fewer images together leave some of the threads, or the device, without work.
func (p *Pool) AtATime() int { return p.atATime }

// MaxMemory returns an upper bound of the memory of all threads together, in bytes. The bound is
// 18 MiB for each thread plus Options.Memory. With a JPEGDevice, each of its lanes adds 2 MiB.
// One image of Options.MaxPixels pixels may need more than Options.Memory. Then the need of that
// image counts in place of Options.Memory. The need is up to 11.2 bytes a pixel, plus 60 MB for a
// result of at most a thousand pixels on a side. The bound does not change after NewPool.
//
// The bound includes all memory of a thread:
//
//   - the memory of libjpeg and libpng
//   - the data of a JPEG without its markers
//   - the decoded pixels, and copies of them turned upright, grey or resized
//   - memory that is kept for the next image
//   - stacks and tables
//
// The bound does not include the bytes of the images and dst, which are the caller's. It does not
// include Go's heap for GIF, BMP, TIFF and WebP. See the Memory section of the package.
func (p *Pool) MaxMemory() int { return p.maxMemory }

// Busy returns the time that the Workers threads together have spent on images since NewPool.
// Threads that serve a JPEGDevice do not count. It returns 0 after Close. The time of an image is
// added when the image is done, and includes the wait for memory. Images that Go decodes do not
// count. To get the used share of the pool, divide Busy by the time since NewPool and by Workers.
func (p *Pool) Busy() time.Duration {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return time.Duration(ctd.PoolBusy(p.handle))
}

// Decode writes the transformed pixels of images[i] to the i-th part of dst, and its outcome to
// results[i]. dst is uint8, len(images) x height x width x channels, in Go or C memory. Decode
// waits until the whole batch is done. While one call waits for its last images, idle threads
// already decode the images of another call.
//
// Decode fails when the pool is closed or a length is wrong. It has then written nothing. The
// fault of one image is in its Result alone.
func (p *Pool) Decode(images []Image, dst []byte, results []Result) error {
	each := p.height * p.width * p.channels
	if len(results) != len(images) {
		return fmt.Errorf("decode: %d results for %d images: %w", len(results), len(images), ErrInvalidArgument)
	}
	if len(dst) != len(images)*each {
		return fmt.Errorf("decode: dst has %d bytes; %d images of %d x %d x %d need %d: %w", len(dst),
			len(images), p.height, p.width, p.channels, len(images)*each, ErrInvalidArgument)
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.handle == nil {
		return ErrClosed
	}
	return p.decode(images, dst, results)
}

// DecodeFiles is [Pool.Decode] for files alone. It fails with the first file that has a fault.
// A random transform chooses the same for each file of a place in the batch.
func (p *Pool) DecodeFiles(files [][]byte, to []byte) error {
	images, results := make([]Image, len(files)), make([]Result, len(files))
	for i, file := range files {
		images[i] = Image{Data: file, Key: uint64(i)}
	}
	if err := p.Decode(images, to, results); err != nil {
		return err
	}
	for i, r := range results {
		if r.Err != nil {
			if len(files) > 1 {
				return fmt.Errorf("file %d of %d: %w", i, len(files), r.Err)
			}
			return r.Err
		}
	}
	return nil
}

// Close waits for the batches that are being decoded, ends the threads and frees the pool. Close
// may be called twice.
func (p *Pool) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handle == nil {
		return nil
	}
	p.cleanup.Stop()
	ctd.PoolFree(p.handle)
	p.handle = nil
	return nil
}

// decode decodes the batch in one call of C, if the memory has room for all images that Go
// decodes. Otherwise it cuts the batch into parts, with one call for each part.
func (p *Pool) decode(images []Image, dst []byte, results []Result) error {
	for begin := 0; begin < len(images); {
		end, err := p.decodePart(images, begin, dst, results)
		if err != nil {
			return err
		}
		begin = end
	}
	return nil
}

// decodePart decodes images from image number `begin` on. It stops at the first image that Go
// decodes and for which p.memory has no room. It returns the number of that image.
func (p *Pool) decodePart(images []Image, begin int, dst []byte, results []Result) (int, error) {
	each := p.height * p.width * p.channels
	foreign, end, taken := p.decodeForeign(images, begin)
	if taken > 0 {
		defer p.memory.give(taken)
	}
	return end, p.cross(images[begin:end], foreign, dst[begin*each:end*each], results[begin:end])
}

// cross gives one part of the batch to C. `foreign` has the pixels, or the errors, of the images
// that Go decoded. Its keys are indices of `images`.
func (p *Pool) cross(images []Image, foreign map[int]picture, dst []byte, results []Result) error {
	in := make([]ctd.Image, len(images))
	out := make([]ctd.Result, len(images))
	var pin runtime.Pinner
	defer pin.Unpin()
	for i, image := range images {
		in[i].Key = uint64(image.Key)
		in[i].Sound = uint64(image.Sound)
		if len(image.Data) > 0 {
			pin.Pin(unsafe.SliceData(image.Data))
			in[i].Data, in[i].Size = bytesOf(image.Data), uintptr(len(image.Data))
		}
		if pixels := foreign[i]; pixels.err == nil && pixels.pix != nil {
			pin.Pin(unsafe.SliceData(pixels.pix))
			in[i].Pixels = bytesOf(pixels.pix)
			in[i].Width, in[i].Height = narrow(pixels.width), narrow(pixels.height)
			in[i].Channels = narrow(pixels.channels)
		}
	}
	err := take(ctd.PoolDecode(p.handle, unsafe.SliceData(in), uintptr(len(in)), bytesOf(dst), uintptr(len(dst)),
		unsafe.SliceData(out)))
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	for i := range out {
		results[i] = resultOf(&out[i])
		if pixels := foreign[i]; pixels.err != nil {
			results[i] = Result{Err: pixels.err}
		}
		results[i].Err = named(results[i].Err, images[i].Data)
	}
	return nil
}

func resultOf(out *ctd.Result) Result {
	return Result{
		Err: take(out.Error), Width: int(out.Width), Height: int(out.Height), Top: int(out.Top), Left: int(out.Left),
		CropHeight: int(out.CropHeight), CropWidth: int(out.CropWidth), Flip: out.Flip != 0,
		OnDevice: out.OnDevice != 0, Sound: uint64(out.Sound),
	}
}
