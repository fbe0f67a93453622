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
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/internal/library"
	"github.com/streamtorch/streamtorch/internal/replace"
)

// Note [Search of sizes]
//
// A token's product reads its weights through a ring of boxes in shared memory. The best number of
// boxes, and of those on their way at once, depends on the card, on the widths, and on the kernels
// before and behind. Sizes that are near each other differ by up to 10 %. So Open measures whole
// tokens: it changes the sizes of one kind of product at a time, and keeps those that are faster.
// The best sizes of one kind depend on those of the others: a kernel begins early only where its
// ring has room beside that of the kernel before. So there are two starts, and a second pass.
//
// Sizes do not change the order of a sum, so answers have the same bits with all of them. They are
// stored in the user's cache folder, for the model's shapes, the card, and the source of the core.

// ring has the number of boxes, and the largest number of them on their way. {0, 0} is the
// operator's own choice.
type ring [2]int64

// sizes returns the argument of an operator.
func (r ring) sizes() []int64 {
	if r == (ring{}) {
		return []int64{}
	}
	return r[:]
}

// sizes has the ring of each kind of product.
type sizes map[string]ring

// kindsOfProducts are in the order of their bytes, in most models.
var kindsOfProducts = []string{"gate and up", "down", "experts' gate and up", "experts' down", "head", "queries, keys and values", "output"}

// rings are the sizes that a search tries.
var rings = []ring{{3, 2}, {4, 2}, {5, 2}, {6, 2}, {8, 2}, {4, 3}, {6, 3}, {8, 3}, {12, 3}, {8, 4}, {12, 4}, {16, 4}, {6, 5}, {8, 6}, {12, 6}, {16, 6}}

const (
	leastBytes = 256 << 20        // of weights, for a search: smaller models are bound by the host
	leastGain  = 0.002            // of the time, for a change: equal measurements differ by less
	leastTimed = 5                // milliseconds of tokens for each of the sizes: short tokens have more noise
	mostSearch = 30 * time.Second // then the search ends with the best so far, which is stored

	timedTokens = 5 // that run together, the first two to capture them
)

// errNoGraph says that a token cannot be timed, because it is not captured.
var errNoGraph = errors.New("no graph")

// search returns the fastest sizes that it finds for these kinds of products, and the milliseconds
// of a token with the operators' own choice and with these sizes.
func search(kinds []string, measure func(sizes) (float64, error), deadline time.Time) (best sizes, before, after float64, err error) {
	// Short kernels have small rings, which lie beside those before and behind.
	second := sizes{"gate and up": {12, 4}, "down": {8, 2}, "experts' gate and up": {4, 3}, "experts' down": {6, 5}, "head": {12, 4}, "queries, keys and values": {5, 2}, "output": {6, 2}}
	maps.DeleteFunc(second, func(kind string, _ ring) bool { return !slices.Contains(kinds, kind) })
	before, after = math.Inf(1), math.Inf(1)
	for _, at := range []sizes{{}, second} {
		t, err := measure(at)
		if err == nil {
			at, t, err = descend(kinds, measure, at, t, deadline)
		}
		if err != nil {
			return nil, 0, 0, err
		}
		if t < after {
			best, after = at, t
		}
	}
	if best, _, err = descend(kinds, measure, best, after, deadline); err != nil {
		return nil, 0, 0, err
	}
	after = math.Inf(1) // the shortest of many times is partly luck: both are measured again
	for range 2 {
		for _, one := range []struct {
			s  sizes
			to *float64
		}{{sizes{}, &before}, {best, &after}} {
			t, err := measure(one.s)
			if err != nil {
				return nil, 0, 0, err
			}
			*one.to = min(*one.to, t)
		}
	}
	if after >= before {
		return sizes{}, before, before, nil
	}
	return best, before, after, nil
}

