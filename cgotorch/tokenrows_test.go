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

// attentionRows are tokens of different sequences, and the pages of two layers, of which the second
// is used. A row with no keys is padded.
type attentionRows struct {
	n                                 *tokenNumbers
	keys                              []int64 // that each row sees
	keyHeads, heads, blocks           int64   // of the longest row
	qkv, cos, sin, position, before   *Tensor
	table                             *Tensor // [rows, 2 layers, 2, blocks and more]
	memory, queryNorm, keyNorm, sinks *Tensor
	window                            int
	cap                               float64
	offset                            bool
}

func newAttentionRows(n *tokenNumbers, keyHeads, group, head int64, keys ...int64) *attentionRows {
	x, rows, heads := n.x, int64(len(keys)), keyHeads*group
	a := &attentionRows{n: n, keys: keys, keyHeads: keyHeads, heads: heads, blocks: (slices.Max(keys) + 15) / 16, offset: n.IntN(2) == 0}
	pages, width := int64(1), a.blocks+3
	for _, k := range keys {
		pages += (k + 15) / 16
	}
	order := n.Perm(int(pages - 1))
	table, position, before := make([]int64, rows*4*width), make([]int64, rows), make([]int64, rows)
	for r, k := range keys {
		before[r] = int64(16*n.IntN(3)) - 1
		position[r] = before[r] + k
		if k == 0 {
			position[r] = -1 - int64(n.IntN(2))
		}
		for b := range (k + 15) / 16 {
			at, page := (int64(r)*4+2)*width+b, int64(order[0])+1 // page 0 is nobody's
			table[at], table[at+width] = page, pages+page
			order = order[1:]
		}
	}
	a.table, a.position, a.before = FromSlice(x, table, rows, 2, 2, width), FromSlice(x, position, rows), FromSlice(x, before, rows)
	a.memory = n.narrows(1, 2, pages, keyHeads, 16, head)
	a.qkv = n.floats(1, rows, (heads+2*keyHeads)*head)
	if n.IntN(2) == 0 {
		a.qkv = x.To(a.qkv, n.narrow)
	}
	switch n.IntN(3) {
	case 1:
		a.queryNorm, a.keyNorm = n.floats(1, head), n.floats(1, head)
	case 2:
		a.queryNorm, a.keyNorm = n.floats(1, heads*head), n.floats(1, keyHeads*head)
	}
	turned := head / int64(1+n.IntN(2))
	a.cos, a.sin = n.floats(0.7, rows, 1, turned), n.floats(0.7, rows, 1, turned)
	a.sinks = n.maybe(func() *Tensor { return n.narrows(1, heads) })
	if n.IntN(2) == 0 {
		a.window = 1 + n.IntN(int(slices.Max(keys)))
	}
	if n.IntN(2) == 0 {
		a.cap = 3
	}
	return a
}

// attend runs some of the rows over a table of so many blocks.
func (a *attentionRows) attend(memory *Tensor, blocks int64, edge string, rows ...int64) []float32 {
	x, index := a.n.x, FromSlice(a.n.x, rows, int64(len(rows)))
	of := func(t *Tensor) *Tensor { return x.IndexSelect(t, 0, index) }
	table := x.Select(x.Narrow(of(a.table), 3, 0, int(blocks)), 1, 1)
	if len(rows) == 1 && a.n.IntN(2) == 0 {
		table = x.Select(table, 0, 0)
	}
	arrived := x.Zeros(Int32, 8*a.keyHeads*int64(len(rows))+3*int64(len(rows)/2))
	scale := 1 / math.Sqrt(float64(memory.Shape()[4]))
	qkv, cos, sin, position, before := of(a.qkv), of(a.cos), of(a.sin), of(a.position), of(a.before)
	ToSlice[int64](x, before) // waits for all of them, because the kernel reads some early
	out := x.Call1("streamtorch::token_attention", qkv, a.queryNorm, a.keyNorm, 1e-6, a.offset, cos, sin, position, memory, table, before,
		a.sinks, a.heads, a.window, scale, a.cap, arrived, edge)
	if slices.ContainsFunc(ToSlice[int32](x, arrived), func(v int32) bool { return v != 0 }) {
		panic("token_attention leaves a count in arrived")
	}
	return float32s(x, out)
}

