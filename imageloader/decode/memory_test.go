package decode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/together"
)

// progressive returns a progressive CMYK JPEG of one colour, with all components at full size. No
// other kind of image takes more memory for its size. All its coefficients are 0. In the file a
// block of coefficients takes one bit, or less.
func progressive(width, height int) []byte {
	var out bytes.Buffer
	segment := func(marker byte, body ...byte) {
		out.Write([]byte{0xff, marker})
		binary.Write(&out, binary.BigEndian, uint16(len(body)+2))
		out.Write(body)
	}
	oneCode := func(class, symbol byte) {
		segment(0xc4, append([]byte{class, 1}, append(make([]byte, 15), symbol)...)...)
	}
	blocks := (width + 7) / 8 * ((height + 7) / 8)
	zeros := func(bits int) { out.Write(make([]byte, (bits+7)/8)) }

	const components, allBlocks = 4, 1 << 14
	out.Write([]byte{0xff, 0xd8})
	segment(0xdb, append([]byte{0}, bytes.Repeat([]byte{1}, 64)...)...)
	frame := []byte{8, byte(height >> 8), byte(height), byte(width >> 8), byte(width), components}
	scan := []byte{components}
	for c := range byte(components) {
		frame, scan = append(frame, c, 0x11, 0), append(scan, c, 0)
	}
	segment(0xc2, frame...)
	oneCode(0x00, 0)                        // the code for a difference of 0
	segment(0xda, append(scan, 0, 0, 0)...) // the first coefficient of all components
	zeros(components * blocks)
	oneCode(0x10, 0xe0) // this code says that 2^14 blocks or more have no coefficients. The next 14 bits say how many more
	for c := range byte(components) {
		segment(0xda, 1, c, 0, 1, 63, 0) // the other coefficients
		zeros(15 * ((blocks + allBlocks - 1) / allBlocks))
	}
	out.Write([]byte{0xff, 0xd9})
	return out.Bytes()
}

// peak decodes the images and returns the bytes that became resident during the decoding.
func peak(t *testing.T, pool *Pool, images []Image) int {
	t.Helper()
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		t.Skipf("the system does not say what was resident: %v", err)
	}
	before := leaktest.Used(t).Resident
	_, results := decodeAll(t, pool, images)
	took := leaktest.Used(t).Peak - before
	for _, result := range results {
		if result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	return took
}

// Each of three images takes more than half of the bound of a small pool. The small pool decodes
// them one after another, within its bound. A pool with memory for all three decodes them at the
// same time.
func TestPool_MaxMemory_HoldsForLargeImages(t *testing.T) {
	const width, height = 3600, 3600
	data := progressive(width, height)
	images := []Image{{Data: data}, {Data: data}, {Data: data}}
	options := Options{Workers: 3, Transform: Resize{Height: 8, Width: 8}, NoShrink: true, MaxPixels: width * height, Memory: 1}
	little := newPool(t, options)
	options.Memory = 1 << 40
	enough := newPool(t, options)
	took, tookAll := peak(t, little, images), peak(t, enough, images)
	for range 20 { // on a busy machine the three threads may run one after another
		if tookAll >= little.MaxMemory() {
			break
		}
		tookAll = max(tookAll, peak(t, enough, images))
	}
	t.Logf("one at a time %d MB of %d, all at a time %d MB of %d", took/1e6, little.MaxMemory()/1e6, tookAll/1e6, enough.MaxMemory()/1e6)
	if took > little.MaxMemory() || took < 10*width*height {
		t.Errorf("decoding took %d MB, of at most %d", took/1e6, little.MaxMemory()/1e6)
	}
	if tookAll > enough.MaxMemory() || tookAll < little.MaxMemory() {
		t.Errorf("decoding took %d MB, of at most %d; with little memory it would be %d at most", tookAll/1e6, enough.MaxMemory()/1e6,
			little.MaxMemory()/1e6)
	}
}

// The bound holds after large images too, because the threads give their memory back.
func TestPool_Decode_GivesLargeMemoryBack(t *testing.T) {
	pool := newPool(t, Options{Workers: 4, Transform: Resize{Height: 8, Width: 8}, NoShrink: true})
	debug.FreeOSMemory()
	before := leaktest.Used(t).Resident
	data := progressive(1900, 1900)
	decodeAll(t, pool, []Image{{Data: data}, {Data: data}, {Data: data}, {Data: data}, {Data: data[:len(data)-2]}, {Data: data[:len(data)/2]}})
	if kept := leaktest.Used(t).Resident - before; kept > 4*(18<<20) {
		t.Errorf("%d MB are left", kept/1e6)
	}
}

