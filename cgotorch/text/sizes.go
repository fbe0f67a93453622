package text

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/internal/library"
	"github.com/streamtorch/streamtorch/internal/replace"
)

// Note [Search of sizes]
//
// A token's product reads its weights through a ring of boxes in shared memory. How many boxes are
// best, and how many of them on their way at once, depends on the card, on the widths, and on the
// kernels before and behind. Neighbours differ by up to 10 %. So Open measures whole tokens: it
// changes the sizes of one kind of product at a time, and keeps what is faster. It does so from two
// starts, because what is best for one kind depends on the others.
//
// Sizes do not change the order of a sum, so answers have the same bits with all of them. They are
// stored in the user's cache folder, for the model's shapes, the card, and the text of the kernels.

// ring is how the product of a token reads its weights: the number of boxes, and the largest number
// of them on their way.
type ring [2]int64

// sizes are the rings of a token's products, by their kind. Kinds that are not there take what the
// operator chooses.
type sizes map[string]ring

// kindsOfProducts are in the order of their bytes, in most models.
var kindsOfProducts = []string{"gate and up", "down", "head", "queries, keys and values", "output"}

// rings are those that a search tries.
var rings = []ring{{4, 2}, {5, 2}, {6, 2}, {8, 3}, {12, 3}, {8, 4}, {12, 4}, {16, 4}, {12, 6}}

const (
	leastBytes = 256 << 20        // of weights, for a search: smaller models are bound by the host
	leastGain  = 0.002            // of the time, for a change: the noise is below that
	mostSearch = 20 * time.Second // then the search ends with the best so far
)

// search returns the sizes of the shortest time that it finds, and that time with the operators'
// own choice and with them.
func search(measure func(sizes) (float64, error), deadline time.Time) (best sizes, before, after float64, err error) {
	second := sizes{}
	for _, kind := range kindsOfProducts {
		second[kind] = ring{12, 4}
	}
	after = math.Inf(1)
	for i, at := range []sizes{{}, second} {
		now, err := measure(at)
		if err != nil {
			return nil, 0, 0, err
		}
		if i == 0 {
			before = now
		}
		for _, kind := range kindsOfProducts {
			for _, r := range rings {
				if time.Now().After(deadline) {
					break
				}
				next := maps.Clone(at)
				next[kind] = r
				t, err := measure(next)
				if err != nil {
					return nil, 0, 0, err
				}
				if t < now*(1-leastGain) {
					at, now = next, t
				}
			}
		}
		if now < after {
			best, after = at, now
		}
	}
	return best, before, after, nil
}

// take gives the products their sizes.
func (d *decoder) take(s sizes) {
	of := func(l *linear, kind string) {
		if l == nil {
			return
		}
		l.ring = nil
		if r, ok := s[kind]; ok {
			l.ring = r[:]
		}
	}
	for _, l := range d.layers {
		of(l.gateUp, "gate and up")
		of(l.down, "down")
		of(l.qkv, "queries, keys and values")
		of(l.out, "output")
	}
	of(d.head, "head")
}

// storedSizes is the content of a file of sizes.
type storedSizes struct {
	Model   string // its shapes
	Device  string
	Library string // of the kernels
	Before  float64
	After   float64 // milliseconds of a token with the operators' own choice, and with Rings
	Rings   sizes
}

// file returns where the sizes lie, or "" if the user has no cache folder.
func (s *storedSizes) file() string {
	root := library.UserRoot()
	if root == "" {
		return ""
	}
	key := sha256.Sum256([]byte(s.Model + "\n" + s.Device + "\n" + s.Library))
	return filepath.Join(root, "sizes", fmt.Sprintf("%x.json", key[:16]))
}

// read reads the sizes of the same model, device and library, and reports whether they are there
// and can be right.
func (s *storedSizes) read() bool {
	data, err := os.ReadFile(s.file())
	if err != nil {
		return false
	}
	var found storedSizes
	if json.Unmarshal(data, &found) != nil || found.Model != s.Model || found.Device != s.Device || found.Library != s.Library {
		return false
	}
	for _, r := range found.Rings {
		if r[0] < 1 || r[1] < 1 || max(r[0], r[1]) > 1<<15 {
			return false
		}
	}
	*s = found
	return true
}

