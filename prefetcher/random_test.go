package prefetcher

import (
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/internal/filetest"
)

// philox gives the known answers that come with Random123.
func TestPhilox_KnownAnswers(t *testing.T) {
	const ones = 0xffffffff
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{ones, ones, ones, ones}, [2]uint32{ones, ones}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

func TestKey_Draw(t *testing.T) {
	a, b := key(1).draw(0)
	wide, _ := key(1 + 1<<32).draw(0)
	other, _ := key(1).draw(1)
	if a == wide || a == other || a == b {
		t.Errorf("draws %x, %x, %x and %x are not four", a, b, wide, other)
	}
	if got := choice(math.MaxUint64).unit(); got >= 1 {
		t.Errorf("the greatest unit is %v", got)
	}
	if got := choice(math.MaxUint64).below(5); got != 4 {
		t.Errorf("the greatest below 5 is %d", got)
	}
}

// fixtures is the folder of torchvision's results and random numbers. make.py, in that folder,
// writes them.
const fixtures = "../tests/fixtures/augment/"

// spread describes many random numbers that torchvision chose for one value. It holds their mean
// and, for some limits, the share of numbers up to the limit.
type spread struct {
	Mean   float64
	Shares [][2]float64
}

type distribution struct {
	Name          string
	Alpha         float64
	Height, Width int
	Scale, Ratio  [2]float64
	None          float64
	Draws         int
	Values        map[string]spread
}

func distributions(t *testing.T, name string) []distribution {
	t.Helper()
	var all, named []distribution
	filetest.JSON(t, fixtures+"distributions.json", &all)
	for _, d := range all {
		if d.Name == name {
			named = append(named, d)
		}
	}
	if len(named) == 0 {
		t.Fatal("no distribution of ", name)
	}
	return named
}

// check compares the drawn values `got` with torchvision's. It compares the mean. For each limit it
// compares the share of values up to the limit. `theirs` is the number of torchvision's values.
func (s spread) check(t *testing.T, what string, theirs int, got []float64) {
	t.Helper()
	if len(s.Shares) == 0 || len(got) == 0 {
		t.Fatalf("%s: %d shares, %d draws", what, len(s.Shares), len(got))
	}
	var sum, squares float64
	for _, v := range got {
		sum += v
		squares += v * v
	}
	n := float64(len(got))
	noise := 1/n + 1/float64(theirs) // variance of mean - s.Mean, divided by the variance of one number
	mean := sum / n
	if deviation := math.Sqrt((squares/n - mean*mean) * noise); math.Abs(mean-s.Mean) > 4.5*deviation+1e-5 {
		t.Errorf("%s: mean %v, torchvision's %v", what, mean, s.Mean)
	}
	for _, share := range s.Shares {
		count := 0
		for _, v := range got {
			if v <= share[0]+1e-6 {
				count++
			}
		}
		p := share[1]
		if got := float64(count) / n; math.Abs(got-p) > 4.5*math.Sqrt(p*(1-p)*noise)+1e-4 {
			t.Errorf("%s: %v of the draws are at most %v, torchvision's %v", what, got, share[0], p)
		}
	}
}

const keysDrawn = 20_000

// keys yields the keys of many images. The keys follow a regular pattern. The random choices must
// not show that pattern.
func keys(yield func(key) bool) {
	for i := range uint64(keysDrawn) {
		if !yield(key(i * 0x9e3779b97f4a7c15)) {
			return
		}
	}
}
