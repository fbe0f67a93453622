package prefetcher

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"iter"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	kernels "github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

const side = 8

// pixel is the colour of image i of a test archive. The left half of an image differs from its
// right half.
func pixel(i, px, py, channel int) uint8 {
	v := 10*i + 3*py + 70*channel
	if px < side/2 {
		v += 25
	}
	return uint8(v)
}

func pngImage(t testing.TB, i int) []byte {
	img := image.NewNRGBA(image.Rect(0, 0, side, side))
	for y := range side {
		for x := range side {
			img.Set(x, y, color.NRGBA{pixel(i, x, y, 0), pixel(i, x, y, 1), pixel(i, x, y, 2), 255})
		}
	}
	var b bytes.Buffer
	must.Do(t, png.Encode(&b, img))
	return b.Bytes()
}

// archive writes a .tgz of n images and returns its path. Image i belongs to class i%3. Member
// `bad` is cut in half, so that it does not decode. All members decode if `bad` is -1.
func archive(t testing.TB, n, bad int) string {
	return tgz(t, n, ".png", func(i int) []byte {
		data := pngImage(t, i)
		if i == bad {
			data = data[:len(data)/2]
		}
		return data
	})
}

// tgz writes a .tgz of n members and returns its path. The bytes of member i come from data. Member
// i belongs to class i%3.
func tgz(t testing.TB, n int, extension string, data func(i int) []byte) string {
	path := filepath.Join(t.TempDir(), "images.tgz")
	f, err := os.Create(path)
	must.Do(t, err)
	defer f.Close()
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for i := range n {
		data := data(i)
		h := &tar.Header{Name: fmt.Sprintf("class%d/%03d%s", i%3, i, extension), Mode: 0o644, Size: int64(len(data))}
		must.Do(t, errors.Join(w.WriteHeader(h), func() error { _, err := w.Write(data); return err }()))
	}
	must.Do(t, errors.Join(w.Close(), z.Close()))
	return path
}

// gated yields a loader's batch only after the test sends to the channel `next`. So the test
// knows which batches are copied ahead.
type gated struct {
	*imageloader.Loader
	next chan bool
}

func (g gated) Epoch(ctx context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(yield func(*imageloader.HostBatch, error) bool) {
		for batch, err := range g.Loader.Epoch(ctx) {
			select {
			case <-g.next:
			case <-ctx.Done():
				if err == nil {
					batch.Release()
				}
				return
			}
			if !yield(batch, err) {
				return
			}
		}
	}
}

// counted is a source that makes batches, changes them by the function `spoil`, and counts the
// batches that come back. The images of each batch lie in pages of their own.
type counted struct {
	memory         []byte
	pinner         imageloader.Pinner
	batches        int
	spoil          func(*imageloader.HostBatch)
	made, released atomic.Int64
}

func newCounted(t *testing.T, batches int, spoil func(*imageloader.HostBatch)) *counted {
	t.Helper()
	memory := must.Get(arena.MapPages(batches * os.Getpagesize()))(t)
	c := &counted{memory: memory, batches: batches, spoil: spoil}
	t.Cleanup(func() {
		for i := range batches {
			if c.pinner != nil {
				c.pinner.Unpin(c.images(i))
			}
		}
		arena.UnmapPages(memory)
	})
	return c
}

// images returns the memory of the images of a batch.
func (c *counted) images(batch int) []byte {
	return c.memory[batch*os.Getpagesize():][:2*side*side*3]
}

func (c *counted) Shape() (batch, height, width, channels int) { return 2, side, side, 3 }

func (c *counted) Pin(p imageloader.Pinner) error {
	c.pinner = p
	for i := range c.batches {
		if err := p.Pin(c.images(i)); err != nil {
			return err
		}
	}
	return nil
}

func (c *counted) Epoch(ctx context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(yield func(*imageloader.HostBatch, error) bool) {
		for i := 0; i < c.batches && ctx.Err() == nil; i++ {
			images := c.images(i)
			batch := &imageloader.HostBatch{N: 2, Height: side, Width: side, Channels: 3, Index: i, Images: images, Labels: make([]int64, 2)}
			batch.OnRelease = func() {
				time.Sleep(time.Millisecond) // long enough to show a reader that does not wait for OnRelease
				c.pinner.HostWrites(images)
				c.released.Add(1)
			}
			if c.spoil != nil {
				c.spoil(batch)
			}
			c.made.Add(1)
			if !yield(batch, nil) {
				return
			}
		}
	}
}

func open(t testing.TB, path string, o imageloader.Options) *imageloader.Loader {
	t.Helper()
	if o.Crop.Transform == nil {
		o.Crop.Transform = decode.Resize{Height: side, Width: side}
	}
	o.Workers = 2
	loader := must.Get(imageloader.Open(path, o))(t)
	t.Cleanup(func() { loader.Close() })
	return loader
}

func start(t testing.TB, source Source, d cgotorch.Device, o Options) *Prefetcher {
	t.Helper()
	p := must.Get(New(source, d, o))(t)
	t.Cleanup(func() { p.Close() })
	return p
}

// eachBatch runs fn for each batch of an epoch, in a Do of stream that uses the batch.
func eachBatch(t *testing.T, p *Prefetcher, stream *cgotorch.Stream, fn func(x *cgotorch.Exec, b *Batch, images, labels *cgotorch.Tensor)) {
	t.Helper()
	for batch, err := range p.Epoch(context.Background()) {
		must.Do(t, err)
		torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
			images, labels := batch.Use(x)
			fn(x, batch, images, labels)
		})
	}
}

// checkBatch compares a batch with the pixels that archive wrote. The batches come in the
// archive's order. The batch begins with image number `first`.
func checkBatch(t *testing.T, x *cgotorch.Exec, b *Batch, images, labels *cgotorch.Tensor, first int) {
	t.Helper()
	if got, want := fmt.Sprint(images), fmt.Sprintf("float32[%d 3 %d %d]", b.N, side, side); !strings.HasPrefix(got, want) {
		t.Fatalf("images are %s, want %s", got, want)
	}
	if got := images.Strides(); got[1] != 1 {
		t.Errorf("strides %v are not channels last", got)
	}
	values, classes := cgotorch.ToSlice[float32](x, images), cgotorch.ToSlice[int64](x, labels)
	for i := range b.N {
		if want := int64((first + i) % 3); classes[i] != want {
			t.Errorf("label %d is %d, want %d", first+i, classes[i], want)
		}
		for c := range 3 {
			for y := range side {
				for px := range side {
					want := (float64(pixel(first+i, px, y, c))/255 - kernels.ImageNetMean[c]) / kernels.ImageNetStd[c]
					if got := float64(values[((i*3+c)*side+y)*side+px]); math.Abs(got-want) > 1e-5 {
						t.Fatalf("image %d, channel %d, row %d, column %d is %v, want %v", first+i, c, y, px, got, want)
					}
				}
			}
		}
	}
}
