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
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/decode"
	"github.com/streamtorch/streamtorch/imageloader"
)

const side = 8

// pixel is the colour of image i of a test archive: its left half differs from its right half.
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
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// archive writes a .tgz of n images; image i belongs to class i%3. Member bad, if there is one, is no image.
func archive(t testing.TB, n, bad int) string {
	path := filepath.Join(t.TempDir(), "images.tgz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for i := range n {
		data := pngImage(t, i)
		if i == bad {
			data = data[:len(data)/2]
		}
		h := &tar.Header{Name: fmt.Sprintf("class%d/%03d.png", i%3, i), Mode: 0o644, Size: int64(len(data))}
		if err := errors.Join(w.WriteHeader(h), func() error { _, err := w.Write(data); return err }()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func devices() []cgotorch.Device {
	all := []cgotorch.Device{cgotorch.CPU}
	if n, _ := cgotorch.CUDACount(); n > 0 {
		all = append(all, cgotorch.CUDA(0))
	}
	return all
}

func onEachDevice(t *testing.T, test func(t *testing.T, d cgotorch.Device)) {
	for _, d := range devices() {
		t.Run(d.String(), func(t *testing.T) {
			checkLeaks(t)
			test(t, d)
		})
	}
}

// checkLeaks fails the test if it leaves goroutines or handles behind. The default stream is closed: its thread is made anew.
func checkLeaks(t *testing.T) {
	handles, goroutines := cgotorch.LiveHandles(), runtime.NumGoroutine()
	t.Cleanup(func() {
		for _, d := range devices() {
			cgotorch.DefaultStream(d).Close()
		}
		deadline := time.Now().Add(10 * time.Second)
		for runtime.NumGoroutine() > goroutines && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			buf := make([]byte, 1<<20)
			t.Errorf("%d goroutines, %d before:\n%s", n, goroutines, buf[:runtime.Stack(buf, true)])
		}
		if got := cgotorch.LiveHandles(); !maps.Equal(got, handles) {
			t.Errorf("handles %v, %v before", got, handles)
		}
	})
}

func open(t testing.TB, path string, o imageloader.Options) *imageloader.Loader {
	t.Helper()
	if o.Transform == nil {
		o.Transform = decode.Resize{Height: side, Width: side}
	}
	o.Workers = 2
	loader, err := imageloader.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loader.Close() })
	return loader
}

func start(t testing.TB, source Source, d cgotorch.Device, o Options) *Prefetcher {
	t.Helper()
	p, err := New(source, d, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestEpoch_Counts(t *testing.T) {
	for _, n := range []int{1, 3, 4, 5, 8, 9, 30} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				loader := open(t, archive(t, n, -1), imageloader.Options{BatchSize: 4})
				p := start(t, loader, d, Options{})
				stream := cgotorch.DefaultStream(d)
				for epoch := range 3 {
					seen := 0
					for batch, err := range p.Epoch(context.Background()) {
						if err != nil {
							t.Fatal(err)
						}
						if batch.Index != seen/4 || batch.Epoch != epoch {
							t.Errorf("%v, want batch %d of epoch %d", batch, seen/4, epoch)
						}
						err := stream.Do(func(x *cgotorch.Exec) error {
							images, labels := batch.Use(x)
							checkBatch(t, x, batch, images, labels, seen)
							return nil
						})
						if err != nil {
							t.Fatal(err)
						}
						seen += batch.N
					}
					if seen != n {
						t.Errorf("epoch %d: %d images, want %d", epoch, seen, n)
					}
				}
				if s := p.Stats(); s.Samples != 3*n || s.Bytes != int64(3*n*(side*side*3+8+1)) {
					t.Errorf("Stats() = %+v for %d samples", s, 3*n)
				}
			})
		})
	}
}

// checkBatch compares a batch in the archive's order, the first image being number first, with the pixels that were written.
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
					want := (float64(pixel(first+i, px, y, c))/255 - imageNetMean[c]) / imageNetStd[c]
					if got := float64(values[((i*3+c)*side+y)*side+px]); math.Abs(got-want) > 1e-5 {
						t.Fatalf("image %d, channel %d, row %d, column %d is %v, want %v", first+i, c, y, px, got, want)
					}
				}
			}
		}
	}
}

