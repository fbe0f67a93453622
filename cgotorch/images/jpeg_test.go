package images_test

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestNewJPEGDecoder_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	cpu, closed := torchtest.NewStream(t, cgotorch.CPU), torchtest.NewStream(t, cgotorch.CPU)
	closed.Close()
	for _, c := range []struct {
		name    string
		streams []*cgotorch.Stream
		kind    error
		text    string
	}{
		{"no stream", nil, cgotorch.ErrInvalidArgument, "no stream"},
		{"CPU", []*cgotorch.Stream{cpu}, cgotorch.ErrUnsupported, "the CPU has no engines"},
		{"closed", []*cgotorch.Stream{cpu, closed}, cgotorch.ErrClosed, "the stream is closed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := images.NewJPEGDecoder(c.streams...)
			torchtest.WantError(t, err, c.kind, "images.NewJPEGDecoder", c.text)
			if d != nil {
				t.Error("a decoder besides the error")
			}
		})
	}
	if err := cpu.Close(); err != nil {
		t.Error("the stream of a decoder that was refused:", err)
	}
	var none *images.JPEGDecoder
	if none.JPEGDevice() != nil || none.Close() != nil {
		t.Error("a nil decoder has a device, or does not close")
	}
}

func TestJPEGDecoder_Close(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, torchtest.CUDA(t))
	d, err := images.NewJPEGDecoder(s)
	if err != nil {
		torchtest.WantError(t, err, cgotorch.ErrUnsupported)
		t.Skip(err)
	}
	if d.JPEGDevice() == nil {
		t.Error("no device")
	}
	torchtest.WantError(t, s.Close(), cgotorch.ErrMisuse, "JPEG decoder")
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if d.JPEGDevice() != nil || d.Stats() != (images.JPEGStats{}) {
		t.Error("a device or counts after Close")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
