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
//
// The host needs longer to launch a small batch's kernels than the device to run them. So those of
// flash attention are captured, for the sizes of fill. Rows and texts beyond those of the batch
// fill it up. No text attends to such rows, and such texts have none.

// encoderLayout says where the texts of a batch lie.
type encoderLayout struct {
	encoderSize                // with what fills a captured size
	lengths     []int          // of the texts, the longest first
	tokens      []int64        // of all texts
	kinds       []int64        // types of the tokens; nil means that all are 0
	groups      []encoderGroup // of all texts
}

// encoderGroup is some texts of one length.
type encoderGroup struct{ from, count, length int }

// newEncoderLayout returns the layout of texts, which are ordered by length.
func newEncoderLayout(texts []*encoderText) *encoderLayout {
	l := &encoderLayout{encoderSize: encoderSize{texts: len(texts)}}
	for _, t := range texts {
		n := len(t.tokens)
		if k := len(l.groups) - 1; k >= 0 && l.groups[k].length == n {
			l.groups[k].count++
		} else {
			l.groups = append(l.groups, encoderGroup{from: l.rows, count: 1, length: n})
		}
		l.lengths, l.tokens = append(l.lengths, n), append(l.tokens, t.tokens...)
		l.rows, l.longest = l.rows+n, max(l.longest, n)
	}
	if slices.ContainsFunc(texts, func(t *encoderText) bool { return t.kinds != nil }) {
		for _, t := range texts {
			if t.kinds != nil {
				l.kinds = append(l.kinds, t.kinds...)
			} else {
				l.kinds = append(l.kinds, make([]int64, len(t.tokens))...)
			}
		}
	}
	return l
}

// mostCapturedRows bounds the batches that are captured. mostRowsOfLong bounds those with a text of
// more than 512 tokens: attention has work for each 128 tokens of the longest text in each text,
// also in those that fill a size up.
const (
	mostCapturedRows = 16384
	mostRowsOfLong   = 4096
)

// rowsOfHost returns how many rows take the device as long as the host, up to mostCapturedRows.
// The device does 6e14 operations a second with the weights of a layer, and the host needs 0.4 ms
// for it where callers keep its cores busy.
func rowsOfHost(width, inner int, gated bool) int {
	weights := 4*width*width + 2*width*inner
	if gated {
		weights += width * inner
	}
	return min(mostCapturedRows, 120_000_000_000/weights)
}

// encoderSize is a size that is captured.
type encoderSize struct{ rows, texts, longest int }

// fill gives the layout a size that is captured, of up to `most` rows, with one row and one text
// more at least. It reports whether there is one.
func (l *encoderLayout) fill(most int) bool {
	rows, longest := roundRows(l.rows+1), roundLongest(l.longest)
	if longest > 512 {
		most = min(most, mostRowsOfLong)
	}
	if rows > most {
		return false
	}
	for _, texts := range textsOf(rows) {
		if l.texts < texts {
			l.encoderSize = encoderSize{rows, texts, longest}
			return true
		}
	}
	return false
}

// textsOf returns the numbers of texts that are captured with so many rows. Attention has work for
// each of them, also for one without tokens.
func textsOf(rows int) []int {
	if rows <= 1024 {
		return []int{rows / 4}
	}
	return []int{rows / 16, rows / 4}
}

// encoderSizes returns the sizes of batches of up to `most` rows, with texts of up to `limit` and
// 512 tokens, the smallest first.
func encoderSizes(limit, most int) (sizes []encoderSize) {
	for rows := 64; rows <= most; rows = roundRows(rows + 1) {
		for longest := 128; longest <= roundLongest(min(limit, 512)); longest *= 4 {
			for _, texts := range textsOf(rows) {
				sizes = append(sizes, encoderSize{rows, texts, longest})
			}
		}
	}
	return sizes
}

// positions returns the place of each token in its text, counted from `first`. With `skipPad` the
// token pad is not counted, and its place is pad too.
func (l *encoderLayout) positions(first int, skipPad bool, pad int64) []int64 {
	places := make([]int64, 0, l.rows)
	for _, n := range l.lengths {
		next := int64(first)
		for range n {
			if skipPad && l.tokens[len(places)] == pad {
				places = append(places, pad)
				continue
			}
			places = append(places, next)
			next++
		}
	}
	return places
}

// bytes returns the size of what write writes.
func (l *encoderLayout) bytes(weighted int) int {
	return 8*(3*l.rows+3*(l.texts+1)) + 4*weighted*l.rows
}

// write writes what the device needs: Int64 [2 or 3, rows] of tokens, places and kinds, Int64 [3,
// texts+1] of the first and the last rows and of the ends of texts, and Float32 [weighted, rows] of
// the weights that some poolings give the rows.
func (l *encoderLayout) write(host *cgotorch.HostSlab, places []int64, weighted []string) (rows, texts []int64, weights []float32) {
	host.Touch(true)
	all := cgotorch.View[int64](host)
	lists := [][]int64{l.tokens, places}
	if l.kinds != nil {
		lists = append(lists, l.kinds)
	}
	rows, all = all[:len(lists)*l.rows], all[len(lists)*l.rows:]
	clear(rows)
	for i, list := range lists {
		copy(rows[i*l.rows:(i+1)*l.rows], list)
	}
	n := l.texts + 1
	texts = all[:3*n]
	firsts, lasts, ends := texts[:n], texts[n:2*n], texts[2*n:]
	at := int64(0)
	for i := range n {
		firsts[i], lasts[i], ends[i] = at, at, at
		if i < len(l.lengths) {
			at += int64(l.lengths[i])
			lasts[i] = at - 1
		}
	}
	weights = cgotorch.View[float32](host)[2*(len(rows)+len(texts)):][:len(weighted)*l.rows]
	clear(weights)
	for i, name := range weighted {
		to := weights[i*l.rows:][:0]
		for _, n := range l.lengths {
			for k := range n {
				to = append(to, poolingWeight(name, k, n))
			}
		}
	}
	return rows, texts, weights
}

// encoderBatch is a batch on the device.
type encoderBatch struct {
	rows, longest int
	groups        []encoderGroup     // for attention without flash attention
	tokens        *cgotorch.Tensor   // Int64 [rows]
	places        *cgotorch.Tensor   // Int64 [rows]
	kinds         *cgotorch.Tensor   // Int64 [rows]; nil means that all are 0
	first, last   *cgotorch.Tensor   // Int64 [texts], rows
	ends          *cgotorch.Tensor   // Int32 [texts+1], for flash attention
	weights       []*cgotorch.Tensor // Float32 [rows] each
}

// newEncoderBatch returns the batch of what write has written, as tensors of the device.
func newEncoderBatch(x *cgotorch.Exec, longest int, groups []encoderGroup, in []*cgotorch.Tensor) *encoderBatch {
	rows, texts := x.Unbind(in[0], 0), x.Unbind(in[1], 0)
	n := int(texts[0].Shape()[0]) - 1
	b := &encoderBatch{rows: int(in[0].Shape()[1]), longest: longest, groups: groups, tokens: rows[0], places: rows[1]}
	if len(rows) > 2 {
		b.kinds = rows[2]
	}
	b.first, b.last, b.ends = x.Narrow(texts[0], 0, 0, n), x.Narrow(texts[1], 0, 0, n), x.To(texts[2], cgotorch.Int32)
	if len(in) > 2 {
		b.weights = x.Unbind(in[2], 0)
	}
	return b
}

// each joins the rows that a function returns for each group.
func (b *encoderBatch) each(x *cgotorch.Exec, of func(g encoderGroup) *cgotorch.Tensor) *cgotorch.Tensor {
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
