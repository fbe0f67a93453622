package decode

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// damaged returns a copy of data with changed bits, bytes, runs of bytes or length.
func damaged(random *rand.Rand, data []byte) []byte {
	out := slices.Clone(data)
	for range 1 + random.IntN(4) {
		if len(out) == 0 {
			return out
		}
		at := random.IntN(len(out))
		switch random.IntN(6) {
		case 0:
			out[at] ^= 1 << random.IntN(8)
		case 1:
			out[at] = byte(random.Uint32())
		case 2:
			out[at] = 0xFF
		case 3:
			out = out[:at]
		case 4:
			out = slices.Insert(out, at, out[at:min(at+random.IntN(40), len(out))]...)
		case 5:
			out = slices.Delete(out, at, min(at+random.IntN(20), len(out)))
		}
	}
	return out
}

// A damaged file gives an image error or a picture. It never gives a crash, a hang or another
// kind of error.
func TestPool_Decode_Damaged(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pool := newPool(t, Options{Workers: 2, Transform: RandomResizedCrop{Height: 8, Width: 8}, MaxPixels: 1 << 20})
	for range 12 {
		var images []Image
		for _, name := range names(t, "good") {
			images = append(images, Image{Data: damaged(random, read(t, "good", name)), Key: random.Uint64()})
		}
		_, results := decodeAll(t, pool, images)
		for i, result := range results {
			if refusal := new(Error); result.Err != nil && (!errors.As(result.Err, &refusal) || errors.Is(result.Err, ErrInternal)) {
				t.Errorf("image %d: %T %v", i, result.Err, result.Err)
			}
			Probe(images[i].Data)
		}
	}
}

// Any bytes with any key and any transform give a picture or an error of the image. They never
// give another kind of error.
func FuzzImage(f *testing.F) {
	for _, folder := range []string{"good", "bad"} {
		for i, name := range names(f, folder) {
			f.Add(read(f, folder, name), uint64(i))
		}
	}
	var pools []*Pool
	for i, transform := range []Transform{
		RandomResizedCrop{Height: 8, Width: 8}, RandomResizedCrop{Height: 3, Width: 20, MinScale: 0.001, MaxScale: 0.01},
		RandomCrop{Height: 24, Width: 40, Padding: 13, PaddingMode: "reflect"}, RandomCrop{Height: 5, Width: 3},
		ResizeCenterCrop{Resize: 9, Height: 7, Width: 13}, Resize{Height: 2, Width: 2}, Resize{Height: 40, Width: 60},
	} {
		pools = append(pools, newPool(f, Options{Workers: 1, Transform: transform, Channels: 1 + 2*(i%2), MaxPixels: 1 << 18, NoShrink: i%3 == 1}))
	}
	f.Fuzz(func(t *testing.T, data []byte, key uint64) {
		pool := pools[key%uint64(len(pools))]
		height, width, channels := pool.Size()
		dst, results := make([]byte, height*width*channels), make([]Result, 1)
		must.Do(t, pool.Decode([]Image{{Data: data, Key: key}}, dst, results))
		if err := results[0].Err; errors.Is(err, ErrInternal) || errors.Is(err, ErrOutOfMemory) || errors.Is(err, ErrInvalidArgument) {
			t.Fatal(err)
		}
		if info, err := Probe(data); err == nil && (info.Width < 1 || info.Height < 1 || info.Format == 0) {
			t.Fatalf("%+v", info)
		}
	})
}
