package text

import (
	"errors"
	"slices"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Life of a token]
//
// A model has one lane: the device memory through which all its conversations run. A [Batcher] has
// one more for each of its seats: see Note [Turns of a Batcher]. A conversation is on the host a
// list of tokens and a list of page numbers for each span of layers. To run, it loads its page
// numbers into the tables of the lane.
//
// A prompt goes through the layers in parts of promptPart tokens. Each layer norms and rotates
// queries and keys, and writes the keys and values of the part into the conversation's pages. It
// then attends to the pages: see Note [Kernels of rows]. Only the last row of the last part has
// logits. The token that is sampled from them becomes the lane's token.
//
// A step takes the lane's token at the lane's position through the layers, and samples the next
// one. All of it reads and writes memory of fixed addresses, so that its graphs serve all
// conversations. On CUDA the host enqueues a step before it has read the token that the step
// begins with: the lane has it. The host thus reads token n while the device computes token n+1.
// If the answer ends with token n, the step was in vain, and its keys lie behind the conversation's
// end, where the next prompt overwrites them.
//
// If another conversation has taken the lane meanwhile, the host waits for the token, and loads the
// lane again. An answer is the same in both cases.

// promptPart is the largest number of tokens of a prompt that go through the layers at once. Flash
// attention needs no memory for the scores of all of them.
func promptPart(flash bool) int {
	if flash {
		return 2048
	}
	return 512
}

// lane is the device memory through which conversations run, one after another. Its addresses are
// fixed, so that steps of tokens are captured once for all conversations. Its tensors are views of
// one row: see [seats].
type lane struct {
	*seats
	spans []*laneSpan

	mu     sync.Mutex // held outside a Do, by the conversation that uses the lane
	loaded *Conversation

	token    *cgotorch.Tensor // Int64 [1]: the input of the next step
	position *cgotorch.Tensor // Int64 [1]: its position
	sampler  *sampler
	results  *results
	logits   *cgotorch.Tensor // [1, vocab], of a step with a mask; nil if the lane has no steps of its own
	steps    map[features]*cgotorch.Captured
	samples  map[features]*cgotorch.Captured
}

// laneSpan is the device's copy of a page table, and the page-locked memory from which it comes.
type laneSpan struct {
	span
	table  *cgotorch.Tensor // Int64 [layers, 2, width]: the pages of keys, and those of values
	before *cgotorch.Tensor // Int64 [1]: the position before that of the table's first token
	ends   *cgotorch.Tensor // Int32 [2]: 0, and how many tokens of the table the last row sees

	host staging // has what table and before get
}

// newLane makes the lane of row i.
func newLane(x *cgotorch.Exec, r *seats, i int, results *results) *lane {
	row := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.Narrow(t, 0, i, 1) }
	l := &lane{seats: r, results: results, steps: map[features]*cgotorch.Captured{}, samples: map[features]*cgotorch.Captured{}}
	l.token, l.position, l.sampler = row(r.tokens), row(r.positions), r.samplers.rows(x, i, 1)
	for _, s := range r.spans {
		l.spans = append(l.spans, &laneSpan{span: s.span, table: x.Select(s.tables, 0, i), before: row(s.before), ends: x.Zeros(cgotorch.Int32, 2)})
	}
	return l
}

func (l *lane) tensors() []*cgotorch.Tensor {
	all := slices.Concat(l.sampler.tensors(), []*cgotorch.Tensor{l.token, l.position})
	if l.logits != nil {
		all = append(all, l.logits)
	}
	for _, s := range l.spans {
		all = append(all, s.table, s.before, s.ends)
	}
	return all
}

