package main

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// noise returns n images of random pixels. The class of image i is i modulo 10. The pixels have
// `levels` different values, and images of a higher class are brighter. With 256 levels all
// classes are alike.
func noise(t *testing.T, d cgotorch.Device, n, levels int) (*pictures, []uint8) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	pixels, labels := make([]uint8, n*side*side*3), make([]int64, n)
	for i := range pixels {
		class := i / (side * side * 3) % classCount
		pixels[i] = uint8(random.IntN(levels) + class*(256-levels)/(classCount-1))
	}
	for i := range labels {
		labels[i] = int64(i % classCount)
	}
	p := &pictures{n: n}
	err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
		p.pixels = x.Keep(cgotorch.FromSlice(x, pixels, int64(n), side, side, 3))
		p.labels = x.Keep(cgotorch.FromSlice(x, labels))
		p.ready = x.Record()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.close() })
	return p, pixels
}

// beyond returns the pixel of a row of `side` pixels that lies at `at`, with reflection at the
// border pixels.
func beyond(at int) int {
	period := 2 * (side - 1)
	at = ((at % period) + period) % period
	return min(at, period-at)
}

// A batch has the selected images, shifted with reflection, then mirrored, then normalised.
func TestViews_Batch(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		p, pixels := noise(t, d, 7, 256)
		indices := []int64{3, 0, 6, 3, 5}
		shifts := []int64{2, 0, 4, 1, 3, 2, 4, 0, 3, 1} // rows of all images, then columns
		flips := []bool{false, true, false, true, true}
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			v := newViews(x, cgotorch.Float32)
			defer v.close()
			p.use(x)
			batch := v.batch(x, p, cgotorch.FromSlice(x, indices), cgotorch.FromSlice(x, shifts), cgotorch.FromSlice(x, flips))
			if !slices.Equal(batch.Strides(), []int64{3 * side * side, 1, 3 * side, 3}) {
				t.Errorf("the strides are %v, want those of channels last", batch.Strides())
			}
			got := cgotorch.ToSlice[float32](x, batch)
			n := len(indices)
			for i := range got {
				column, row, channel, image := i%side, i/side%side, i/side/side%3, i/side/side/3
				if flips[image] {
					column = side - 1 - column
				}
				row = beyond(row + int(shifts[image]) - reach)
				column = beyond(column + int(shifts[n+image]) - reach)
				pixel := pixels[((int(indices[image])*side+row)*side+column)*3+channel]
				want := (float32(pixel)/255 - float32(mean[channel])) / float32(deviation[channel])
				if got[i]-want > 1e-6 || want-got[i] > 1e-6 {
					t.Fatalf("image %d, channel %d: got %v, want %v", image, channel, got[i], want)
				}
			}
		})
	})
}

// Random shifts are all of -reach to reach, and equal seeds give equal shifts.
func TestRandomShifts(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.Do(t, d, func(x *cgotorch.Exec) error {
			draw := func(seed uint64) []int64 {
				if err := cgotorch.Seed(seed); err != nil {
					t.Fatal(err)
				}
				return cgotorch.ToSlice[int64](x, randomShifts(x, 500))
			}
			first := draw(5)
			var counts [2*reach + 1]int
			for _, s := range first {
				counts[s]++
			}
			if slices.Min(counts[:]) < 150 || len(first) != 1000 {
				t.Errorf("counts of the %d shifts are %v, want about 200 each", len(first), counts)
			}
			if !slices.Equal(first, draw(5)) || slices.Equal(first, draw(6)) {
				t.Error("equal seeds must give equal shifts, and others other shifts")
			}
			middle := cgotorch.ToSlice[int64](x, equalShifts(x, 2, 0))
			if !slices.Equal(middle, []int64{reach, reach, reach, reach}) {
				t.Errorf("no shift is %v, want %d", middle, reach)
			}
			return nil
		})
	})
}

func TestViewsOf_Weights(t *testing.T) {
	for level, views := range []int{1, 2, 6} {
		sum := 0.0
		for _, v := range viewsOf(level) {
			sum += v.weight
		}
		if sum != 1 || len(viewsOf(level)) != views {
			t.Errorf("-tta %d: %d views whose weights sum to %v, want %d and 1", level, len(viewsOf(level)), sum, views)
		}
	}
}
