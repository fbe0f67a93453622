package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// switchShape is that of Switch-base-128's decoder, of which switch.py has the same.
type switchShape struct {
	config text.SwitchConfig
	dtype  cgotorch.DType
	source int // tokens of the encoder's result
	length int // of the cache
	tokens int // that count, of a sequence
	warmUp int // before them
}

func (c *config) switchShape(dtype cgotorch.DType) switchShape {
	config := text.SwitchBase128()
	config.NumLayers, config.NumSparseEncoderLayers, config.TieWordEmbeddings = 1, 1, false // the encoder is not run
	s := switchShape{config: config, dtype: dtype, source: 64, length: 128, tokens: 32, warmUp: 8}
	if c.brief {
		s.config.DModel, s.config.DFF, s.config.NumHeads, s.config.NumExperts, s.config.VocabSize, s.tokens, s.warmUp = 64, 128, 1, 8, 100, 4, 2
	}
	return s
}

func (s switchShape) expertBytes() int64 {
	return 2 * int64(s.config.DModel) * int64(s.config.DFF) * int64(s.dtype.Size())
}

// expertStore has random experts, all different: each is a piece of one noise that begins elsewhere.
func (s switchShape) expertStore() (*weights.Store, error) {
	d, f := int64(s.config.DModel), int64(s.config.DFF)
	tensors := []weights.TensorSpec{{Name: "wi.weight", DType: s.dtype, Shape: []int64{f, d}}, {Name: "wo.weight", DType: s.dtype, Shape: []int64{d, f}}}
	var specs []weights.UnitSpec
	for _, name := range slices.Concat(s.config.ExpertNames(true)...) {
		specs = append(specs, weights.UnitSpec{Name: name, Tensors: tensors})
	}
	store, err := weights.NewStore(specs)
	if err != nil {
		return nil, err
	}
	const step = 257
	size := int(s.dtype.Size())
	noise := map[string][]byte{
		"wi.weight": s.noise(int(d*f)+step*len(specs), 1/math.Sqrt(float64(d))),
		"wo.weight": s.noise(int(d*f)+step*len(specs), 1/math.Sqrt(float64(f))),
	}
	var all sync.WaitGroup
	for worker := range runtime.NumCPU() {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := worker; i < len(specs); i += runtime.NumCPU() {
				for name, from := range noise {
					to, _ := store.Bytes(specs[i].Name, name) // they are there
					copy(to, from[i*step*size:])
				}
			}
		}()
	}
	all.Wait()
	return store, nil
}

// noise is n numbers of the dtype.
func (s switchShape) noise(n int, deviation float64) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	data := make([]byte, n*s.dtype.Size())
	for i := range n {
		v := float32(r.NormFloat64() * deviation)
		if s.dtype == cgotorch.BFloat16 {
			*(*cgotorch.BFloat16Bits)(unsafe.Pointer(&data[2*i])) = cgotorch.ToBFloat16(v)
		} else {
			*(*float32)(unsafe.Pointer(&data[4*i])) = v
		}
	}
	return data
}

// switchFigures are those of one sequence, under the names that switch.py has for them.
type switchFigures struct {
	Milliseconds float64 // of a token
	Block        float64 `json:"block_median_milliseconds"` // of a sparse layer's experts, with what they wait for
	Bytes        int64
	HitRate      float64 `json:"hit_rate"`
	PeakBytes    int64   `json:"peak_bytes"`
	IDs          []int64 `json:"ids"`
	Driven       string
}

func (d *decoding) run() (f switchFigures, stats weights.CacheStats, err error) {
	before := weights.CacheStats{}
	var began time.Time
	if err = d.device.ResetPeakMemory(); err != nil {
		return f, stats, err
	}
	f.IDs, err = d.generate(d.runs, func() error {
		if d.units != nil {
			before = d.units.Stats()
		}
		err := d.device.Synchronize()
		began = time.Now()
		return err
	})
	f.Milliseconds = 1e3 * time.Since(began).Seconds() / float64(d.shape.tokens)
	if err != nil {
		return f, stats, err
	}
	if d.units != nil {
		stats = since(d.units.Stats(), before)
		f.Bytes, f.HitRate = stats.Bytes, stats.HitRate()
	}
	memory, err := d.device.Memory()
	if err != nil {
		return f, stats, err
	}
	f.PeakBytes = memory.PeakAllocated - d.base
	_, err = d.generate(d.blocks, func() error { d.blocks.reset(); return nil })
	if err == nil {
		f.Block, err = d.blocks.median()
	}
	return f, stats, err
}

// since is what was counted from one moment to another.
func since(now, before weights.CacheStats) weights.CacheStats {
	now.Hits -= before.Hits
	now.Ahead -= before.Ahead
	now.Misses -= before.Misses
	now.Prefetched -= before.Prefetched
	now.Unused -= before.Unused
	now.Bytes -= before.Bytes
	now.Written -= before.Written
	now.Copy -= before.Copy
	now.Stall -= before.Stall
	now.HostWait -= before.HostWait
	return now
}

