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

// ropedRows are tokens of one sequence, and the pages of two layers, of which the second is used.
type ropedRows struct {
	n                       *tokenNumbers
	heads, keyHeads, head   int64
	eps                     float64
	offset                  bool
	places                  []int64    // of the tokens, counted from the table's first
	pages                   [2][]int64 // of keys and of values, for each block
	qkv, queryNorm, keyNorm *Tensor
	cos, sin, memory        *Tensor
	position, table, before *Tensor
}

// newRopedRows draws rows with one of three norms: none, one of each head, or one of all heads.
func newRopedRows(n *tokenNumbers, norm int, keyHeads, group, head int64, rows int) *ropedRows {
	x, wide := n.x, Float32
	if n.narrow == Float64 {
		wide = Float64
	}
	floats := func(scale float64, shape ...int64) *Tensor { return x.To(n.floats(scale, shape...), wide) }
	r := &ropedRows{n: n, heads: keyHeads * group, keyHeads: keyHeads, head: head, eps: 1e-2, offset: n.IntN(2) == 0}
	blocks := int64(rows/16 + 2)
	pages, first := blocks+3, int64(16*n.IntN(3))
	for _, place := range n.Perm(int(16 * blocks))[:rows] {
		r.places = append(r.places, int64(place))
	}
	table, positions := make([]int64, 4*(blocks+2)), make([]int64, rows)
	for kind := range r.pages {
		for at, page := range n.Perm(int(pages))[:blocks] {
			r.pages[kind] = append(r.pages[kind], int64(kind)*pages+int64(page))
			table[int64(2+kind)*(blocks+2)+int64(at)] = r.pages[kind][at]
		}
	}
	for i, place := range r.places {
		positions[i] = first + place
	}
	r.table = x.Select(x.Narrow(FromSlice(x, table, 2, 2, blocks+2), 2, 0, int(blocks)), 0, 1)
	r.position, r.before = FromSlice(x, positions, int64(rows)), FromSlice(x, []int64{first - 1}, 1)
	r.memory, r.qkv = n.narrows(1, 2, pages, keyHeads, 16, head), n.narrows(1, int64(rows), (r.heads+2*keyHeads)*head)
	switch norm {
	case 1:
		r.queryNorm, r.keyNorm = floats(1, head), floats(1, head)
	case 2:
		r.queryNorm, r.keyNorm = floats(1, r.heads*head), floats(1, keyHeads*head)
	}
	turned := head / int64(1+n.IntN(2))
	if n.IntN(4) == 0 {
		turned = 0
	}
	r.cos, r.sin = floats(0.7, int64(rows), 1, turned), floats(0.7, int64(rows), 1, turned)
	return r
}

// run calls the operator with some of the rows.
func (r *ropedRows) run(memory *Tensor, first, rows int) *Tensor {
	x := r.n.x
	of := func(t *Tensor) *Tensor { return x.Narrow(t, 0, first, rows) }
	return x.Call1("streamtorch::rope_into_pages", of(r.qkv), r.queryNorm, r.keyNorm, r.eps, r.offset, of(r.cos), of(r.sin), of(r.position), memory, r.table, r.before, r.heads)
}