// token_attention gives each of several rows what it gives the row alone. Padded rows are zeros,
// and write no keys. A row has the same bits beside other rows, and with a longer table.
func TestTokenRows_Attention(t *testing.T) {
	torchtest.CheckLeaks(t)
	heads := []struct{ keyHeads, group, head int64 }{{2, 4, 64}, {1, 1, 16}, {3, 2, 80}, {2, 7, 96}, {2, 8, 128}, {1, 3, 256}, {8, 4, 128}}
	for i, h := range heads {
		for j, keys := range [][]int64{{1, 40, 0, 16}, {700, 5, 17, 2100, 0, 1}, {512, 513}} {
			t.Run(fmt.Sprintf("%dx%dx%d/%d", h.keyHeads, h.group, h.head, keys), func(t *testing.T) {
				torchtest.Do(t, torchtest.Device(), func(x *Exec) {
					n := &tokenNumbers{Rand: rand.New(rand.NewPCG(uint64(10*i+j), 8)), x: x.NoGrad(), narrow: []DType{BFloat16, Float16}[i%2]}
					a := newAttentionRows(n, h.keyHeads, h.group, h.head, keys...)
					all, want := make([]int64, len(keys)), n.x.Clone(a.memory)
					for r := range all {
						all[r] = int64(r)
					}
					got := a.attend(a.memory, a.blocks, "full", all...)
					width := len(got) / len(keys)
					row := func(of []float32, r int) []float32 { return of[r*width : (r+1)*width] }
					for r, k := range keys {
						if k == 0 {
							if slices.ContainsFunc(row(got, r), func(v float32) bool { return v != 0 }) {
								t.Errorf("the padded row %d is not zeros", r)
							}
							continue
						}
						if d := apart(row(got, r), a.attend(want, a.blocks, "full", int64(r))); !(d < 0.006) {
							t.Errorf("row %d of %d keys is %.4f away from what it is alone", r, k, d)
						}
					}
					if d := apart(float32s(n.x, a.memory), float32s(n.x, want)); !(d < 1e-4) {
						t.Errorf("the cache is %.5f away from that of single rows", d)
					}
					for _, edge := range []string{"early", "wait"} {
						few := []int64{all[len(all)-1], 0}
						beside := a.attend(a.memory, a.blocks+3, edge, few...)
						for to, r := range few {
							if !slices.Equal(row(beside, to), row(got, int(r))) {
								t.Errorf("edge %s: row %d has other bits beside other rows and with a longer table", edge, r)
							}
						}
					}
				})
			})
		}
	}
}

// endOfStep is what a kernel that ends a step leaves: tokens, positions and results.
func endOfStep(x *Exec, position []int64, call func(token, position, result *Tensor)) string {
	rows := int64(len(position))
	token, at, result := x.Full(Int64, -5, rows), FromSlice(x, position, rows), x.Full(Float64, -7, rows, 3)
	call(token, at, result)
	return fmt.Sprint(ToSlice[int64](x, token), ToSlice[int64](x, at), ToSlice[float64](x, result))
}

// joined is endOfStep of rows one by one. Padded rows keep what they have.
func joined(x *Exec, position []int64, call func(row int, token, position, result *Tensor)) string {
	return endOfStep(x, position, func(token, at, result *Tensor) {
		for r, p := range position {
			if p >= 0 {
				call(r, x.Narrow(token, 0, r, 1), x.Narrow(at, 0, r, 1), x.Narrow(result, 0, r, 1))
			}
		}
	})
}

// token_likeliest ends each of several rows as it ends the row alone.
func TestTokenRows_Likeliest(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		n := &tokenNumbers{Rand: rand.New(rand.NewPCG(1, 8)), x: x.NoGrad()}
		for _, count := range []int64{1, 9, 1000, 40_000} {
			position, logits := []int64{3, -1, 0, 8, -4, 2}, n.floats(2, 6, count)
			x.FillInPlace(x.Narrow(logits, 0, 3, 1), math.NaN())
			for _, edge := range []string{"full", "early", "wait"} {
				got := endOfStep(n.x, position, func(token, at, result *Tensor) {
					n.x.Call("streamtorch::token_likeliest", logits, token, at, result, edge)
				})
				want := joined(n.x, position, func(r int, token, at, result *Tensor) {
					n.x.Call("streamtorch::token_likeliest", x.Narrow(logits, 0, r, 1), token, at, result, edge)
				})
				if got != want {
					t.Errorf("%d logits, edge %s:\ngot  %s\nwant %s", count, edge, got, want)
				}
			}
		}
	})
}

