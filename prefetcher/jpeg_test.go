package prefetcher

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/jpeg"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	kernels "github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// photographs writes a .tgz of n JPEG files and returns its path. File `bad` has damage in its
// codes.
func photographs(t *testing.T, n, bad int) string {
	return tgz(t, n, ".jpg", func(i int) []byte {
		img := image.NewNRGBA(image.Rect(0, 0, 90+i%37, 80+i%23))
		for y := range img.Rect.Dy() {
			for x := range img.Rect.Dx() {
				img.Set(x, y, color.NRGBA{uint8(x*3 + i), uint8(y*5 ^ x), uint8(x*y + 7*i), 255})
			}
		}
		var b bytes.Buffer
		must.Do(t, jpeg.Encode(&b, img, &jpeg.Options{Quality: 60 + i%40}))
		data := b.Bytes()
		if i == bad {
			for k := range 60 {
				data[len(data)/3+k] = 0xFE
			}
		}
		return data
	})
}

// Batches do not depend on who decodes: on a decoder's engines, on the number of threads, or on
// where a run was interrupted and resumed. A damaged file is skipped as without engines.
func TestLoader_JPEGDevice(t *testing.T) {
	d := torchtest.CUDA(t)
	torchtest.CheckLeaks(t)
	decoder, err := kernels.NewJPEGDecoder(d, 2)
	if err != nil {
		torchtest.WantError(t, err, cgotorch.ErrUnsupported)
		t.Skip(err)
	}
	defer decoder.Close()
	const batch, stop = 32, 5
	path := photographs(t, 700, 123)
	open := func(workers int, device decode.JPEGDevice) *imageloader.Loader {
		l := must.Get(imageloader.Open(path, imageloader.Options{
			Train: true, BatchSize: batch, Seed: 3, Workers: workers, JPEGDevice: device, Reading: imageloader.Reading{MaxSkipRate: 0.1},
			Crop: imageloader.Crop{Transform: decode.RandomResizedCrop{Height: 48, Width: 40, MinScale: 0.6}},
		}))(t)
		return l
	}
	// The function returns the pixels and labels of two epochs, of which the first `skip` batches are
	// left out, and the loader's state after `stop` batches.
	run := func(l *imageloader.Loader, skip int) (all []byte, at imageloader.State) {
		defer l.Close()
		n := skip
		for range 2 {
			for b, err := range l.Epoch(context.Background()) {
				must.Do(t, err)
				all = append(all, b.Images...)
				for _, label := range b.Labels {
					all = append(all, byte(label))
				}
				if n++; n == stop {
					at = b.State
				}
				b.Release()
			}
		}
		return all, at
	}
	want, at := run(open(2, nil), 0)
	// The first lanes take images when nvJPEG is open, which takes a second.
	first := open(1, decoder)
	for range 100 {
		for b, err := range first.Epoch(context.Background()) {
			must.Do(t, err)
			b.Release()
		}
		if first.Stats().OnDevice > 0 {
			break
		}
	}
	first.Close()
	for _, workers := range []int{1, 3} {
		l := open(workers, decoder)
		got, state := run(l, 0)
		if !bytes.Equal(got, want) {
			t.Fatalf("%d threads: the batches differ from those without a device", workers)
		}
		s := l.Stats()
		t.Logf("%d threads: %d of %d images on the device; skipped %v", workers, s.OnDevice, s.Samples, s.Skipped)
		if s.OnDevice == 0 || len(s.Skipped) != 1 {
			t.Error("no image was decoded on the device, or the damaged file was not found")
		}
		resumed := open(workers, decoder)
		must.Do(t, resumed.Restore(at))
		rest, _ := run(resumed, stop)
		if !bytes.HasSuffix(want, rest) || len(rest) == 0 || state != at {
			t.Errorf("%d threads: a resumed run has other batches", workers)
		}
	}
}
