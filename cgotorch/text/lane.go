package text

import (
	"errors"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Life of a token]
//
// A model has one lane: the device memory through which all its conversations run. A conversation
// is on the host a list of tokens and a list of page numbers for each span of layers. To run, it
// loads its page numbers into the tables of the lane.
//
// A prompt goes through the layers in parts of promptTokens tokens. Each layer writes the keys and
// values of the part into the conversation's pages. It then gathers the pages and attends to them.
// The last row's logits are sampled, and the sampled token becomes the lane's token.
//
// A step takes the lane's token at the lane's position through the layers, and samples the next
// one. All of it reads and writes memory of fixed addresses, so that one graph serves all
// conversations. On CUDA the host enqueues a step before it has read the token that the step
// begins with: the lane has it. The host thus reads token n while the device computes token n+1.
// If the answer ends with token n, the step was in vain, and its keys lie behind the conversation's
// end, where the next prompt overwrites them.
//
// If another conversation has taken the lane meanwhile, the host waits for the token, and loads the
// lane again. An answer is the same in both cases.

// promptTokens is the largest number of tokens of a prompt that go through the layers at once.
const promptTokens = 512

// lane is the device memory through which conversations run, one after another. Its addresses are
// fixed, so that steps of tokens are captured once for all conversations.
type lane struct {
	d     *decoder
	pages *pages
	spans []span

	mu     sync.Mutex // held in a Do that uses the lane
	loaded *Conversation

	token       *cgotorch.Tensor   // Int64 [1]: the input of the next step
	position    *cgotorch.Tensor   // Int64 [1]: its position
	tables      []*cgotorch.Tensor // Int64 [layers, width], one for each span
	firsts      []*cgotorch.Tensor // Int64 [1]: the position of a table's first token
	frequencies []*cgotorch.Tensor // of each rotation
	long        bool               // the frequencies are those of a long sequence
	sampler     *sampler
	logits      *cgotorch.Tensor // [1, vocab], of a step with a mask
	steps       map[features]*cgotorch.Captured
	samples     map[features]*cgotorch.Captured
}

func newLane(x *cgotorch.Exec, d *decoder, p *pages, spans []span, context int) *lane {
	l := &lane{d: d, pages: p, spans: spans, steps: map[features]*cgotorch.Captured{}, samples: map[features]*cgotorch.Captured{}}
	l.token, l.position = x.Keep(x.Zeros(cgotorch.Int64, 1)), x.Keep(x.Zeros(cgotorch.Int64, 1))
	l.logits = x.Keep(x.Zeros(d.wide, 1, int64(d.c.vocab)))
	for _, s := range spans {
		l.tables = append(l.tables, x.Keep(x.Zeros(cgotorch.Int64, int64(len(s.layers)), int64(s.width))))
		l.firsts = append(l.firsts, x.Keep(x.Zeros(cgotorch.Int64, 1)))
	}
	for _, f := range d.frequencies[0] {
		l.frequencies = append(l.frequencies, x.Keep(x.Clone(f)))
	}
	l.sampler = newSampler(x, d.c.vocab, context)
	return l
}