// blockTimes measures each Run on the device.
type blockTimes struct {
	text.RoutedExperts
	marks []*cgotorch.Event
}

func (b *blockTimes) Run(x *cgotorch.Exec, layer int, tokens *cgotorch.Tensor) *cgotorch.Tensor {
	b.marks = append(b.marks, x.RecordTiming())
	out := b.RoutedExperts.Run(x, layer, tokens)
	b.marks = append(b.marks, x.RecordTiming())
	return out
}

func (b *blockTimes) reset() {
	for _, e := range b.marks {
		e.Close()
	}
	b.marks = nil
}

func (b *blockTimes) median() (float64, error) {
	defer b.reset()
	var times sample
	for i := 0; i+1 < len(b.marks); i += 2 {
		ms, err := b.marks[i+1].Elapsed(b.marks[i])
		if err != nil {
			return 0, err
		}
		times = append(times, ms)
	}
	return times.median(), nil
}

// copies is the milliseconds of a token's copies alone, one after another.
func (s switchShape) copies(c *config, store *weights.Store) (float64, error) {
	build := func(x *cgotorch.Exec, _ string) (*text.Dense, error) {
		return text.NewExpert(x, s.config, s.dtype), nil
	}
	m, err := weights.NewCache(store, c.device, build, weights.CacheOptions{})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	names := s.config.ExpertNames(true)
	token := 0
	copy := func() error {
		for layer, experts := range names {
			name := experts[(token*37+layer*11)%len(experts)]
			if err := m.Prefetch(context.Background(), name); err != nil {
				return err
			}
			m.Drop(name)
		}
		token++
		return m.Flush(context.Background()) // for the Synchronize of secondsEach
	}
	if _, err := c.secondsEach(s.warmUp, copy); err != nil {
		return 0, err
	}
	seconds, err := c.secondsEach(s.tokens, copy)
	return 1e3 * seconds, err
}

// switchResult is what rounds of a mode have measured.
type switchResult struct {
	each, block sample
	last        switchFigures
	stats       weights.CacheStats
}

func (r *switchResult) add(f switchFigures, stats weights.CacheStats) {
	r.each, r.block, r.last, r.stats = append(r.each, f.Milliseconds), append(r.block, f.Block), f, stats
}

func (r *switchResult) String() string {
	return fmt.Sprintf("%.3f ms a token, a sparse block %.3f ms, %.1f MB copied a sequence, hit rate %.3f, peak %.0f MB", r.each.median(), r.block.median(),
		float64(r.last.Bytes)/1e6, r.last.HitRate, float64(r.last.PeakBytes)/1e6)
}

// benchSwitch generates tokens with a decoder of Switch-base-128's shape in each way of having its experts, and in PyTorch the usual ways.
func benchSwitch(name string, dtype cgotorch.DType) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		b := &switchBench{c: c, shape: c.switchShape(dtype), name: "modules/switch/" + name, emit: emit}
		return b.run()
	}
}

// switchModes are our ways. Slots of the caches are eight a sparse layer.
var switchModes = []switchMode{
	{name: "resident", policy: weights.Resident, peer: "resident"},
	{name: "resident-on-device", onDevice: true, peer: "resident_select"},
	{name: "pre-gated-resident", gating: text.PreGated, onDevice: true, peer: "compute"},
	{name: "on-demand", policy: weights.OnDemand, peer: "on_demand"},
	{name: "lru", policy: weights.LRU, slots: 8 * 6, peer: "lru"},
	{name: "lfu", policy: weights.LFU, slots: 8 * 6, peer: "lru"},
	{name: "predicted", gating: text.Predicted, policy: weights.LRU, slots: 12, peer: "on_demand"},
	{name: "pre-gated", gating: text.PreGated, policy: weights.OnDemand, slots: 3, peer: "side_stream"},
	{name: "known", known: true, policy: weights.OnDemand, slots: 3, peer: "on_demand"},
}

var switchHows = []string{"/eager", "/captured"} // each operator by itself, or the pieces between experts as graphs

type switchBench struct {
	c     *config
	shape switchShape
	name  string
	emit  func(row)
	note  string
	ids   map[bool][]int64 // by whether it is pre-gated
	ours  map[string]*switchResult
	peers map[string]*switchResult
	copy  float64
}