// token_drawn draws for each of several rows what the row's own numbers tell, whatever others need.
func TestTokenRows_Drawn(t *testing.T) {
	torchtest.CheckLeaks(t)
	numbers := [][7]float32{{0.7, 1, 0, 0}, {1, 0.9, 0, 0}, {1, 1, 0.05, 0}, {1, 1, 0, 40}, {1.3, 0.8, 0.1, 5}, {0.9, 1, 0, 1}, {}, {1.5, 2, -1, 0.5}, {1, 0.6, 0, 700}}
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		n := &tokenNumbers{Rand: rand.New(rand.NewPCG(2, 8)), x: x.NoGrad()}
		rows := int64(len(numbers))
		var all, uniforms []float32
		for _, of := range numbers {
			all = append(all, of[:]...)
			for range 5 {
				uniforms = append(uniforms, n.Float32())
			}
		}
		parameters, random := FromSlice(x, all, rows, 7), FromSlice(x, uniforms, rows, 5)
		position := []int64{0, 1, 2, 3, 0, 1, -1, 2, 3}
		for _, count := range []int64{1, 9, 1031, 32_000} {
			logits := n.floats(1, rows, count)
			changed := x.MulScalar(logits, 1.5)
			of := func(t *Tensor, r int) *Tensor { return x.Narrow(t, 0, r, 1) }
			want := joined(n.x, position, func(r int, token, at, result *Tensor) {
				top, filter := numbers[r][3] >= 1, numbers[r][1] < 1 || numbers[r][2] > 0
				n.x.Call("streamtorch::token_drawn", of(logits, r), of(changed, r), of(parameters, r), of(random, r), token, at, result, top, filter, "full")
			})
			for i, edge := range []string{"full", "early", "wait"} {
				for _, flag := range []bool{true, false} {
					var likeliest int64
					got := endOfStep(n.x, position, func(token, at, result *Tensor) {
						n.x.Call("streamtorch::token_drawn", logits, changed, parameters, random, token, at, result, flag, flag != (i == 1), edge)
						likeliest = ToSlice[int64](x, token)[5]
					})
					if got != want {
						t.Errorf("%d logits, edge %s:\ngot  %s\nwant %s", count, edge, got, want)
					}
					if best := int64(x.Item(x.ArgMax(of(changed, 5), 1, ReduceOptions{}))); likeliest != best {
						t.Errorf("%d logits: with a top-k of 1 the token is %d, want %d", count, likeliest, best)
					}
				}
			}
		}
	})
}

// token_embedding gives each row what it gives the row alone. Padded rows are zeros, and their
// tokens count for nothing.
func TestTokenRows_Embedding(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		n := &tokenNumbers{Rand: rand.New(rand.NewPCG(3, 8)), x: x.NoGrad(), narrow: BFloat16}
		table, frequencies := n.narrows(1, 11, 300), []*Tensor{n.floats(1, 32), n.floats(1, 7)}
		token, position := FromSlice(x, []int64{3, 1 << 40, 10, 0}, 4), FromSlice(x, []int64{5, -1, 4000, 0}, 4)
		parts := func(token, position *Tensor) []*Tensor {
			return n.x.Call("streamtorch::token_embedding", table, token, position, frequencies, []float64{1, 0.5}, 3.0)[0].([]*Tensor)
		}
		got := parts(token, position)
		for i, shape := range [][]int64{{4, 300}, {4, 1, 32}, {4, 1, 32}, {4, 1, 7}, {4, 1, 7}} {
			if !slices.Equal(got[i].Shape(), shape) || !slices.Equal(x.View(got[i], -1).Shape(), []int64{got[i].Numel()}) {
				t.Errorf("part %d is %v, want %v without gaps", i, got[i].Shape(), shape)
			}
		}
		for r := range 4 {
			want := []*Tensor{x.Zeros(Float32, 300), x.Zeros(Float32, 32), x.Zeros(Float32, 32), x.Zeros(Float32, 7), x.Zeros(Float32, 7)}
			if r != 1 {
				want = parts(x.Narrow(token, 0, r, 1), x.Narrow(position, 0, r, 1))
			}
			for i := range want {
				if !slices.Equal(float32s(x, x.Narrow(got[i], 0, r, 1)), float32s(x, want[i])) {
					t.Errorf("part %d of row %d differs from the row alone", i, r)
				}
			}
		}
	})
}

