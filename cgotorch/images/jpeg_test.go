package images_test

import (
	"github.com/streamtorch/streamtorch/internal/must"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestNewJPEGDecoder_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range []struct {
		lanes int
		kind  error
		text  string
	}{
		{-1, cgotorch.ErrInvalidArgument, "-1 lanes: want at least one"},
		{0, cgotorch.ErrUnsupported, "the CPU has no engines"},
	} {
		d, err := images.NewJPEGDecoder(cgotorch.CPU, c.lanes)
		torchtest.WantError(t, err, c.kind, "images.NewJPEGDecoder", c.text)
		if d != nil {
			t.Errorf("%d lanes: a decoder besides the error", c.lanes)
		}
	}
	var none *images.JPEGDecoder
	if none.JPEGDevice() != nil || none.Close() != nil {
		t.Error("a nil decoder has a device, or does not close")
	}
}

func TestJPEGDecoder_Close(t *testing.T) {
	torchtest.CheckLeaks(t)
	d, err := images.NewJPEGDecoder(torchtest.CUDA(t), 0)
	if err != nil {
		torchtest.WantError(t, err, cgotorch.ErrUnsupported)
		t.Skip(err)
	}
	if d.JPEGDevice() == nil {
		t.Error("no device")
	}
	for range 2 {
		must.Do(t, d.Close())
	}
	if d.JPEGDevice() != nil || d.Stats() != (images.JPEGStats{}) {
		t.Error("a device or counts after Close")
	}
}