func (b *switchBench) run() error {
	s := switches{}
	p, err := b.c.startPeer("modules.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	store, err := b.shape.expertStore()
	if err != nil {
		return err
	}
	defer store.Close()
	b.note = fmt.Sprintf("%d layers, %d of them sparse, %d experts of %d bytes, %v, batch 1, %d tokens behind %d; %s; %v; %s", b.shape.config.NumDecoderLayers,
		len(b.shape.config.ExpertNames(true)), b.shape.config.NumExperts, b.shape.expertBytes(), b.shape.dtype, b.shape.tokens, b.shape.warmUp, b.c.settings(), s, p.versions)
	if b.copy, err = b.shape.copies(b.c, store); err != nil {
		return err
	}
	b.ids, b.ours, b.peers = map[bool][]int64{}, map[string]*switchResult{}, map[string]*switchResult{}
	for _, how := range switchHows {
		for _, mode := range switchModes {
			mode.captured = how == "/captured"
			mode.name += how
			if err := b.measure(store, mode, p); err != nil {
				return fmt.Errorf("%s: %w", mode.name, err)
			}
		}
	}
	accelerated := &switchResult{}
	for round := range b.c.roundsOr(5) + 1 {
		if err := b.ask(p, "accelerate", round, accelerated); err != nil {
			return err
		}
	}
	b.peers["accelerate"] = accelerated
	b.c.tell("PyTorch accelerate: " + accelerated.String())
	b.report()
	return nil
}

// measure has a mode and its peer take turns; the peer only where both are eager, since it has nothing else.
func (b *switchBench) measure(store *weights.Store, mode switchMode, p *peer) error {
	d, err := b.shape.newDecoding(b.c, store, mode)
	if err != nil {
		return err
	}
	defer d.close()
	r, theirs := &switchResult{}, &switchResult{}
	for round := range b.c.roundsOr(5) + 1 {
		f, stats, err := d.run()
		if err != nil {
			return err
		}
		if want := b.ids[mode.gating == text.PreGated]; want != nil && !slices.Equal(want, f.IDs) {
			return fmt.Errorf("other tokens than in the modes before: %v, not %v", f.IDs, want)
		}
		b.ids[mode.gating == text.PreGated] = f.IDs
		if round > 0 {
			r.add(f, stats)
		}
		if mode.captured {
			continue
		}
		if err := b.ask(p, mode.peer, round, theirs); err != nil {
			return err
		}
	}
	b.ours[mode.name] = r
	b.c.tell(mode.name + ": " + r.String())
	if !mode.captured {
		b.peers[mode.name] = theirs
		b.c.tell("PyTorch " + mode.peer + " in turns with it: " + theirs.String())
	}
	return nil
}

// ask has the peer generate a sequence, of which the first does not count.
func (b *switchBench) ask(p *peer, mode string, round int, r *switchResult) error {
	c := b.shape.config
	var f switchFigures
	err := p.do(&f, "switch", "mode", mode, "slots", 8, "device", b.c.device.String(), "tokens", b.shape.tokens, "warm_up", b.shape.warmUp, "layers", c.NumDecoderLayers,
		"d_model", c.DModel, "d_kv", c.DKV, "heads", c.NumHeads, "d_ff", c.DFF, "experts", c.NumExperts, "vocab", c.VocabSize, "source", b.shape.source,
		"length", b.shape.length, "dtype", strings.ToLower(b.shape.dtype.String()))
	if err == nil && round > 0 {
		r.add(f, weights.CacheStats{})
	}
	return err
}

// report compares the ways with each other and with PyTorch's.
func (b *switchBench) report() {
	tokens := func(name, peer string, theirs *switchResult) {
		ours := b.ours[name]
		b.emit(against(b.name+"/"+name, 1e3/ours.each.median(), "tokens/s", "PyTorch, "+peer, 1e3/theirs.each.median(), higher,
			fmt.Sprintf("%v; hidden %.3f, stall %v of %v copying, %+v; PyTorch: %v; %v; %s", ours, ours.stats.Hidden(), ours.stats.Stall, ours.stats.Copy, ours.stats, theirs, ours.each, b.note)))
	}
	for _, how := range switchHows {
		for _, mode := range switchModes {
			tokens(mode.name+how, mode.peer, b.peers[mode.name+"/eager"])
		}
		tokens("on-demand"+how, "accelerate", b.peers["accelerate"])
		time := func(mode string) float64 { return b.ours[mode+how].each.median() }
		compute, pregated, demand := time("pre-gated-resident"), time("pre-gated"), time("on-demand")
		note := fmt.Sprintf("ms a token: resident, found on the device, %.3f, pre-gated %.3f; copies alone %.3f; choices known %.3f, pre-gated %.3f, on demand %.3f; %s",
			time("resident-on-device"), compute, b.copy, time("known"), pregated, demand, b.note)
		const bound = "the larger of compute and copy"
		b.emit(against(b.name+"/bound/known"+how, time("known"), "ms", bound, max(time("resident-on-device"), b.copy), lower, note))
		b.emit(against(b.name+"/bound/pre-gated"+how, pregated, "ms", bound, max(compute, b.copy), lower, note))
		b.emit(against(b.name+"/gain"+how, demand/pregated, "times as fast as on demand", "(copy + compute)/max", (b.copy+compute)/max(compute, b.copy), higher, note))
		b.emit(against(b.name+"/memory"+how, float64(b.ours["pre-gated"+how].last.PeakBytes)/1e6, "MB", "resident", float64(b.ours["resident"+how].last.PeakBytes)/1e6, lower, note))
	}
}