func TestEpoch_FlipIsLeftToRight(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 4, -1), imageloader.Options{BatchSize: 4, HorizontalFlip: 1})
		p := start(t, loader, d, Options{Mean: []float64{0}, Std: []float64{1}})
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images, _ := batch.Use(x)
				values := cgotorch.ToSlice[float32](x, images)
				for px := range side {
					want := float64(pixel(0, side-1-px, 0, 0)) / 255
					if got := float64(values[px]); math.Abs(got-want) > 1e-6 {
						t.Errorf("column %d is %v, want %v", px, got, want)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestOptions_DTypeAndOrder(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 2, -1), imageloader.Options{BatchSize: 2})
		for _, o := range []Options{{DType: cgotorch.BFloat16}, {DType: cgotorch.Float64, Contiguous: true}} {
			p := start(t, loader, d, o)
			for batch, err := range p.Epoch(context.Background()) {
				if err != nil {
					t.Fatal(err)
				}
				err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
					images, _ := batch.Use(x)
					if images.DType() != o.DType {
						t.Errorf("images are %v, want %v", images.DType(), o.DType)
					}
					if got := images.Strides()[1] != 1; got != o.Contiguous {
						t.Errorf("strides %v, Contiguous is %v", images.Strides(), o.Contiguous)
					}
					got := x.Item(x.Select(x.Reshape(x.To(images, cgotorch.Float64), -1), 0, 0))
					want := (float64(pixel(0, 0, 0, 0))/255 - imageNetMean[0]) / imageNetStd[0]
					if math.Abs(got-want) > 0.01 {
						t.Errorf("%v: first pixel %v, want %v", o.DType, got, want)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			p.Close()
		}
	})
}

func TestOptions_Invalid(t *testing.T) {
	checkLeaks(t)
	loader := open(t, archive(t, 2, -1), imageloader.Options{BatchSize: 2})
	for want, o := range map[string]Options{
		"Depth": {Depth: -1},
		"DType": {DType: cgotorch.Int64},
		"Mean":  {Mean: []float64{1, 2}},
		"Std":   {Std: []float64{1, 0, 1}},
	} {
		if _, err := New(loader, cgotorch.CPU, o); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want an error about %s", o, err, want)
		}
	}
	if _, err := (Options{}).complete(5); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "5 channels") {
		t.Errorf("images of 5 channels: %v", err)
	}
	if n, _ := cgotorch.CUDACount(); n == 0 {
		if _, err := New(loader, cgotorch.CUDA(0), Options{}); !errors.Is(err, cgotorch.ErrNoDevice) {
			t.Errorf("New on an absent device: %v", err)
		}
	}
}

func TestEpoch_LeftEarly(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 40, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 3})
		for leaveAt := range 8 {
			for batch, err := range p.Epoch(context.Background()) {
				if err != nil {
					t.Fatal(err)
				}
				if batch.Index == leaveAt {
					break
				}
			}
		}
	})
}

func TestEpoch_Cancelled(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 40, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		why := errors.New("enough")
		var last error
		for batch, err := range p.Epoch(ctx) {
			if last = err; err == nil && batch.Index == 3 {
				cancel(why)
			}
		}
		if !errors.Is(last, why) {
			t.Errorf("the epoch ended with %v, want %v", last, why)
		}
	})
}

func TestEpoch_BadMemberInTheMiddle(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 20, 11), imageloader.Options{BatchSize: 4})
		p := start(t, loader, d, Options{})
		batches := 0
		var last error
		for _, err := range p.Epoch(context.Background()) {
			if last = err; err == nil {
				batches++
			}
		}
		if last == nil || !strings.Contains(last.Error(), "class2/011.png") {
			t.Errorf("the epoch ended with %v, want an error that names class2/011.png", last)
		}
		if batches != 2 {
			t.Errorf("%d batches before the error, want 2", batches)
		}
	})
}