func (l *lane) close() error {
	if l == nil {
		return nil
	}
	errs := []error{l.forgetSteps()}
	for _, s := range l.spans {
		errs = append(errs, s.host.close())
	}
	for _, t := range l.tensors() {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// take locks the lane. Inside a Do it fails with [cgotorch.ErrMisuse] if another goroutine has the
// lane, because that one may wait for this Do.
func (l *lane) take(stream *cgotorch.Stream) error {
	if l.mu.TryLock() {
		return nil
	}
	if err := stream.Do(func(*cgotorch.Exec) error { return nil }); errors.Is(err, cgotorch.ErrMisuse) {
		return err
	}
	l.mu.Lock()
	return nil
}

// forgetSteps closes what is captured. Later steps are captured anew.
func (l *lane) forgetSteps() error {
	var errs []error
	for _, all := range []map[features]*cgotorch.Captured{l.steps, l.samples} {
		for _, step := range all {
			errs = append(errs, step.Close())
		}
		clear(all)
	}
	return errors.Join(errs...)
}

// upload enqueues the copy of a page table to the device. It is called outside a Do. It does not
// wait, unless an earlier copy has not ended.
func (s *laneSpan) upload(stream *cgotorch.Stream, t *pageTable, pages int) error {
	n := int(s.table.Numel()) + 1
	numbers, err := s.host.next(stream, n)
	if err != nil {
		return err
	}
	t.write(numbers, pages)
	bytes := s.host.slab.Bytes()
	table, before := bytes[:(n-1)*8], bytes[(n-1)*8:n*8]
	began, done, err := stream.CopyFrom(nil, cgotorch.HostCopy{To: s.table, From: table}, cgotorch.HostCopy{To: s.before, From: before})
	began.Close()
	s.host.copy = done
	return err
}

// write copies host data into a tensor of the same number of elements. It waits until the device
// has read them.
func write[T cgotorch.Element](x *cgotorch.Exec, to *cgotorch.Tensor, data []T) {
	x.Tidy(func() *cgotorch.Tensor {
		x.CopyInPlace(to, cgotorch.FromSlice(x, data, to.Shape()...))
		return nil
	})
}

// clear zeroes the tokens of blocks `from` up to `to` of a table, from row `row` of each page on.
// Attention gives what nobody has written the weight 0, but 0 times a NaN would be NaN.
func (l *lane) clear(x *cgotorch.Exec, s *laneSpan, from, to, row int) {
	if from >= to {
		return
	}
	x.Tidy(func() *cgotorch.Tensor {
		rows := x.Narrow(x.View(l.pages.memory, -1, int64(l.d.c.keyHeads), pageTokens, int64(l.d.c.head)), 2, row, pageTokens-row)
		return call(x, "aten::index_fill_.int_Scalar", rows, 0, x.Reshape(x.Narrow(s.table, 2, from, to-from), -1), 0)
	}).Close()
}

// cachedRows are tokens of one sequence.
type cachedRows struct {
	tokens, positions *cgotorch.Tensor // Int64 [rows]
	rows              int
	blocks            []int            // the first ones of each table, whose pages are read and written
	last              *cgotorch.Tensor // Int64 [1]: the last position
	ends              *cgotorch.Tensor // Int32 [2]: 0, and the number of rows; nil if flash attention has none of them
}

// rowsOf returns the cachedRows of all tokens.
func (l *lane) rowsOf(x *cgotorch.Exec, tokens, positions *cgotorch.Tensor, blocks []int) cachedRows {
	n := int(tokens.Numel())
	r := cachedRows{tokens: tokens, positions: positions, rows: n, blocks: blocks, last: x.Narrow(positions, 0, n-1, 1), ends: l.one}
	if n > 1 && l.d.flash {
		r.ends = x.Arange(cgotorch.Int32, 0, 2*n, n)
	}
	return r
}

// cachedPass returns a pass over rows.
func (l *lane) cachedPass(x *cgotorch.Exec, r cachedRows) *rowsPass {
	d, positions := l.d, r.positions
	p := &rowsPass{tokens: r.tokens, positions: positions, frequencies: l.frequencies}
	through := &pass{rows: r.rows}
	if d.room.passes && r.rows*d.c.experts.top > fewPicks {
		through.experts = d.table.Pass(x)
	}
	p.experts = func(layer *decoderLayer, s *rowStream) {
		d.expertsTogether(x, layer, s, func(in, wide *cgotorch.Tensor) *cgotorch.Tensor { return through.through(x, layer.experts, in, wide) })
	}
	paged := d.promptKernel && r.rows <= mostCapturedPiece
	views, spanOf, within := make([]cacheView, len(l.spans)), make([]int, len(d.layers)), make([]int, len(d.layers))
	for i, s := range l.spans {
		if !paged {
			views[i] = l.view(x, s, r, r.blocks[i])
		}
		for k, layer := range s.layers {
			spanOf[layer], within[layer] = i, k
		}
	}
	p.attend = func(i int, layer *decoderLayer, qkv *cgotorch.Tensor, by rotation) *cgotorch.Tensor {
		at, s := spanOf[i], l.spans[spanOf[i]]
		table := x.Select(x.Narrow(s.table, 2, 0, r.blocks[at]), 0, within[i])
		query := call(x, "streamtorch::rope_into_pages", qkv, layer.queryNorm, layer.keyNorm, d.c.eps, d.c.normOffset, by.cos, by.sin, positions,
			l.pages.memory, table, s.before, d.c.heads)
		if paged {
			return call(x, "streamtorch::prompt_attention", query, positions, r.last, l.pages.memory, table, s.before, layer.sinks, s.window, d.c.queryScale)
		}
		key, value := l.gathered(x, x.Select(views[at].table, 0, within[i]))
		if d.flash {
			return d.mixByFlash(x, layer, query, key, value, &views[at])
		}
		one := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.Unsqueeze(t, 0) }
		return d.mix(x, layer, one(query), one(key), one(value), views[at].mask)
	}
	return p
}

// gathered copies pages of a layer, as [cacheView] has them: keys and values, [tokens, keyHeads,
// head].
func (l *lane) gathered(x *cgotorch.Exec, pages *cgotorch.Tensor) (keys, values *cgotorch.Tensor) {
	keyHeads, head := int64(l.d.c.keyHeads), int64(l.d.c.head)
	ofOneHead := call(x, "aten::view.dtype", x.View(l.pages.memory, -1, pageTokens*head), cgotorch.Complex128) // 16 bytes at a time
	copied := call(x, "aten::view.dtype", x.Index(ofOneHead, []*cgotorch.Tensor{pages}), l.pages.memory.DType())
	all := x.Transpose(x.View(copied, 2, keyHeads, -1, head), 1, 2)
	return x.Select(all, 0, 0), x.Select(all, 0, 1)
}

// cacheView is what a pass needs to know of the pages of one span.
type cacheView struct {
	window int
	table  *cgotorch.Tensor // Int64 [layers, 2*keyHeads*blocks]: the pages of keys, head by head, and those of values
	mask   *cgotorch.Tensor // as sees returns it, or nil with flash attention

	rowEnds, keyEnds *cgotorch.Tensor // Int32 [2]: 0 and the number of rows; 0 and the number of keys
	rows, keys       int              // at most
}

func (l *lane) view(x *cgotorch.Exec, s *laneSpan, r cachedRows, blocks int) cacheView {
	v := cacheView{window: s.window, rows: r.rows, keys: blocks * pageTokens}
	layers, keyHeads := int64(len(s.layers)), l.d.c.keyHeads
	heads := x.Arange(cgotorch.Int64, 0, keyHeads, 1)
	ofHeads := func(pages *cgotorch.Tensor) *cgotorch.Tensor { // of a page [..., 1] those of its heads
		return x.Add(x.MulScalar(pages, keyHeads), heads)
	}
	live := x.Narrow(s.table, 2, 0, blocks)
	v.table = x.Reshape(x.Transpose(ofHeads(x.Unsqueeze(live, 3)), 2, 3), layers, -1)
	if !l.d.flash {
		v.mask = l.d.sees(x, r.positions, x.Add(x.Arange(cgotorch.Int64, 1, v.keys+1, 1), s.before), s.window)
		return v
	}
	x.SubOut(r.last, s.before, x.Narrow(s.ends, 0, 1, 1))
	v.rowEnds, v.keyEnds = r.ends, s.ends
	return v
}

// prompt runs tokens, Int64 [n], through the layers, from a position on. It returns the logits [1,
// vocab] of the token after the last of them, if `last` is set.
func (l *lane) prompt(x *cgotorch.Exec, tokens *cgotorch.Tensor, from int, blocks []int, last bool) *cgotorch.Tensor {
	return x.Tidy(func() (logits *cgotorch.Tensor) {
		n := int(tokens.Numel())
		var hidden *cgotorch.Tensor
		l.d.withSlots(x, func() {
			hidden = l.d.rows(x, l.cachedPass(x, l.rowsOf(x, tokens, x.Arange(cgotorch.Int64, from, from+n, 1), blocks)))
		})
		if !last {
			return nil
		}
		return l.d.rowLogits(x, x.Narrow(hidden, 0, n-1, 1), false)
	})
}

// layers runs the lane's token through the layers, and samples the token after it, which becomes
// the lane's. With a mask it stops at the logits: the host fills the mask meanwhile, and then calls
// sampleMasked. On CUDA the work is captured for each number of blocks, and for each result, unless
// the host fetches experts.
func (l *lane) layers(x *cgotorch.Exec, f features, blocks []int) {
	run := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) {
		counts := make([]int, len(l.spans))
		for i := range counts {
			counts[i] = int(in[i].Shape()[2])
		}
		var logits *cgotorch.Tensor
		if l.d.edge != "" {
			logits = l.d.token(x, l.tokenPass(x, counts))
		} else {
			logits = l.d.rowLogits(x, l.d.rows(x, l.cachedPass(x, l.rowsOf(x, l.token, l.position, counts))), false)
		}
		if f.mask {
			x.CopyInPlace(l.logits, logits)
			return
		}
		l.sample(x, f, logits, in[len(l.spans)])
	}
	var in []*cgotorch.Tensor
	for i, n := range blocks {
		in = append(in, x.Narrow(l.spans[i].table, 2, 0, n))
	}
	if !f.mask {
		in = append(in, l.results.next(x))
	}
	l.d.withSlots(x, func() {
		if !l.d.fetchesFor(x, 1) {
			capturedOf(l.steps, f, run).Run(x, in...)
			return
		}
		x.Tidy(func() *cgotorch.Tensor {
			run(x, in...)
			return nil
		})
	})
}