// descend changes the sizes of one kind at a time, from those that take the time `now`. It keeps
// what is faster, and returns these sizes and their time.
func descend(kinds []string, measure func(sizes) (float64, error), at sizes, now float64, deadline time.Time) (sizes, float64, error) {
	for _, kind := range kinds {
		for _, r := range rings {
			if r == at[kind] {
				continue
			}
			if time.Now().After(deadline) {
				return at, now, nil
			}
			next := maps.Clone(at)
			next[kind] = r
			t, err := measure(next)
			if err != nil {
				return nil, 0, err
			}
			if t < now*(1-leastGain) {
				at, now = next, t
			}
		}
	}
	return at, now, nil
}

// setRings gives the products their sizes. It returns the kinds of which there are products.
func (d *decoder) setRings(s sizes) []string {
	has := map[string]bool{}
	of := func(l *linear, kind string) {
		if l != nil {
			l.ring, has[kind] = s[kind], true
		}
	}
	for _, l := range d.layers {
		of(l.gateUp, "gate and up")
		of(l.down, "down")
		of(l.qkv, "queries, keys and values")
		of(l.out, "output")
		if e := l.experts; e != nil {
			e.gateUpRing, e.downRing = s["experts' gate and up"], s["experts' down"]
			has["experts' gate and up"], has["experts' down"] = true, true
		}
	}
	of(d.head, "head")
	return slices.DeleteFunc(slices.Clone(kindsOfProducts), func(kind string) bool { return !has[kind] })
}

