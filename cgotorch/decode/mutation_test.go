package decode

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// damaged changes a copy of data: bits, bytes, runs, its length.
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

// Damaged files are errors or pictures; never a crash, a hang or another kind of error.
func TestPool_Decode_Damaged(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pool := newPool(t, Options{Workers: 2, Transform: RandomResizedCrop{Height: 8, Width: 8}, MaxPixels: 1 << 20})
	for range 12 {
		var images []Image
		for _, name := range names(t, "good") {
			images = append(images, Image{damaged(random, read(t, "good", name)), random.Uint64()})
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

func FuzzPool_Decode(f *testing.F) {
	for _, folder := range []string{"good", "bad"} {
		for _, name := range names(f, folder) {
			f.Add(read(f, folder, name), uint64(0))
		}
	}
	pool := newPool(f, Options{Workers: 1, Transform: RandomResizedCrop{Height: 8, Width: 8}, MaxPixels: 1 << 20})
	f.Fuzz(func(t *testing.T, data []byte, key uint64) {
		dst, results := make([]byte, 8*8*3), make([]Result, 1)
		if err := pool.Decode([]Image{{data, key}}, dst, results); err != nil {
			t.Fatal(err)
		}
		if errors.Is(results[0].Err, ErrInternal) {
			t.Fatal(results[0].Err)
		}
		if info, err := Probe(data); err == nil && (info.Width < 1 || info.Height < 1 || info.Format == Unknown) {
			t.Fatalf("%+v", info)
		}
	})
}