// sampleMasked samples from the logits that layers has left.
func (l *lane) sampleMasked(x *cgotorch.Exec, f features) {
	sample := capturedOf(l.samples, f, func(x *cgotorch.Exec, in ...*cgotorch.Tensor) { l.sample(x, f, l.logits, in[0]) })
	sample.Run(x, l.results.next(x))
}

// mostGraphs is more than a step has: two results for each size of each table, of some 40 sizes.
const mostGraphs = 256

// capturedOf returns the captured function of some features, and makes it from fn if it is new.
func capturedOf(of map[features]*cgotorch.Captured, f features, fn func(x *cgotorch.Exec, in ...*cgotorch.Tensor)) *cgotorch.Captured {
	if of[f] == nil {
		of[f] = cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			x.Tidy(func() *cgotorch.Tensor {
				fn(x, in...)
				return nil
			})
			return nil
		}, cgotorch.CapturedOptions{WarmUp: 1, MaxGraphs: mostGraphs, InPlace: true})
	}
	return of[f]
}

// sample picks the token after the lane's position, and moves the lane there. The result gets what
// the host is told.
func (l *lane) sample(x *cgotorch.Exec, f features, logits, result *cgotorch.Tensor) {
	if l.d.edge != "" && f == (features{}) {
		x.Call("streamtorch::token_likeliest", logits, l.token, l.position, result, l.d.edge)
		return
	}
	edge := l.d.edge
	if edge == "" {
		edge = "full"
	}
	l.sampler.pick(x, f, logits, l.token, l.position, result, edge)
}
