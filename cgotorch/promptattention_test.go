package cgotorch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// promptRows are tokens of one sequence, whose keys lie in a cache with those before them.
type promptRows struct {
	n                             *tokenNumbers
	heads, keyHeads, head         int64
	rows, live, past              int // rows behind the live ones are padded
	window                        int
	query, memory, table          *Tensor
	position, last, before, sinks *Tensor
}

// newPromptRows draws tokens behind `past` others. Behind the last one the cache has NaN, and the
// table numbers of no page.
func newPromptRows(n *tokenNumbers, keyHeads, group, head int64, rows, live, past, window int, sinks bool) *promptRows {
	x := n.x
	p := &promptRows{n: n, heads: keyHeads * group, keyHeads: keyHeads, head: head, rows: rows, live: live, past: past, window: window}
	keys := past + live
	blocks, first := (keys+15)/16, int64(16*n.IntN(3))
	pages := blocks + 3
	table, width := []int64{}, blocks+n.IntN(100)
	p.memory = n.narrows(1, 2, int64(pages), keyHeads, 16, head)
	for kind := range 2 {
		for at, page := range n.Perm(pages)[:blocks] {
			table = append(table, int64(kind*pages+page))
			if at == blocks-1 && keys%16 > 0 {
				unseen := x.Narrow(x.Select(x.Select(p.memory, 0, kind), 0, page), 1, keys%16, 16-keys%16)
				x.FillInPlace(unseen, math.NaN())
			}
		}
		table = append(table, slices.Repeat([]int64{1 << 40}, width-blocks)...)
	}
	p.table = FromSlice(x, table, 2, int64(width))
	positions := slices.Repeat([]int64{-1}, rows)
	for i := range live {
		positions[i] = first + int64(past+i)
	}
	p.query, p.position, p.before = n.narrows(1, int64(rows), p.heads, head), FromSlice(x, positions, int64(rows)), FromSlice(x, []int64{first - 1}, 1)
	p.last = x.Full(Int64, float64(positions[live-1]), 1)
	if sinks {
		p.sinks = n.narrows(2, p.heads)
	}
	return p
}

func (p *promptRows) run() *Tensor {
	return p.n.x.Call1("streamtorch::prompt_attention", p.query, p.position, p.last, p.memory, p.table, p.before, p.sinks, p.window, 1/math.Sqrt(float64(p.head)))
}

// want returns the attention of the live rows, by LibTorch's operators in float64.
func (p *promptRows) want() []float32 {
	x, keys := p.n.x, p.past+p.live
	pages := x.View(p.memory, -1, p.keyHeads, 16, p.head)
	of := func(kind int) *Tensor { // [keyHeads, 1, keys, head]
		own := x.Narrow(x.Select(p.table, 0, kind), 0, 0, (keys+15)/16)
		all := x.Reshape(x.Transpose(x.IndexSelect(pages, 0, own), 0, 1), p.keyHeads, 1, -1, p.head)
		return x.To(x.Narrow(all, 2, 0, keys), Float64)
	}
	query := x.View(x.To(x.Narrow(p.query, 0, 0, p.live), Float64), int64(p.live), p.keyHeads, -1, p.head)
	scores := x.MulScalar(x.MatMul(x.Permute(query, 1, 2, 0, 3), x.Transpose(of(0), 2, 3)), 1/math.Sqrt(float64(p.head)))
	distance := x.Sub(x.Unsqueeze(x.Arange(Int64, p.past, keys, 1), 1), x.Arange(Int64, 0, keys, 1))
	hidden := x.LtScalar(distance, 0)
	if p.window > 0 {
		hidden = x.LogicalOr(hidden, x.GeScalar(distance, float64(p.window)))
	}
	scores = x.MaskedFill(scores, hidden, math.Inf(-1))
	if p.sinks != nil {
		sinks := x.Expand(x.View(x.To(p.sinks, Float64), p.keyHeads, -1, 1, 1), -1, -1, int64(p.live), 1)
		scores = x.Cat([]*Tensor{scores, sinks}, 3)
	}
	out := x.MatMul(x.Narrow(x.Softmax(scores, 3), 3, 0, keys), of(1))
	return float32s(x, x.Reshape(x.Permute(out, 2, 0, 1, 3), -1))
}

