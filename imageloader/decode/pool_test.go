package decode

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/together"
)

// samples returns the good images three times, each image with a key of its own.
func samples(t testing.TB) []Image {
	var images []Image
	for range 3 {
		for _, name := range names(t, "good") {
			images = append(images, Image{Data: read(t, "good", name), Key: uint64(len(images)) * 7919})
		}
	}
	return images
}

func decodeAll(t testing.TB, pool *Pool, images []Image) ([]byte, []Result) {
	t.Helper()
	height, width, channels := pool.Size()
	dst, results := make([]byte, len(images)*height*width*channels), make([]Result, len(images))
	must.Check(t, pool.Decode(images, dst, results))
	return dst, results
}

// One key gives one crop and one flip. The number of workers, the place in the batch and the
// other images do not change the crop or the flip.
func TestPool_Decode_DependsOnKeyAlone(t *testing.T) {
	images := samples(t)
	options := Options{Workers: 1, Transform: RandomResizedCrop{Height: 11, Width: 13}, HorizontalFlip: 0.5}
	want, wantResults := decodeAll(t, newPool(t, options), images)
	options.Workers = 5
	pool := newPool(t, options)
	got, results := decodeAll(t, pool, images)
	if !bytes.Equal(got, want) || fmt.Sprint(results) != fmt.Sprint(wantResults) {
		t.Error("5 workers give another batch than 1")
	}
	each := len(want) / len(images)
	for i := len(images) - 1; i >= 0; i -= 17 {
		got, results := decodeAll(t, pool, images[i:i+1])
		if !bytes.Equal(got, want[i*each:][:each]) || results[0] != wantResults[i] {
			t.Errorf("image %d alone is not what it is in the batch", i)
		}
	}
	images[0].Key++
	if _, results := decodeAll(t, pool, images[:1]); results[0] == wantResults[0] {
		t.Error("another key gives the same box")
	}
}

func TestPool_Decode_Concurrently(t *testing.T) {
	images := samples(t)
	pool := newPool(t, Options{Workers: 3, Transform: RandomCrop{Height: 30, Width: 30, Padding: 40, PaddingMode: "reflect"}})
	want, _ := decodeAll(t, pool, images)
	together.Run(8, func(int) {
		for range 3 {
			if got, _ := decodeAll(t, pool, images); !bytes.Equal(got, want) {
				t.Error("a batch decoded beside others differs")
			}
		}
	})
}

func TestPool_Decode_RefusesLengths(t *testing.T) {
	pool := newPool(t, Options{Transform: Resize{Height: 4, Width: 5}})
	image := Image{Data: read(t, "good", "rgb.png")}
	for _, test := range []struct {
		dst, results int
		text         string
	}{
		{4*5*3 - 1, 1, "dst has 59 bytes; 1 images of 4 x 5 x 3 need 60"},
		{4*5*3 + 1, 1, "dst has 61 bytes"},
		{4 * 5 * 3, 0, "0 results for 1 images"},
	} {
		err := pool.Decode([]Image{image}, make([]byte, test.dst), make([]Result, test.results))
		if !errors.Is(err, ErrInvalidArgument) || !strings.HasPrefix(err.Error(), "decode: "+test.text) {
			t.Errorf("got %v, want %q", err, test.text)
		}
	}
	if err := pool.Decode(nil, nil, nil); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
}

func TestPool_MaxPixels(t *testing.T) {
	for _, name := range []string{"420.jpg", "rgb.png", "palette.gif", "24.bmp", "raw.tif", "exif6.webp", "exif6.jpg"} {
		data := read(t, "good", name)
		if _, result := decodeOne(t, data, Options{Transform: Resize{Height: 4, Width: 4}, MaxPixels: 450}); result.Err != nil {
			t.Errorf("%s: %v", name, result.Err)
		}
		_, result := decodeOne(t, data, Options{Transform: Resize{Height: 4, Width: 4}, MaxPixels: 449})
		if !errors.Is(result.Err, ErrTooLarge) {
			t.Errorf("%s: got %v, want ErrTooLarge", name, result.Err)
		}
	}
}

func TestPool_Close(t *testing.T) {
	before := threads(t)
	pool := must.Get(NewPool(Options{Workers: 7, Transform: Resize{Height: 4, Width: 4}}))(t)
	if got := threads(t) - before; got != 7 {
		t.Errorf("7 workers are %d threads named decode-*", got)
	}
	images := samples(t)
	var group sync.WaitGroup
	for range 4 {
		group.Add(1)
		go func() {
			defer group.Done()
			for {
				dst, results := make([]byte, len(images)*48), make([]Result, len(images))
				switch err := pool.Decode(images, dst, results); {
				case errors.Is(err, ErrClosed):
					return
				case err != nil:
					t.Error(err)
					return
				}
			}
		}()
	}
	time.Sleep(5 * time.Millisecond)
	for range 2 {
		must.Check(t, pool.Close())
	}
	group.Wait()
	if got := threads(t); got > before {
		t.Errorf("%d threads are left", got-before)
	}
}