func (l *lane) close() error {
	if l == nil {
		return nil
	}
	var errs []error
	for _, all := range []map[features]*cgotorch.Captured{l.steps, l.samples} {
		for _, step := range all {
			errs = append(errs, step.Close())
		}
	}
	all := append(append(append([]*cgotorch.Tensor{l.token, l.position, l.logits}, l.tables...), l.firsts...), l.frequencies...)
	for _, t := range append(all, l.sampler.tensors()...) {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// load copies the tables of a conversation to the device.
func (l *lane) load(x *cgotorch.Exec, tables []pageTable) {
	for i := range tables {
		l.upload(x, i, &tables[i])
	}
}

func (l *lane) upload(x *cgotorch.Exec, i int, t *pageTable) {
	write(x, l.tables[i], t.flat())
	write(x, l.firsts[i], []int64{int64(t.first * pageTokens)})
}

// write copies host data into a tensor of the same number of elements.
func write[T cgotorch.Element](x *cgotorch.Exec, to *cgotorch.Tensor, data []T) {
	x.Tidy(func() *cgotorch.Tensor {
		x.CopyInPlace(to, cgotorch.FromSlice(x, data, to.Shape()...))
		return nil
	})
}

// turn takes the frequencies of a long sequence, or of a short one.
func (l *lane) turn(x *cgotorch.Exec, tokens int) {
	if l.long == l.d.c.long(tokens) {
		return
	}
	for i, f := range l.d.frequenciesOf(tokens) {
		x.CopyInPlace(l.frequencies[i], f).Close()
	}
	l.long = !l.long
}

// cachedPass returns a pass over tokens of one sequence at these positions, Int64 [rows]. It reads
// and writes the pages of the first `blocks` blocks of each table.
func (l *lane) cachedPass(x *cgotorch.Exec, positions *cgotorch.Tensor, rows int, blocks []int) *pass {
	d := l.d
	p := &pass{rows: rows, turns: d.begin(x, l.frequencies, positions)}
	type view struct {
		places *cgotorch.Tensor // Int64 [layers, rows]: where the rows' keys go
		table  *cgotorch.Tensor // Int64 [layers, blocks]
		mask   *cgotorch.Tensor
	}
	views := make([]view, len(l.spans))
	spanOf, within := make([]int, len(d.layers)), make([]int, len(d.layers))
	for i, s := range l.spans {
		views[i].table = x.Narrow(l.tables[i], 1, 0, blocks[i])
		offset := x.Sub(positions, l.firsts[i])
		block := call(x, "aten::div.Scalar_mode", offset, pageTokens, "floor")
		pages := x.IndexSelect(l.tables[i], 1, block)
		views[i].places = x.Add(x.MulScalar(pages, pageTokens), x.RemainderScalar(offset, pageTokens))
		keys := x.Add(x.Arange(cgotorch.Int64, 0, blocks[i]*pageTokens, 1), l.firsts[i])
		views[i].mask = d.sees(x, positions, keys, s.window)
		for k, layer := range s.layers {
			spanOf[layer], within[layer] = i, k
		}
	}
	heads, head := int64(d.c.keyHeads), int64(d.c.head)
	flat := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.View(t, -1, heads, head) }
	keys, values := flat(l.pages.keys), flat(l.pages.values)
	p.attend = func(layer int, query, key, value *cgotorch.Tensor) *cgotorch.Tensor {
		v, k := views[spanOf[layer]], within[layer]
		places, table := x.Select(v.places, 0, k), x.Select(v.table, 0, k)
		indexCopy(x, keys, 0, places, key)
		indexCopy(x, values, 0, places, value)
		gather := func(pool *cgotorch.Tensor) *cgotorch.Tensor {
			return x.View(x.IndexSelect(pool, 0, table), 1, -1, heads, head)
		}
		return d.mix(x, d.layers[layer], x.Reshape(query, 1, int64(rows), int64(d.c.heads), head), gather(l.pages.keys), gather(l.pages.values), v.mask)
	}
	return p
}

// prompt runs tokens through the layers, from a position on. It returns the logits [1, vocab] of
// the token after the last of them, if `last` is set.
func (l *lane) prompt(x *cgotorch.Exec, tokens []int64, from int, blocks []int, last bool) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		n := len(tokens)
		p := l.cachedPass(x, x.Arange(cgotorch.Int64, from, from+n, 1), n, blocks)
		hidden := l.d.hidden(x, p, cgotorch.FromSlice(x, tokens, int64(n)))
		if !last {
			return nil
		}
		return l.d.logits(x, x.Narrow(hidden, 0, n-1, 1))
	})
}

// layers runs the lane's token through the layers, and samples the token after it, which becomes
// the lane's. With a mask it stops at the logits: the host fills the mask meanwhile, and then calls
// sampleMasked. On CUDA the work is captured once for each number of blocks.
func (l *lane) layers(x *cgotorch.Exec, f features, blocks []int) {
	step := l.captured(l.steps, f, func(x *cgotorch.Exec, in ...*cgotorch.Tensor) {
		counts := make([]int, len(in))
		for i, t := range in {
			counts[i] = int(t.Shape()[1])
		}
		logits := l.d.logits(x, l.d.hidden(x, l.cachedPass(x, l.position, 1, counts), l.token))
		if f.mask {
			x.CopyInPlace(l.logits, logits)
			return
		}
		l.sample(x, f, logits)
	})
	var in []*cgotorch.Tensor
	for i, n := range blocks {
		in = append(in, x.Narrow(l.tables[i], 1, 0, n))
	}
	step.Run(x, in...)
}

// sampleMasked samples from the logits that layers has left.
func (l *lane) sampleMasked(x *cgotorch.Exec, f features) {
	l.captured(l.samples, f, func(x *cgotorch.Exec, _ ...*cgotorch.Tensor) { l.sample(x, f, l.logits) }).Run(x, l.token)
}

// captured returns the captured function of some features, and makes it from fn if it is new.
func (l *lane) captured(of map[features]*cgotorch.Captured, f features, fn func(x *cgotorch.Exec, in ...*cgotorch.Tensor)) *cgotorch.Captured {
	if of[f] == nil {
		of[f] = cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			x.Tidy(func() *cgotorch.Tensor {
				fn(x, in...)
				return nil
			})
			return nil
		}, cgotorch.CapturedOptions{WarmUp: 1, MaxGraphs: 64, InPlace: true})
	}
	return of[f]
}

// sample picks the token after the lane's position, and moves the lane there.
func (l *lane) sample(x *cgotorch.Exec, f features, logits *cgotorch.Tensor) {
	x.AddScalarInPlace(l.position, 1).Close()
	x.CopyInPlace(l.token, l.sampler.pick(x, f, logits, l.position)).Close()
}

// roundUp returns the number of blocks of a captured step that has room for n, up to `most`.
func roundUp(n, most int) int {
	size := 8
	for size < n {
		if size&(size-1) == 0 {
			size += size / 2
		} else {
			size = size / 3 * 4
		}
	}
	return min(size, most)
}