// prompt_attention gives what LibTorch's operators give, with one split and with many. Padded rows
// are zeros. Nothing behind the last token is read.
func TestPromptAttention(t *testing.T) {
	torchtest.CheckLeaks(t)
	heads := []struct{ keyHeads, group, head int64 }{{2, 4, 128}, {1, 8, 64}, {2, 3, 80}, {8, 1, 16}, {1, 7, 96}, {2, 2, 256}, {1, 24, 32}}
	for i, h := range heads {
		for j, c := range []struct {
			rows, live, past, window int
			sinks                    bool
		}{
			{1, 1, 0, 0, false}, {64, 37, 0, 0, true}, {64, 64, 100, 0, false}, {64, 1, 700, 0, true}, {128, 70, 1500, 0, false}, {256, 200, 900, 300, true}, {64, 50, 90, 16, false},
		} {
			t.Run(fmt.Sprintf("%dx%dx%d/%d of %d behind %d", h.keyHeads, h.group, h.head, c.live, c.rows, c.past), func(t *testing.T) {
				torchtest.Do(t, torchtest.Device(), func(x *Exec) {
					n := &tokenNumbers{Rand: rand.New(rand.NewPCG(uint64(10*i+j), 9)), x: x.NoGrad(), narrow: []DType{BFloat16, Float16}[(i+j)%2]}
					p := newPromptRows(n, h.keyHeads, h.group, h.head, c.rows, c.live, c.past, c.window, c.sinks)
					got, want := float32s(n.x, p.run()), p.want()
					if d := apart(got[:len(want)], want); !(d < 0.006) {
						t.Errorf("it is %.4f away from LibTorch's operators", d)
					}
					if slices.ContainsFunc(got[len(want):], func(v float32) bool { return v != 0 }) {
						t.Error("padded rows are not zeros")
					}
				})
			})
		}
	}
}

// Two equal keys, far apart, have equal shares, also where their scores are large.
func TestPromptAttention_Far(t *testing.T) {
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		const past = 131_000
		n := &tokenNumbers{Rand: rand.New(rand.NewPCG(3, 9)), x: x.NoGrad(), narrow: BFloat16}
		p := newPromptRows(n, 1, 1, 16, 1, 1, past, 0, false)
		pages := n.x.View(p.memory, -1, 16, 16)
		for _, key := range []int{0, past - 1} {
			page := ToSlice[int64](x, n.x.Narrow(n.x.Select(p.table, 0, 0), 0, key/16, 1))[0]
			n.x.FillInPlace(n.x.Select(n.x.Select(pages, 0, int(page)), 0, key%16), 27)
		}
		n.x.FillInPlace(p.query, 27.5)
		if d := apart(float32s(n.x, p.run()), p.want()); !(d < 0.004) {
			t.Errorf("it is %.4f away from LibTorch's operators", d)
		}
	})
}

// prompt_attention names what it does not take. On the CPU that is also a table that is too short,
// and positions that do not follow each other.
func TestPromptAttention_Refused(t *testing.T) {
	for _, c := range []struct {
		text   string
		onCPU  bool
		change func(x *Exec, p *promptRows)
	}{
		{"query is", false, func(x *Exec, p *promptRows) { p.query = x.Zeros(BFloat16, 4, 2, 8) }},
		{"query is", false, func(x *Exec, p *promptRows) { p.query = x.Zeros(Float32, 4, 2, 16) }},
		{"position is", false, func(x *Exec, p *promptRows) { p.position = x.Zeros(Int32, 4) }},
		{"last is", false, func(x *Exec, p *promptRows) { p.last = p.position }},
		{"before is", false, func(x *Exec, p *promptRows) { p.before = p.position }},
		{"memory is", false, func(x *Exec, p *promptRows) { p.memory = x.Zeros(BFloat16, 2, 3, 2, 8, 16) }},
		{"table is", false, func(x *Exec, p *promptRows) { p.table = x.Zeros(Int64, 3, 2, 2) }},
		{"sinks is", false, func(x *Exec, p *promptRows) { p.sinks = x.Zeros(BFloat16, 3) }},
		{"window is -1", false, func(x *Exec, p *promptRows) { p.window = -1 }},
		{"no gradient", false, func(x *Exec, p *promptRows) { p.query.SetRequiresGrad(true); p.n.x = x }},
		{"of a table of 1 blocks", true, func(x *Exec, p *promptRows) { p.table = x.Zeros(Int64, 2, 1) }},
		{"pages -1 to", true, func(x *Exec, p *promptRows) { p.table = x.Full(Int64, -1, 2, 9) }},
		{"position 2 is 7", true, func(x *Exec, p *promptRows) {
			p.position, p.before = FromSlice(x, []int64{3, 4, 7, -1}, 4), x.Full(Int64, -1, 1)
		}},
		{"and last is", true, func(x *Exec, p *promptRows) { p.last = x.Zeros(Int64, 1) }},
	} {
		if c.onCPU && torchtest.Device().IsCUDA() {
			continue
		}
		err := torchtest.TryDo(t, torchtest.Device(), func(x *Exec) {
			p := newPromptRows(&tokenNumbers{Rand: rand.New(rand.NewPCG(1, 1)), x: x.NoGrad(), narrow: BFloat16}, 1, 2, 16, 4, 4, 30, 0, false)
			c.change(x, p)
			p.run()
		})
		t.Run(c.text, func(t *testing.T) { torchtest.WantError(t, err, ErrInvalidArgument, "prompt_attention", c.text) })
	}
}