// write stores the sizes for other processes. If that is not possible, they search too.
func (s *storedSizes) write() {
	path := s.file()
	if path == "" || os.MkdirAll(filepath.Dir(path), 0o700) != nil {
		return
	}
	if data, err := json.MarshalIndent(s, "", "  "); err == nil {
		_ = replace.Write(path, append(data, '\n'))
	}
}

// shapes tells all that the time of a token depends on.
func (m *Model) shapes() string {
	c := m.d.c
	return fmt.Sprintf("%d layers, %d experts, width %d, inner %d, %d heads of %d, %d of keys, vocabulary %d, %s, %v, weights %q, norms behind products %v",
		len(c.layers), c.experts.count, c.width, c.inner, c.heads, c.head, c.keyHeads, c.vocab, c.activation, m.d.dtype, m.quantize, m.d.layers[0].afterMix != nil)
}

// choose gives the products of a token their sizes: those that are stored, or else those that a
// search finds. It waits for the device. The weights must have values.
func (m *Model) choose() error {
	weights, _ := m.Memory()
	var capability int32
	if err := inside.Core.Check("text.Open", ct.DeviceCapability(inside.Core.Device(m.stream.Device()), &capability)); err != nil {
		return err
	}
	if m.d.edge == "" || capability < 90 || weights < leastBytes {
		return nil
	}
	s := &storedSizes{Model: m.shapes(), Device: ct.DeviceName(inside.Core.Device(m.stream.Device())), Library: library.Key()}
	if !s.read() {
		start := time.Now()
		err := m.at(127)
		if err == nil {
			s.Rings, s.Before, s.After, err = search(m.timed, start.Add(mostSearch))
		}
		if err = errors.Join(err, m.at(0)); err != nil {
			return err
		}
		m.searched = time.Since(start)
		s.write()
	}
	m.d.take(s.Rings)
	return nil
}

// at moves the lane to a position, and zeroes page 0.
func (m *Model) at(position int64) error {
	return m.stream.Do(func(x *cgotorch.Exec) error {
		write(x, m.lane.position, []int64{position})
		cgotorch.Check(x.FillInPlace(x.Narrow(m.pages.memory, 1, 0, 1), 0).Close())
		return nil
	})
}

// timed returns the milliseconds of a token with these sizes, sampling left out. It waits for the
// device. All keys and values lie in page 0 meanwhile.
func (m *Model) timed(s sizes) (float64, error) {
	m.d.take(s)
	l, shortest := m.lane, math.Inf(1)
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, _ ...*cgotorch.Tensor) []*cgotorch.Tensor {
		x.Tidy(func() *cgotorch.Tensor {
			blocks := make([]int, len(l.spans))
			for i, span := range l.spans {
				blocks[i] = min(8, span.width)
			}
			m.d.token(x, l.tokenPass(x, blocks))
			return nil
		})
		return nil
	}, cgotorch.CapturedOptions{WarmUp: 1, InPlace: true})
	defer step.Close()
	const tokens = 3
	for round := range 3 {
		var began, ended *cgotorch.Event
		err := m.stream.Do(func(x *cgotorch.Exec) error {
			x = plain(x)
			step.Run(x, l.token) // the first one is eager, and the second one captures
			step.Run(x, l.token)
			began = x.RecordTiming()
			for range tokens {
				step.Run(x, l.token)
			}
			ended = x.RecordTiming()
			return nil
		})
		if err == nil {
			err = ended.Synchronize()
		}
		if err != nil {
			return 0, err
		}
		t, err := ended.Elapsed(began)
		began.Close()
		ended.Close()
		if err != nil {
			return 0, err
		}
		shortest = min(shortest, t/tokens)
		if shortest > 1.5 && round > 0 { // long tokens have less noise
			break
		}
	}
	return shortest, nil
}