// want returns queries, keys and values, [rows, heads, head], by LibTorch's operators in float64.
func (r *ropedRows) want() (query, key, value *Tensor) {
	x, rows := r.n.x, int64(len(r.places))
	wide := func(t *Tensor) *Tensor { return x.To(t, Float64) }
	heads := func(from, count int64) *Tensor {
		return wide(x.Narrow(x.View(r.qkv, rows, -1, r.head), 1, int(from), int(count)))
	}
	roped := func(t, norm *Tensor) *Tensor {
		if norm != nil {
			together, weight := x.Reshape(t, rows, -1, norm.Numel()), wide(norm)
			if r.offset {
				weight = x.AddScalar(weight, 1)
			}
			mean := x.MulScalar(x.SumDim(x.Square(together), []int64{2}, SumOptions{KeepDim: true}), 1/float64(norm.Numel()))
			t = x.View(x.Mul(x.Mul(together, x.Rsqrt(x.AddScalar(mean, r.eps))), weight), t.Shape()...)
		}
		turned := int(r.cos.Shape()[2])
		left, right := x.Narrow(t, 2, 0, turned/2), x.Narrow(t, 2, turned/2, turned/2)
		turns := x.Add(x.Mul(x.Cat([]*Tensor{left, right}, 2), wide(r.cos)), x.Mul(x.Cat([]*Tensor{right, left}, 2), wide(r.sin)))
		return x.Cat([]*Tensor{turns, x.Narrow(t, 2, turned, int(r.head)-turned)}, 2)
	}
	return roped(heads(0, r.heads), r.queryNorm), roped(heads(r.heads, r.keyHeads), r.keyNorm), heads(r.heads+r.keyHeads, r.keyHeads)
}

// cached returns the keys or the values of row i in a cache, [keyHeads, head].
func (r *ropedRows) cached(memory *Tensor, kind, i int) *Tensor {
	x, place := r.n.x, r.places[i]
	all := x.View(memory, -1, r.keyHeads, 16, r.head)
	return x.Select(x.Select(all, 0, int(r.pages[kind][place/16])), 1, int(place%16))
}

// rope_into_pages gives what LibTorch's operators give, writes the rows of its tokens alone, and
// gives a row the same bits in any batch.
func TestRopeIntoPages(t *testing.T) {
	torchtest.CheckLeaks(t)
	heads := []struct{ keyHeads, group, head int64 }{{2, 4, 64}, {1, 1, 16}, {3, 2, 80}, {2, 7, 96}, {2, 8, 128}, {1, 3, 256}, {2, 1, 320}}
	for i, h := range heads {
		for seed := range 12 {
			dtype, norm, rows := []DType{BFloat16, Float16, Float32, Float64}[seed%4], seed%3, []int{1, 7, 50}[(seed+i)%3]
			t.Run(fmt.Sprintf("%dx%dx%d/%v/%d", h.keyHeads, h.group, h.head, dtype, norm), func(t *testing.T) {
				torchtest.Do(t, torchtest.Device(), func(x *Exec) {
					n := &tokenNumbers{Rand: rand.New(rand.NewPCG(uint64(100*i+seed), 7)), x: x.NoGrad(), narrow: dtype}
					checkRopedRows(t, newRopedRows(n, norm, h.keyHeads, h.group, h.head, rows))
				})
			})
		}
	}
}