// The operators name the rows that they do not take.
func TestTokenRows_Refused(t *testing.T) {
	attend := func(x *Exec, qkv *Tensor, table, arrived []int64) {
		ones := func(shape ...int64) *Tensor { return x.Ones(Float32, shape...) }
		x.Call1("streamtorch::token_attention", qkv, nil, nil, 1e-6, false, ones(2, 1, 16), ones(2, 1, 16), x.Zeros(Int64, 2), x.Zeros(BFloat16, 2, 3, 1, 16, 16),
			x.Zeros(Int64, table...), x.Full(Int64, -1, 2), nil, 2, 0, 1.0, 0.0, x.Zeros(Int32, arrived...), "full")
	}
	draw := func(x *Exec, numbers, uniforms, result *Tensor) {
		x.Call("streamtorch::token_drawn", x.Ones(Float32, 2, 9), x.Ones(Float32, 2, 9), numbers, uniforms, x.Zeros(Int64, 2), x.Zeros(Int64, 2), result, true, true, "full")
	}
	norm := func(x *Exec, sum, out, outNorm, weight *Tensor) {
		x.Call1("streamtorch::add_rms_norm", sum, out, outNorm, weight, 1e-6, false, BFloat16)
	}
	for _, c := range []struct {
		op, text string
		call     func(x *Exec)
	}{
		{"token_attention", "for each of 2 rows", func(x *Exec) { attend(x, x.Ones(Float32, 1, 64), []int64{2, 2, 1}, []int64{16}) }},
		{"token_attention", "table is", func(x *Exec) { attend(x, x.Ones(Float32, 2, 64), []int64{2, 1}, []int64{16}) }},
		{"token_attention", "arrived is", func(x *Exec) { attend(x, x.Ones(Float32, 2, 64), []int64{2, 2, 1}, []int64{15}) }},
		{"token_attention", "qkv is", func(x *Exec) { attend(x, x.Ones(Float16, 2, 64), []int64{2, 2, 1}, []int64{16}) }},
		{"token_likeliest", "logits is", func(x *Exec) {
			x.Call("streamtorch::token_likeliest", x.Ones(Float32, 18), x.Zeros(Int64, 2), x.Zeros(Int64, 2), x.Zeros(Float64, 2, 2), "full")
		}},
		{"token_likeliest", "position is", func(x *Exec) {
			x.Call("streamtorch::token_likeliest", x.Ones(Float32, 2, 9), x.Zeros(Int64, 2), x.Zeros(Int64, 3), x.Zeros(Float64, 2, 2), "full")
		}},
		{"token_drawn", "numbers is", func(x *Exec) { draw(x, x.Ones(Float32, 2, 3), x.Ones(Float32, 2, 9), x.Zeros(Float64, 2, 2)) }},
		{"token_drawn", "uniforms is", func(x *Exec) { draw(x, x.Ones(Float32, 2, 4), x.Ones(Float32, 9), x.Zeros(Float64, 2, 2)) }},
		{"token_drawn", "result is", func(x *Exec) { draw(x, x.Ones(Float32, 2, 4), x.Ones(Float32, 2, 9), x.Zeros(Float64, 4)) }},
		{"token_embedding", "position is", func(x *Exec) {
			x.Call("streamtorch::token_embedding", x.Ones(Float32, 4, 8), x.Zeros(Int64, 2), x.Zeros(Int64, 1), []*Tensor{}, []float64{}, 1.0)
		}},
		{"add_rms_norm", "sum is", func(x *Exec) { norm(x, x.Ones(Float16, 2, 8), nil, nil, nil) }},
		{"add_rms_norm", "out is", func(x *Exec) { norm(x, x.Ones(Float32, 2, 8), x.Ones(Float32, 1, 8), nil, nil) }},
		{"add_rms_norm", "there is no out", func(x *Exec) { norm(x, x.Ones(Float32, 2, 8), nil, x.Ones(Float32, 8), nil) }},
		{"add_rms_norm", "norm is", func(x *Exec) { norm(x, x.Ones(Float32, 2, 8), nil, nil, x.Ones(Float32, 9)) }},
		{"gated", "the activation is", func(x *Exec) { x.Call1("streamtorch::gated", x.Ones(Float32, 2, 8), "relu", 0.0, 0.0) }},
		{"gated", "want a floating dtype and", func(x *Exec) { x.Call1("streamtorch::gated", x.Ones(Float32, 2, 7), "silu", 0.0, 0.0) }},
	} {
		err := torchtest.TryDo(t, torchtest.Device(), func(x *Exec) { c.call(x.NoGrad()) })
		torchtest.WantError(t, err, ErrInvalidArgument, c.op, c.text)
	}
}