func TestEpoch_TwoAtOnce(t *testing.T) {
	checkLeaks(t)
	loader := open(t, archive(t, 4, -1), imageloader.Options{BatchSize: 2})
	p := start(t, loader, cgotorch.CPU, Options{})
	for range p.Epoch(context.Background()) {
		for _, err := range p.Epoch(context.Background()) {
			if err == nil {
				t.Fatal("a second epoch began inside the first")
			}
		}
	}
}

func TestClose_InLoop(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 40, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		var last error
		for _, err := range p.Epoch(context.Background()) {
			if last = err; err == nil {
				p.Close()
			}
		}
		if !errors.Is(last, ErrClosed) {
			t.Errorf("the epoch ended with %v, want ErrClosed", last)
		}
		for _, err := range p.Epoch(context.Background()) {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("Epoch after Close: %v", err)
			}
		}
		if err := p.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

func TestBatch_UsedAfterItsBody(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 4, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		var kept *Batch
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			kept = batch
		}
		err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
			kept.Use(x)
			t.Error("Use returned")
			return nil
		})
		if !errors.Is(err, ErrBatchOver) || !strings.Contains(err.Error(), "batch 1 of epoch 0") {
			t.Errorf("Use after the body: %v", err)
		}
	})
}

func TestBatch_TwoDosTwoStreams(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 24, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		side, err := cgotorch.NewStream(d, cgotorch.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer side.Close()
		main := cgotorch.DefaultStream(d)
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			for _, stream := range []*cgotorch.Stream{main, side, main} {
				err := stream.Do(func(x *cgotorch.Exec) error {
					images, labels := batch.Use(x)
					checkBatch(t, x, batch, images, labels, 2*batch.Index)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			err := main.Do(func(x *cgotorch.Exec) error {
				other := x.On(side)
				images, labels := batch.Use(other)
				checkBatch(t, other, batch, images, labels, 2*batch.Index)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A Do that outlives the loop body keeps the slot from being refilled.
func TestBatch_DoOutlivesBody(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 12, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		side, err := cgotorch.NewStream(d, cgotorch.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer side.Close()
		begun, goOn, ended := make(chan bool), make(chan bool), make(chan error)
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			if batch.Index == 0 {
				go func() {
					ended <- side.Do(func(x *cgotorch.Exec) error {
						images, labels := batch.Use(x)
						begun <- true
						<-goOn
						checkBatch(t, x, batch, images, labels, 0)
						return nil
					})
				}()
				<-begun
			}
			if batch.Index == 4 {
				break
			}
		}
		p.Close() // while the Do still holds a slot
		close(goOn)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestBatch_KeepNeedsClone(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 3, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			for name, keep := range map[string]func(x *cgotorch.Exec, images, labels *cgotorch.Tensor) *cgotorch.Tensor{
				"images": func(x *cgotorch.Exec, images, _ *cgotorch.Tensor) *cgotorch.Tensor { return x.Keep(images) },
				"a view": func(x *cgotorch.Exec, images, _ *cgotorch.Tensor) *cgotorch.Tensor {
					return x.Keep(x.Select(images, 0, 0))
				},
				"labels": func(x *cgotorch.Exec, _, labels *cgotorch.Tensor) *cgotorch.Tensor { return x.Keep(labels) },
			} {
				err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
					images, labels := batch.Use(x)
					keep(x, images, labels)
					return nil
				})
				if err == nil || !strings.Contains(err.Error(), "Clone") || !strings.Contains(err.Error(), batch.String()) {
					t.Errorf("Keep of %s: %v", name, err)
				}
			}
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images, _ := batch.Use(x)
				return x.Keep(x.Clone(images)).Close()
			})
			if err != nil {
				t.Errorf("Keep of a clone: %v", err)
			}
		}
	})
}

// A backward that needs a batch whose slot has been refilled fails instead of reading the next batch.
func TestBatch_LateBackward(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 12, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		stream := cgotorch.DefaultStream(d)
		var weight, late *cgotorch.Tensor
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			if batch.Index > 0 {
				continue
			}
			err := stream.Do(func(x *cgotorch.Exec) error {
				images, _ := batch.Use(x)
				weight = x.Keep(x.OnesLike(images))
				weight.SetRequiresGrad(true)
				late = x.Keep(x.Sum(x.Mul(weight, images)))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		err := stream.Do(func(x *cgotorch.Exec) error { x.Backward(late); return nil })
		if err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
			t.Errorf("late backward: %v", err)
		}
		weight.Close()
		late.Close()
	})
}