// Close waits for images that wait for memory. Images that are refused give their memory back.
func TestPool_Close_WhileImagesWait(t *testing.T) {
	before := threads(t)
	pool := must.Get(NewPool(Options{Workers: 3, Transform: Resize{Height: 4, Width: 4}, NoShrink: true, Memory: 1}))(t)
	good := progressive(1500, 1500)
	images := []Image{{Data: good}, {Data: good[:len(good)/2]}, {Data: good}, {Data: read(t, "good", "420.jpg")}, {Data: good[:len(good)-2]}, {Data: good}}
	var group sync.WaitGroup
	var done atomic.Int32
	for range 3 {
		group.Add(1)
		go func() {
			defer group.Done()
			dst, results := make([]byte, len(images)*48), make([]Result, len(images))
			if err := pool.Decode(images, dst, results); errors.Is(err, ErrClosed) {
				return
			} else if err != nil {
				t.Error(err)
			}
			done.Add(1)
			for i, result := range results {
				if refused := i == 1 || i == 4; (result.Err != nil) != refused {
					t.Errorf("image %d: %v", i, result.Err)
				}
			}
		}()
	}
	for pool.Busy() == 0 { // until one image is done. The other two threads then wait or decode
		time.Sleep(time.Millisecond)
	}
	must.Check(t, pool.Close())
	group.Wait()
	if done.Load() == 0 {
		t.Error("no batch was being decoded")
	}
	for end := time.Now().Add(5 * time.Second); threads(t) > before; { // a thread that has ended stays listed for a moment, also one of an earlier pool
		if time.Now().After(end) {
			t.Fatalf("%d threads are left", threads(t)-before)
		}
	}
}

func TestPool_MaxMemory(t *testing.T) {
	of := func(options Options) int {
		options.Transform = Resize{Height: 224, Width: 224}
		return newPool(t, options).MaxMemory()
	}
	const worker = 18 << 20
	large := of(Options{Workers: 1, Memory: 1}) - worker // the need of an image of 100 million pixels
	if large < 1_100_000_000 || large > 1_180_000_000 {
		t.Errorf("the largest image takes %d", large)
	}
	for _, test := range []struct {
		options Options
		want    int
	}{
		{Options{Workers: 8}, 8*worker + large},
		{Options{Workers: 8, Memory: 2 * large}, 8*worker + 2*large},
		{Options{Workers: 4, MaxPixels: 1_000_000}, 4*worker + 4*(of(Options{Workers: 1, MaxPixels: 1_000_000})-worker)},
		{Options{Workers: 64, MaxPixels: 1_000_000}, 64*worker + 512<<20},
	} {
		if got := of(test.options); got != test.want {
			t.Errorf("%+v: got %d, want %d", test.options, got, test.want)
		}
	}
	if _, err := NewPool(Options{Transform: Resize{Height: 4, Width: 4}, Memory: -1}); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("Memory -1: %v", err)
	}
}

func TestMemory(t *testing.T) {
	m := newMemory(100)
	waiting := func(n int) {
		for {
			m.mu.Lock()
			got := m.asked - m.served
			m.mu.Unlock()
			if got == n {
				return
			}
			runtime.Gosched()
		}
	}
	order := make(chan int)
	ask := func(bytes int) {
		go func() {
			m.take(bytes)
			order <- bytes
		}()
	}
	m.take(60)
	m.take(40)
	ask(500) // more than the limit, so it waits until nothing is taken
	waiting(1)
	ask(1) // waits for the take of 500, though 1 byte would be free
	waiting(2)
	m.give(60)
	waiting(2)
	m.give(40)
	if got := <-order; got != 500 {
		t.Errorf("%d came first", got)
	}
	waiting(1)
	m.give(500)
	if got := <-order; got != 1 {
		t.Errorf("%d came second", got)
	}
}

// Images that Go decodes wait for each other when each needs all the memory. No call waits for
// ever.
func TestPool_Decode_ForeignWaits(t *testing.T) {
	var images []Image
	for _, name := range []string{"24.bmp", "lzw.tif", "420.jpg", "lossy.webp", "palette.gif", "rgb.png"} {
		images = append(images, Image{Data: read(t, "good", name)}, Image{Data: read(t, "bad", "half.bmp")})
	}
	want, _ := decodeAll(t, newPool(t, Options{Transform: Resize{Height: 6, Width: 6}}), images)
	pool := newPool(t, Options{Transform: Resize{Height: 6, Width: 6}, Memory: 1})
	together.Run(8, func(int) {
		for range 5 {
			if got, _ := decodeAll(t, pool, images); !bytes.Equal(got, want) {
				t.Error("the batch differs")
			}
		}
	})
	if pool.memory.taken != 0 || pool.memory.asked == 0 {
		t.Errorf("%d bytes are still taken, of %d shares", pool.memory.taken, pool.memory.asked)
	}
}