// storedSizes is the content of a file of sizes.
type storedSizes struct {
	Model   string  // the shapes of its products
	Device  string  // the name of the card
	Library string  // the hash of the core's source
	Before  float64 // milliseconds of a token with the operators' own choice
	After   float64 // and with Rings
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

// read reads the sizes of the same model, device and library. It reports whether they are there and
// in bounds.
func (s *storedSizes) read() bool {
	info, err := os.Stat(s.file())
	if err != nil || !info.Mode().IsRegular() || info.Size() > 1<<16 {
		return false
	}
	data, err := os.ReadFile(s.file())
	if err != nil {
		return false
	}
	var found storedSizes
	if json.Unmarshal(data, &found) != nil || found.Model != s.Model || found.Device != s.Device || found.Library != s.Library || !(found.After > 0) {
		return false
	}
	for kind, r := range found.Rings {
		if !slices.Contains(kindsOfProducts, kind) || r[0] < 1 || r[1] < 1 || max(r[0], r[1]) > 1<<15 {
			return false
		}
	}
	*s = found
	return true
}

// write stores the sizes for later processes. If the file cannot be written, those search again.
func (s *storedSizes) write() {
	path := s.file()
	if path == "" || os.MkdirAll(filepath.Dir(path), 0o700) != nil {
		return
	}
	if data, err := json.MarshalIndent(s, "", "  "); err == nil {
		_ = replace.Write(path, append(data, '\n'))
	}
}

// shapes tells the shapes of a token's products, and what stands between them.
func (m *Model) shapes() string {
	c := m.d.c
	return fmt.Sprintf("%d layers, %d of %d experts of %d, in slots %v, width %d, inner %d, %d heads of %d, %d of keys, vocabulary %d, %s, %v, weights %q, norms behind products %v",
		len(c.layers), c.experts.top, c.experts.count, c.experts.inner, m.d.table != nil, c.width, c.inner, c.heads, c.head, c.keyHeads, c.vocab, c.activation, m.d.dtype, m.quantize, m.d.layers[0].afterMix != nil)
}

// choose gives the products of a token their sizes: those that are stored, or else those that a
// search finds. It waits for the device. The weights must have values. It does nothing for models
// that are small, for those without the ring, and for those with few slots for experts.
func (m *Model) choose() error {
	weights, _ := m.Memory()
	if !m.d.ringed || weights < leastBytes {
		return nil
	}
	if slots := m.d.slots(); slots > 0 && slots < timedTokens*m.d.c.experts.top {
		return nil // the slots are too few for the experts of the timed tokens, so only copies would be timed
	}
	s := &storedSizes{Model: m.shapes(), Device: ct.DeviceName(inside.Core.Device(m.stream.Device())), Library: library.Key()}
	if !s.read() {
		start := time.Now()
		var err error
		s.Rings, s.Before, s.After, err = search(m.d.setRings(nil), m.timed, start.Add(mostSearch))
		captured := !errors.Is(err, errNoGraph)
		if !captured {
			err = nil
		}
		if err = errors.Join(err, m.restart()); err != nil {
			return err
		}
		if m.searched = time.Since(start); captured {
			s.write()
		}
	}
	m.d.setRings(s.Rings)
	return nil
}

// timedBlocks returns how many blocks of each table a token that is timed sees.
func (m *Model) timedBlocks() int {
	blocks := 32
	for _, s := range m.lane.spans {
		blocks = min(blocks, s.width)
	}
	return blocks
}

// timedPages gives timed tokens page 1 for the last block of each table, or takes it back. Other
// blocks have page 0. It zeroes both pages. The last block has all keys and values that are
// written. So no two kernels' blocks write the same row, none reads it meanwhile, and tokens are
// equal each time.
func (m *Model) timedPages(x *cgotorch.Exec, given bool) {
	for _, s := range m.lane.spans {
		keys, values := 0, 0
		if given {
			keys, values = 1, 1+m.pages.all+1 // behind all pages of keys
		}
		last := x.Narrow(s.table, 2, m.timedBlocks()-1, 1)
		x.FillInPlace(x.Select(last, 1, 0), keys)
		x.FillInPlace(x.Select(last, 1, 1), values)
	}
	x.FillInPlace(x.Narrow(m.pages.memory, 1, 0, 2), 0)
}

// restart moves the lane to position 0. It zeroes the pages and the counts of experts, and empties
// their slots, which only timed tokens have used.
func (m *Model) restart() error {
	return m.stream.Do(func(x *cgotorch.Exec) error {
		write(x, m.lane.position, []int64{0})
		m.timedPages(x, false)
		if m.table == nil {
			return nil
		}
		m.table.Forget(x)
		for _, l := range m.d.layers {
			if l.experts != nil {
				x.FillInPlace(l.experts.held.Counts, 0)
			}
		}
		return nil
	})
}

// timed returns the milliseconds of a greedy token with these sizes. It waits for the device. It
// writes page 1. It fails with errNoGraph if the token is not captured.
func (m *Model) timed(s sizes) (float64, error) {
	m.d.setRings(s)
	l, shortest := m.lane, math.Inf(1)
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, _ ...*cgotorch.Tensor) []*cgotorch.Tensor {
		x.Tidy(func() *cgotorch.Tensor {
			logits := m.d.token(x, l.tokenPass(x, slices.Repeat([]int{m.timedBlocks()}, len(l.spans))))
			l.sample(x, features{}, logits, l.results.all[0])
			return nil
		})
		return nil
	}, cgotorch.CapturedOptions{WarmUp: 1, InPlace: true})
	defer step.Close()
	for round, sum := 0, 0.; round < 2 || sum < leastTimed; round++ {
		t, err := m.launched(step)
		if err != nil {
			return 0, err
		}
		shortest = min(shortest, t)
		sum += t
	}
	return shortest, nil
}

// launched returns the milliseconds of a token of `step`. It fails with errNoGraph if step has no
// graph.
func (m *Model) launched(step *cgotorch.Captured) (float64, error) {
	const tokens = timedTokens - 2
	var began, ended *cgotorch.Event
	defer func() {
		began.Close()
		ended.Close()
	}()
	err := m.stream.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		write(x, m.lane.token, []int64{0}) // each time the same tokens, so that their experts are in slots
		m.timedPages(x, true)
		write(x, m.lane.position, []int64{int64(m.timedBlocks()*pageTokens - timedTokens - 1)})
		step.Run(x, m.lane.token) // at first it is eager, and the next one captures
		step.Run(x, m.lane.token)
		began = x.RecordTiming()
		for range tokens {
			step.Run(x, m.lane.token)
		}
		ended = x.RecordTiming()
		return nil
	})
	if err == nil {
		err = ended.Synchronize()
	}
	if err == nil && step.Stats().Graphs == 0 {
		err = errNoGraph
	}
	if err != nil {
		return 0, err
	}
	t, err := ended.Elapsed(began)
	return t / tokens, err
}