func checkRopedRows(t *testing.T, r *ropedRows) {
	t.Helper()
	x, rows := r.n.x, len(r.places)
	most := map[DType]float64{BFloat16: 0.004, Float16: 0.001, Float32: 1e-6, Float64: 1e-13}[r.n.narrow]
	near := func(what string, got, want *Tensor) {
		t.Helper()
		got, want = x.To(got, Float64), x.To(want, Float64)
		if d := math.Sqrt(x.Item(x.Sum(x.Square(x.Sub(got, want)))) / x.Item(x.Sum(x.Square(want)))); !(d < most) {
			t.Errorf("%s: %.2g away", what, d)
		}
	}
	memory, one := x.Clone(r.memory), x.Clone(r.memory)
	query := r.run(memory, 0, rows)
	if !slices.Equal(query.Shape(), []int64{int64(rows), r.heads, r.head}) || query.DType() != r.n.narrow {
		t.Fatalf("the queries are %v", query)
	}
	wantQuery, wantKey, wantValue := r.want()
	near("queries", query, wantQuery)
	rest := x.Clone(memory)
	for i := range rows {
		near(fmt.Sprintf("the keys of row %d", i), r.cached(memory, 0, i), x.Select(wantKey, 0, i))
		if !x.Equal(x.To(r.cached(memory, 1, i), Float64), x.Select(wantValue, 0, i)) {
			t.Errorf("the values of row %d are others", i)
		}
		for kind := range r.pages {
			x.CopyInPlace(r.cached(rest, kind, i), r.cached(r.memory, kind, i))
		}
		if !x.Equal(r.run(one, i, 1), x.Narrow(query, 0, i, 1)) {
			t.Errorf("the queries of row %d have other bits alone", i)
		}
	}
	if !x.Equal(rest, r.memory) {
		t.Error("the cache has changed where no token is")
	}
	if !x.Equal(one, memory) {
		t.Error("rows one by one leave other bits in the cache")
	}
	if rows > 1 && (!x.Device().IsCUDA() || r.n.narrow != Float64 && r.head <= 256) {
		x.FillInPlace(x.Narrow(r.position, 0, 1, rows-1), -3)
		passed := x.Clone(r.memory)
		if got := r.run(passed, 0, rows); !x.Equal(x.Narrow(got, 0, 0, 1), x.Narrow(query, 0, 0, 1)) {
			t.Error("the queries of row 0 have other bits before rows that are passed over")
		}
		for kind := range r.pages {
			x.CopyInPlace(r.cached(rest, kind, 0), r.cached(memory, kind, 0))
		}
		if !x.Equal(passed, rest) {
			t.Error("rows that are passed over have changed the cache")
		}
		x.FillInPlace(r.position, -1)
		if r.run(passed, 0, rows); !x.Equal(passed, rest) {
			t.Error("a call whose rows are all passed over has changed the cache")
		}
	}
}

