package images

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// JPEGDecoder decodes JPEG files on the engines that some of NVIDIA's devices have for it, such
// as A100 and H100. It serves pools of package imageloader/decode beside their threads. The
// pixels equal those of the threads to the bit.
//
// The colours, the crop and the resize are kernels. They take less than one per cent of an H200
// from a training step beside them. A JPEGDecoder may be used from any goroutine, and by several
// pools.
type JPEGDecoder struct {
	mu      sync.Mutex
	use     jpegUse
	cleanup runtime.Cleanup
}

// jpegUse is the use of a decoder in C and of its streams. It is empty after Close.
type jpegUse struct {
	h       *ct.JPEGDecoder
	streams []func() // each lets a stream be closed
}

func (u jpegUse) end() {
	ct.JPEGDecoderFree(u.h)
	for _, unuse := range u.streams {
		unuse()
	}
}

// NewJPEGDecoder returns a decoder that enqueues its work on the given streams. All streams must
// belong to one CUDA device. The decoder works on as many calls of a pool at a time as it has
// streams. Three or four keep the engines of an H200 busy. Nothing else should run on the streams.
//
// NewJPEGDecoder may wait for the device. The caller must close the decoder. The streams cannot
// be closed before it.
//
// NewJPEGDecoder fails with [cgotorch.ErrUnsupported] for a device without such engines. It fails
// with the same error if the library nvJPEG is absent, and then says how to install it. It fails
// with [cgotorch.ErrInvalidArgument] without streams, and for streams of several devices.
func NewJPEGDecoder(streams ...*cgotorch.Stream) (*JPEGDecoder, error) {
	const op = "images.NewJPEGDecoder"
	if err := seam.Ready(); err != nil {
		return nil, err
	}
	seam.Waits(op)
	var use jpegUse
	var handles []*ct.Stream
	for _, s := range streams {
		h, unuse, err := seam.UseStream(op, s)
		if err != nil {
			use.end()
			return nil, err
		}
		handles, use.streams = append(handles, h), append(use.streams, unuse)
	}
	if err := seam.Check(op, ct.JPEGDecoderNew(unsafe.SliceData(handles), int32(len(handles)), &use.h)); err != nil {
		use.end()
		return nil, err
	}
	d := &JPEGDecoder{use: use}
	d.cleanup = runtime.AddCleanup(d, jpegUse.end, use)
	return d, nil
}

// JPEGDevice returns the address of the decoder's ctd_device for package imageloader/decode. It
// is valid while the decoder is open, or while a pool uses it. After Close it returns nil.
func (d *JPEGDecoder) JPEGDevice() unsafe.Pointer {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.use.h == nil {
		return nil
	}
	return ct.JPEGDecoderDevice(d.use.h)
}

// JPEGStats counts the files that pools have given to a decoder.
type JPEGStats struct {
	Decoded int64
	Failed  int64 // files that the engines refused, and files of calls that failed; a pool's threads decode them
}

// Stats returns the counts so far. After Close they are 0.
func (d *JPEGDecoder) Stats() JPEGStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	var counts ct.JPEGCounts
	if d.use.h != nil {
		ct.JPEGDecoderCount(d.use.h, &counts)
	}
	return JPEGStats{counts.Decoded, counts.Failed}
}

// Close gives up the caller's use of the decoder. Pools that use the decoder go on with it, and
// the last of them frees it. Until then no other work should run on the streams. A second Close
// does nothing.
func (d *JPEGDecoder) Close() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.use.h != nil {
		d.cleanup.Stop()
		d.use.end()
		d.use = jpegUse{}
	}
	return nil
}