// A failing Do releases its batch like any other.
func TestBatch_FailedDo(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 20, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images, labels := batch.Use(x)
				x.MatMul(images, labels)
				return nil
			})
			if !errors.Is(err, cgotorch.ErrInvalidArgument) {
				t.Fatalf("Do returned %v", err)
			}
			if b := batch.slot; len(b.released) < 1 {
				t.Fatalf("%d events record the end of the use, want 1", len(b.released))
			}
		}
	})
}

func TestFlat(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 40, -1), imageloader.Options{BatchSize: 4, Train: true})
		p := start(t, loader, d, Options{})
		stream := cgotorch.DefaultStream(d)
		var before, after map[string]int
		for epoch := range 100 {
			for batch, err := range p.Epoch(context.Background()) {
				if err != nil {
					t.Fatal(err)
				}
				if err := stream.Do(func(x *cgotorch.Exec) error { batch.Use(x); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			if epoch == 1 {
				before = cgotorch.LiveHandles()
			}
		}
		stream.Synchronize()
		p.Stats()
		if after = cgotorch.LiveHandles(); after["tensor"] != before["tensor"] || after["event"] > before["event"]+8 {
			t.Errorf("handles grew from %v to %v over 980 batches", before, after)
		}
	})
}

// A batch is over with its own body, also while its slot holds a later one.
func TestBatch_UsedInALaterBody(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 20, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		var first *Batch
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = batch
				continue
			}
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error { first.Use(x); return nil })
			if !errors.Is(err, ErrBatchOver) {
				t.Fatalf("batch 0 in the body of batch %d: %v", batch.Index, err)
			}
		}
	})
}

// Use through an Exec that cannot be used counts for nothing.
func TestBatch_UseAfterAFailure(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 20, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{Depth: 1})
		batches := 0
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			batches++
			_ = cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				func() {
					defer func() { recover() }()
					x.Call("aten::no_such_operator")
				}()
				defer func() { recover() }()
				batch.Use(x)
				return nil
			})
		}
		if batches != 10 {
			t.Errorf("%d batches, want 10", batches)
		}
	})
}

// The end of a body is behind all that its Dos enqueued, also by a Do that did not use the batch itself.
func TestBatch_EndOfBodyIsRecorded(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 2, -1), imageloader.Options{BatchSize: 2})
		p := start(t, loader, d, Options{})
		var used *slot
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			used = batch.slot
			if err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error { batch.Use(x); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(used.released); n != 2 {
			t.Errorf("%d events behind the batch, want that of its Do and that of its body", n)
		}
	})
}

func TestEpoch_SequenceUsedTwice(t *testing.T) {
	checkLeaks(t)
	loader := open(t, archive(t, 2, -1), imageloader.Options{BatchSize: 2})
	p := start(t, loader, cgotorch.CPU, Options{})
	batches := p.Epoch(context.Background())
	for range batches {
	}
	for _, err := range batches {
		if !errors.Is(err, ErrBusy) {
			t.Errorf("second loop: %v", err)
		}
	}
}

// The images are torchvision's to the bit: uint8 to float32, divided by 255, less the mean, divided by std, each rounded to float32.
func TestEpoch_NormalisesAsTorchvision(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		loader := open(t, archive(t, 3, -1), imageloader.Options{BatchSize: 3})
		p := start(t, loader, d, Options{})
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				images, _ := batch.Use(x)
				values := cgotorch.ToSlice[float32](x, images)
				for i := range values {
					px, y, c, n := i%side, i/side%side, i/side/side%3, i/side/side/3
					want := float32(pixel(n, px, y, c)) / 255
					want -= float32(imageNetMean[c])
					want /= float32(imageNetStd[c])
					if values[i] != want {
						t.Fatalf("element %d is %v, want %v", i, values[i], want)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
