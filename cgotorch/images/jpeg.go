package images

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// JPEGDecoder decodes JPEG files on the engines that some of NVIDIA's devices have for it, such
// as A100 and H100. It serves pools of package imageloader/decode beside their threads. The
// pixels equal those of the threads to the bit.
//
// The colours, the crop and the resize are kernels. They take less than one per cent of an H200
// from a training step beside them. A JPEGDecoder may be used from any goroutine, and by several
// pools. It has streams of its own, and memory for 8 files of each lane and sampling: page-locked
// for the files' bytes, and on the device for their planes.
//
// nvJPEG waits for all work of the device when a file of more than 1024, or later 2048, pixels a
// side comes for the first time. Where 16 cores fed an H200, threads alone were faster beside a
// training step. A JPEGDecoder is for hosts with fewer cores.
type JPEGDecoder struct {
	mu      sync.Mutex
	h       *ct.JPEGDecoder // nil after Close
	cleanup runtime.Cleanup
}

// NewJPEGDecoder returns a decoder with streams of its own, one for each lane. `lanes` is the
// number of calls of pools that it works on at a time, each with up to 8 files. While one call
// waits for the engines, another one prepares its files. 0 means 4. NewJPEGDecoder waits for all
// work of the device, and takes about a second a lane on an H200. The caller must close the
// decoder.
//
// NewJPEGDecoder fails with [cgotorch.ErrUnsupported] for a device without such engines. It fails
// with the same error if the library nvJPEG is absent, and then says how to install it.
func NewJPEGDecoder(device cgotorch.Device, lanes int) (*JPEGDecoder, error) {
	const op = "images.NewJPEGDecoder"
	if err := inside.Core.Ready(); err != nil {
		return nil, err
	}
	inside.Core.Waits(op)
	if lanes == 0 {
		lanes = 4
	}
	d := &JPEGDecoder{}
	if err := inside.Core.Check(op, ct.JPEGDecoderNew(inside.Core.Device(device), int32(lanes), &d.h)); err != nil {
		return nil, err
	}
	d.cleanup = runtime.AddCleanup(d, ct.JPEGDecoderFree, d.h)
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
	if d.h == nil {
		return nil
	}
	return ct.JPEGDecoderDevice(d.h)
}

// JPEGStats counts the files that pools have given to a decoder.
type JPEGStats struct {
	Decoded int64
	Failed  int64 // files that the engines refused, and files of calls that failed; a pool's threads decode them
	// GaveUp is true after calls have failed for five seconds without a good one between them. The
	// decoder then takes no more files, and the threads of the pools decode all files.
	GaveUp bool
	// Failure is why the last call failed of those in which no file was decoded, or nil.
	Failure error
}

// Stats returns the counts so far. After Close they are 0.
func (d *JPEGDecoder) Stats() JPEGStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.h == nil {
		return JPEGStats{}
	}
	var counts ct.JPEGCounts
	ct.JPEGDecoderCount(d.h, &counts)
	return JPEGStats{counts.Decoded, counts.Failed, counts.GaveUp != 0, inside.Core.Check("images.JPEGDecoder", ct.JPEGDecoderFailure(d.h))}
}

// Close gives up the caller's use of the decoder. Pools that use the decoder go on with it, and
// the last of them frees it. A second Close does nothing.
func (d *JPEGDecoder) Close() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.h != nil {
		d.cleanup.Stop()
		ct.JPEGDecoderFree(d.h)
		d.h = nil
	}
	return nil
}