// rope_into_pages names what it does not take. On the CPU that is also a number that is not in the
// table, or a page that is not in memory.
func TestRopeIntoPages_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	type arguments struct {
		qkv, queryNorm, keyNorm, cos, sin, position, memory, table, before *Tensor
		heads                                                              int
	}
	ints := func(x *Exec, values ...int64) *Tensor { return FromSlice(x, values, int64(len(values))) }
	for i, c := range []struct {
		text       string
		everywhere bool // else a device does not look at the numbers
		change     func(x *Exec, a *arguments)
	}{
		{"want a contiguous [2, pages", true, func(x *Exec, a *arguments) { a.memory = x.Zeros(Float32, 2, 3, 16, 8) }},
		{"want a contiguous [2, pages", true, func(x *Exec, a *arguments) { a.memory = x.Zeros(Float32, 1, 3, 1, 16, 8) }},
		{"want a contiguous [2, pages", true, func(x *Exec, a *arguments) { a.memory = x.Zeros(Float32, 2, 3, 1, 8, 8) }},
		{"want a contiguous [2, pages", true, func(x *Exec, a *arguments) { a.memory = x.Zeros(Float32, 2, 0, 1, 16, 8) }},
		{"want a contiguous [2, pages", true, func(x *Exec, a *arguments) { a.memory = x.Zeros(Int32, 2, 3, 1, 16, 8) }},
		{"want a contiguous [2, pages", true, func(x *Exec, a *arguments) { a.memory = x.Transpose(x.Zeros(Float32, 3, 2, 1, 16, 8), 0, 1) }},
		{"there are 0 heads", true, func(x *Exec, a *arguments) { a.heads = 0 }},
		{"0 rows", true, func(x *Exec, a *arguments) { a.position = x.Zeros(Int64, 0) }},
		{"qkv is", true, func(x *Exec, a *arguments) { a.heads = 3 }},
		{"qkv is", true, func(x *Exec, a *arguments) { a.qkv = x.Ones(Float16, 2, 32) }},
		{"qkv is", true, func(x *Exec, a *arguments) { a.qkv = x.Transpose(x.Ones(Float32, 32, 2), 0, 1) }},
		{"go together", true, func(x *Exec, a *arguments) { a.keyNorm = x.Ones(Float32, 8) }},
		{"query_norm is", true, func(x *Exec, a *arguments) { a.queryNorm, a.keyNorm = x.Ones(Float32, 9), x.Ones(Float32, 8) }},
		{"query_norm is", true, func(x *Exec, a *arguments) { a.queryNorm, a.keyNorm = x.Ones(BFloat16, 8), x.Ones(Float32, 8) }},
		{"key_norm is", true, func(x *Exec, a *arguments) { a.queryNorm, a.keyNorm = x.Ones(Float32, 16), x.Ones(Float32, 16) }},
		{"want an even number", true, func(x *Exec, a *arguments) { a.cos, a.sin = x.Ones(Float32, 2, 1, 3), x.Ones(Float32, 2, 1, 3) }},
		{"want an even number", true, func(x *Exec, a *arguments) { a.cos, a.sin = x.Ones(Float32, 2, 1, 10), x.Ones(Float32, 2, 1, 10) }},
		{"want an even number", true, func(x *Exec, a *arguments) { a.cos = x.Full(Float32, 1) }},
		{"cos is", true, func(x *Exec, a *arguments) { a.cos = x.Ones(Float32, 1, 1, 8) }},
		{"cos is", true, func(x *Exec, a *arguments) { a.cos = x.Ones(Float64, 2, 1, 8) }},
		{"sin is", true, func(x *Exec, a *arguments) { a.sin = x.Ones(Float32, 2, 1, 4) }},
		{"position is", true, func(x *Exec, a *arguments) { a.position = x.Zeros(Int32, 2) }},
		{"before is", true, func(x *Exec, a *arguments) { a.before = ints(x, -1, -1) }},
		{"table is", true, func(x *Exec, a *arguments) { a.table = x.Zeros(Int64, 2) }},
		{"table is", true, func(x *Exec, a *arguments) { a.table = x.Zeros(Int64, 3, 2) }},
		{"table is", true, func(x *Exec, a *arguments) { a.table = x.Zeros(Int64, 2, 0) }},
		{"table is", true, func(x *Exec, a *arguments) { a.table = x.Transpose(x.Zeros(Int64, 2, 2), 0, 1) }},
		{"table is", true, func(x *Exec, a *arguments) { a.table = x.Zeros(Int32, 2, 2) }},
		{"it has no gradient", true, func(x *Exec, a *arguments) { _ = a.memory.SetRequiresGrad(true) }},
		{"in blocks of the table -1 to 0, and there are 2", false, func(x *Exec, a *arguments) { a.before = ints(x, 3) }},
		{"in blocks of the table 0 to 2, and there are 2", false, func(x *Exec, a *arguments) { a.position = ints(x, 3, 32) }},
		{"in pages of memory -1 to 1, and there are 6", false, func(x *Exec, a *arguments) { a.table = FromSlice(x, []int64{1, -1, 4, 5}, 2, 2) }},
		{"in pages of memory 4 to 6, and there are 6", false, func(x *Exec, a *arguments) { a.table = FromSlice(x, []int64{1, 2, 4, 6}, 2, 2) }},
	} {
		if !c.everywhere && torchtest.Device().IsCUDA() {
			continue
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			err := torchtest.TryDo(t, torchtest.Device(), func(x *Exec) {
				a := arguments{qkv: x.Ones(Float32, 2, 32), cos: x.Ones(Float32, 2, 1, 8), sin: x.Ones(Float32, 2, 1, 8), position: ints(x, 3, 16),
					memory: x.Zeros(Float32, 2, 3, 1, 16, 8), table: FromSlice(x, []int64{1, 2, 4, 5}, 2, 2), before: ints(x, -1), heads: 2}
				c.change(x, &a)
				x.Call1("streamtorch::rope_into_pages", a.qkv, a.queryNorm, a.keyNorm, 1e-6, false, a.cos, a.sin, a.position, a.memory, a.table, a.before, a.heads)
			})
			torchtest.WantError(t, err, ErrInvalidArgument, "rope_into_pages", c.text)
		})
	}
}
