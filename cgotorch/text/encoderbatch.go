package text

import (
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Batches without padding]
//
// The tokens of a batch lie behind each other as rows: [rows, width]. Products and norms do not see
// where a text ends. Attention does. On CUDA LibTorch's flash attention takes the ends of the
// texts. Elsewhere texts are ordered by length, and one call computes all texts of a length.

// encoderBatch is the layout of a batch.
type encoderBatch struct {
	rows, longest int
	lengths       []int   // of the texts, the longest first
	tokens        []int64 // of all texts
	kinds         []int64 // types of the tokens; nil means that all are 0
	groups        []group
	ends          *cgotorch.Tensor // Int32 [texts+1] on the device, when flash attention has asked for it
}

// group is some texts of one length.
type group struct{ from, count, length int }

// newEncoderBatch returns the layout of texts, which are ordered by length.
func newEncoderBatch(texts []*encoderText) *encoderBatch {
	b := &encoderBatch{}
	for _, t := range texts {
		n := len(t.tokens)
		if k := len(b.groups) - 1; k >= 0 && b.groups[k].length == n {
			b.groups[k].count++
		} else {
			b.groups = append(b.groups, group{from: b.rows, count: 1, length: n})
		}
		b.lengths, b.tokens = append(b.lengths, n), append(b.tokens, t.tokens...)
		b.rows, b.longest = b.rows+n, max(b.longest, n)
	}
	if slices.ContainsFunc(texts, func(t *encoderText) bool { return t.kinds != nil }) {
		for _, t := range texts {
			if t.kinds != nil {
				b.kinds = append(b.kinds, t.kinds...)
			} else {
				b.kinds = append(b.kinds, make([]int64, len(t.tokens))...)
			}
		}
	}
	return b
}

// positions returns the place of each token in its text, counted from `first`. With `skipPad` the
// token pad is not counted, and its place is pad too.
func (b *encoderBatch) positions(first int, skipPad bool, pad int64) []int64 {
	places := make([]int64, 0, b.rows)
	for _, n := range b.lengths {
		next := int64(first)
		for range n {
			if skipPad && b.tokens[len(places)] == pad {
				places = append(places, pad)
				continue
			}
			places = append(places, next)
			next++
		}
	}
	return places
}

// first returns the row of each text's first token.
func (b *encoderBatch) first() []int64 {
	rows, at := make([]int64, 0, len(b.lengths)), 0
	for _, n := range b.lengths {
		rows, at = append(rows, int64(at)), at+n
	}
	return rows
}

// last returns the row of each text's last token.
func (b *encoderBatch) last() []int64 {
	rows := b.first()
	for i, n := range b.lengths {
		rows[i] += int64(n) - 1
	}
	return rows
}

// each joins the rows that a function returns for each group.
func (b *encoderBatch) each(x *cgotorch.Exec, of func(g group) *cgotorch.Tensor) *cgotorch.Tensor {
	if len(b.groups) == 1 {
		return of(b.groups[0])
	}
	return x.Tidy(func() *cgotorch.Tensor {
		var all []*cgotorch.Tensor
		for _, g := range b.groups {
			all = append(all, of(g))
		}
		return x.Cat(all, 0)
	})
}

// flashOptions are the options of [encoderBatch.flash].
type flashOptions struct {
	causal bool    // a query sees no key behind its own
	window int     // keys that a query sees on each side, or before it, with its own; 0 means all
	scale  float64 // of the scores; 0 means 1/sqrt(head)
}

// flash is attention of all texts, by LibTorch's flash attention. query is [rows, heads, head], key
// and value are [rows, keyHeads, head]. The result is [rows, heads*head].
func (b *encoderBatch) flash(x *cgotorch.Exec, query, key, value *cgotorch.Tensor, o flashOptions) *cgotorch.Tensor {
	if b.ends == nil {
		ends := []int32{0}
		for _, n := range b.lengths {
			ends = append(ends, ends[len(ends)-1]+int32(n))
		}
		b.ends = cgotorch.FromSlice(x, ends, int64(len(ends)))
	}
	scale := o.scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(query.Shape()[2]))
	}
	var left, right any
	if o.window > 0 {
		left, right = o.window-1, o.window-1
		if o.causal {
			right = 0
		}
	}
	out := x.Call("aten::_flash_attention_forward", query, key, value, b.ends, b.ends, b.longest, b.longest, 0.0, o.causal, false, scale, left, right)
	return x.View(out[0].(*cgotorch.Tensor), int64(b.rows), -1)
}

// bucket returns the number of the bias of a key that lies `distance` tokens behind the query, as
// MPNet numbers them.
func bucket(distance, buckets int) int64 {
	const most = 128 // farther keys share a bias
	half := buckets / 2
	exact := half / 2
	at := 0
	if distance > 0 {
		at = half
	} else {
		distance = -distance
	}
	if distance < exact {
		return int64(at + distance)
	}
	far := float32(math.Log(float64(float32(distance)/float32(exact)))) / float32(math.Log(most/float64(exact))) * float32(half-exact)
	return int64(at + min(exact+int(far), half-1))
}