func TestPool_Busy(t *testing.T) {
	images := samples(t)
	pool := must.Get(NewPool(Options{Workers: 2, Transform: Resize{Height: 64, Width: 64}}))(t)
	if pool.Workers() != 2 || pool.Busy() != 0 {
		t.Errorf("a new pool of 2: %d workers, busy for %v", pool.Workers(), pool.Busy())
	}
	begin := time.Now()
	decodeAll(t, pool, images)
	first := pool.Busy()
	if first <= 0 || first > 2*time.Since(begin) {
		t.Errorf("busy for %v of %v", first, 2*time.Since(begin))
	}
	time.Sleep(2 * time.Millisecond)
	if got := pool.Busy(); got != first {
		t.Errorf("busy for %v while nothing was decoded", got-first)
	}
	decodeAll(t, pool, images)
	if pool.Busy() <= first {
		t.Error("a second batch took no time")
	}
	pool.Close()
	if pool.Busy() != 0 || pool.Workers() != 2 {
		t.Errorf("closed: %d workers, busy for %v", pool.Workers(), pool.Busy())
	}
}

// The threads of a pool end when the pool is dropped and not closed.
func TestPool_Cleanup(t *testing.T) {
	before := threads(t)
	func() {
		if _, err := NewPool(Options{Workers: 3, Transform: Resize{Height: 4, Width: 4}}); err != nil {
			t.Fatal(err)
		}
	}()
	for range 200 {
		if runtime.GC(); threads(t) == before {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("%d threads are left", threads(t)-before)
}

// threads counts the decode threads of this process.
func threads(t testing.TB) int {
	t.Helper()
	tasks := must.Get(os.ReadDir("/proc/self/task"))(t)
	n := 0
	for _, task := range tasks {
		if name, err := os.ReadFile("/proc/self/task/" + task.Name() + "/comm"); err == nil && strings.HasPrefix(string(name), "decode-") {
			n++
		}
	}
	return n
}

// Resident memory and the number of threads stay the same over many batches of good and bad
// images.
func TestPool_Decode_MemoryIsFlat(t *testing.T) {
	images := samples(t)
	for _, name := range names(t, "bad") {
		images = append(images, Image{Data: read(t, "bad", name)})
	}
	pool := newPool(t, Options{Workers: 2, Transform: RandomResizedCrop{Height: 32, Width: 32}})
	dst, results := make([]byte, len(images)*32*32*3), make([]Result, len(images))
	run := func(batches int) {
		for range batches {
			must.Do(t, pool.Decode(images, dst, results))
		}
		runtime.GC()
	}
	run(30)
	before, count := leaktest.Used(t).Resident, threads(t)
	run(100)
	if grown := leaktest.Used(t).Resident - before; grown > 8<<20 {
		t.Errorf("resident memory grew by %d KB", grown>>10)
	}
	if got := threads(t); got != count {
		t.Errorf("%d threads became %d", count, got)
	}
}

// When the images that Go decodes need more than their memory, the batch is decoded in parts. The
// result does not change.
func TestPool_Decode_ForeignInParts(t *testing.T) {
	data := read(t, "good", "palette.gif")
	images := make([]Image, 9)
	for i := range images {
		images[i] = Image{Data: data, Key: uint64(i)}
	}
	images[4].Data = read(t, "good", "rgb.png")
	pool := newPool(t, Options{Transform: Resize{Height: 6, Width: 6}})
	want, _ := decodeAll(t, pool, images)
	pool.memory = newMemory(25 * 18 * (3*3 + 2*2)) // room for three images, two of which are being decoded
	_, end, taken := pool.decodeForeign(images, 0)
	if pool.memory.give(taken); end != 3 || taken != pool.memory.limit {
		t.Errorf("the first part has %d images in %d bytes, want 3 in %d", end, taken, pool.memory.limit)
	}
	if got, _ := decodeAll(t, pool, images); !bytes.Equal(got, want) {
		t.Error("the batch in parts differs")
	}
	pool.memory = newMemory(1) // less than one image, so one image at a time
	if got, _ := decodeAll(t, pool, images); !bytes.Equal(got, want) {
		t.Error("the batch one by one differs")
	}
}

// Decode allocates a few slices for a batch and nothing for each image. The slices grow with the
// batch.
func TestPool_Decode_Allocations(t *testing.T) {
	data := read(t, "good", "420.jpg")
	pool := newPool(t, Options{Workers: 2, Transform: RandomCrop{Height: 18, Width: 25, Padding: 4}})
	allocations := func(n int) float64 {
		images, dst, results := make([]Image, n), make([]byte, n*18*25*3), make([]Result, n)
		for i := range images {
			images[i] = Image{Data: data, Key: uint64(i)}
		}
		return testing.AllocsPerRun(10, func() {
			must.Do(t, pool.Decode(images, dst, results))
		})
	}
	if few, many := allocations(8), allocations(256); many > few+16 {
		t.Errorf("%v allocations for 8 images, %v for 256", few, many)
	} else {
		t.Logf("%v for 8 images, %v for 256", few, many)
	}
}

func TestPool_DecodeFiles(t *testing.T) {
	images := samples(t)[:3]
	for i := range images {
		images[i].Key = uint64(i)
	}
	pool := newPool(t, Options{Transform: Resize{Height: 4, Width: 5}})
	want, _ := decodeAll(t, pool, images)
	files, got := [][]byte{images[0].Data, images[1].Data, images[2].Data}, make([]byte, len(want))
	if err := pool.DecodeFiles(files, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, or other pixels than those of Decode", err)
	}
	files[1] = []byte("no picture")
	if err := pool.DecodeFiles(files, got); !errors.Is(err, ErrNotAnImage) || !strings.Contains(err.Error(), "file 1 of 3") {
		t.Errorf("a file that is no picture: %v", err)
	}
}
