package cgotorch_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// tokenNumbers draws the arguments of an operator for one token. The same seed gives the same
// numbers, rounded to `narrow`. On the reference they are then float32.
type tokenNumbers struct {
	*rand.Rand
	x         *Exec
	narrow    DType
	reference bool
	codes4    string // the form of weights of 4 bits, or ""
}

func (n *tokenNumbers) floats(scale float64, shape ...int64) *Tensor {
	data := make([]float32, elementsOf(shape))
	for i := range data {
		data[i] = float32(n.NormFloat64() * scale)
	}
	return FromSlice(n.x, data, shape...)
}

func (n *tokenNumbers) narrows(scale float64, shape ...int64) *Tensor {
	t := n.x.To(n.floats(scale, shape...), n.narrow)
	if n.reference {
		return n.x.To(t, Float32)
	}
	return t
}

// maybe returns a tensor in half of the cases, and else nil.
func (n *tokenNumbers) maybe(make func() *Tensor) *Tensor {
	t := make()
	if n.IntN(2) == 0 {
		return nil
	}
	return t
}

func elementsOf(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	return n
}

// tokenResults runs `call` on the CPU in float32, and then on the device of the test, with each
// edge and each form in turn. `call` returns all that the operator writes. The kernels may be
// `most` of a result's length away from the reference. LibTorch's operators on the CPU may be
// further away, because they round each step. The results of a form must be equal for all edges,
// and those of a ring for all its sizes.
func tokenResults(t *testing.T, seed uint64, forms [][]int64, most float64, call func(n *tokenNumbers, edge string, form []int64) [][]float32) {
	t.Helper()
	narrow := []DType{BFloat16, Float16}[seed%2]
	var want [][]float32
	run := func(d Device, reference bool, edge string, form []int64) (results [][]float32) {
		torchtest.Do(t, d, func(x *Exec) {
			n := &tokenNumbers{Rand: rand.New(rand.NewPCG(seed, 3)), x: x.NoGrad(), narrow: narrow, reference: reference}
			results = call(n, edge, form)
		})
		return results
	}
	want = run(CPU, true, "full", nil)
	edges := []string{"full", "early", "wait"}
	if !torchtest.Device().IsCUDA() {
		forms, edges, most = forms[:1], edges[:1], max(most, 0.02)
	}
	first := map[bool][][]float32{} // of the ring, and of the direct form
	for _, form := range forms {
		direct := len(form) == 1
		for _, edge := range edges {
			got := run(torchtest.Device(), false, edge, form)
			if first[direct] == nil {
				first[direct] = got
			}
			for i := range got {
				if d := apart(got[i], want[i]); !(d < most) {
					t.Errorf("%v, sizes %v, edge %s: result %d is %.4f away", narrow, form, edge, i, d)
				}
				if !slices.Equal(got[i], first[direct][i]) {
					t.Errorf("%v, sizes %v, edge %s: result %d has other bits than with a full edge and other sizes", narrow, form, edge, i)
				}
			}
		}
	}
}

// apart returns how far two vectors are apart, relative to the length of the second.
func apart(got, want []float32) float64 {
	var between, length float64
	for i := range want {
		between += math.Pow(float64(got[i]-want[i]), 2)
		length += math.Pow(float64(want[i]), 2)
	}
	return math.Sqrt(between / length)
}

func float32s(x *Exec, t *Tensor) []float32 { return ToSlice[float32](x, x.To(t, Float32)) }

// linear draws what else a product with a weight [rows, k] takes, and returns what token_linear
// writes. `of` are the arguments behind the form.
func (n *tokenNumbers) linear(weight, bias *Tensor, rows, k int64, epilogue, edge string, form []int64, of ...any) [][]float32 {
	x := n.x
	var residual, norm, late, lateNorm, sum *Tensor
	if epilogue == "add" {
		residual = n.floats(1, 1, rows)
	}
	input := n.narrows(1, 1, k)
	if k <= 8192 && n.IntN(3) > 0 {
		input, norm = n.floats(1, 1, k), n.floats(1, k)
		if n.IntN(2) == 0 {
			late, lateNorm, sum = n.floats(1, 1, k), n.floats(1, k), x.Zeros(Float32, 1, k)
		}
	}
	if form == nil {
		form = []int64{}
	}
	args := []any{input, weight, bias, norm, 1e-5, n.IntN(2) == 0, epilogue, residual, late, lateNorm, sum, edge, form}
	results := [][]float32{float32s(x, x.Call1("streamtorch::token_linear", append(args, of...)...))}
	if sum != nil {
		results = append(results, float32s(x, sum))
	}
	return results
}

// token_linear gives what LibTorch's operators give, for columns and rows of all kinds, in each of
// its forms.
func TestTokenLinear(t *testing.T) {
	torchtest.CheckLeaks(t)
	columns := []int64{8, 72, 896, 1032, 1152, 2304, 2560, 2880, 5120, 18944}
	for i, k := range columns {
		for j, epilogue := range []string{"", "float", "add", "silu", "gelu_tanh"} {
			t.Run(fmt.Sprintf("%d/%s", k, epilogue), func(t *testing.T) {
				most := 0.006
				if k < 100 {
					most = 0.02 // the input is rounded, and few elements do not even that out
				}
				tokenResults(t, uint64(10*i+j), [][]int64{{}, {0}, {2, 1}, {12, 6}}, most, func(n *tokenNumbers, edge string, form []int64) [][]float32 {
					rows := []int64{46, 2, 2048}[n.IntN(3)]
					if epilogue == "float" {
						rows += int64(n.IntN(2))
					}
					weight, bias := n.narrows(1/math.Sqrt(float64(k)), rows, k), n.maybe(func() *Tensor { return n.narrows(1, rows) })
					return n.linear(weight, bias, rows, k, epilogue, edge, form)
				})
			})
		}
	}
}

// codes draws codes of a weight and the scales of its rows. On the reference the weight is their
// product, in float32.
func (n *tokenNumbers) codes(rows, columns int64, float8 bool) (weight, scale *Tensor, dtype any) {
	x, width := n.x, (columns+15)/16*16
	codes, factors := make([]int8, rows*width), make([]float32, rows)
	for i := range codes {
		codes[i] = int8(n.IntN(255) - 127)
		if float8 && codes[i]&127 == 127 {
			codes[i] = 0 // a NaN
		}
	}
	for i := range factors {
		factors[i] = float32((0.5 + n.Float64()) / 70 / math.Sqrt(float64(columns)))
		if float8 {
			factors[i] /= 2
		}
	}
	weight, scale = FromSlice(x, codes, rows, width), FromSlice(x, factors, rows)
	if float8 {
		weight = x.Call1("aten::view.dtype", weight, DType(24))
	}
	if n.reference {
		return x.Mul(x.To(x.Narrow(weight, 1, 0, int(columns)), Float32), x.Unsqueeze(scale, 1)), nil, nil
	}
	return weight, scale, n.narrow
}

// token_linear multiplies codes of 8 bits, times the scales of their rows, with inputs that it does
// not round.
func TestTokenLinear_Codes(t *testing.T) {
	torchtest.CheckLeaks(t)
	for i, k := range []int64{8, 72, 896, 1032, 1152, 2560, 2880, 4096, 14336, 32768} {
		for j, epilogue := range []string{"", "float", "add", "silu", "gelu_tanh"} {
			t.Run(fmt.Sprintf("%d/%s", k, epilogue), func(t *testing.T) {
				most := map[string]float64{"float": 3e-5, "add": 3e-5}[epilogue]
				if most == 0 {
					most = 0.006 // the results are rounded
				}
				tokenResults(t, uint64(10*i+j), [][]int64{{}, {1, 1}, {3, 2}, {12, 6}}, most, func(n *tokenNumbers, edge string, form []int64) [][]float32 {
					rows, float8 := []int64{46, 2, 2112, 3072}[n.IntN(4)], n.IntN(2) == 0
					rows = min(rows, max(46, (1<<22)/k/2*2))
					if epilogue == "float" {
						rows += int64(n.IntN(2))
					}
					weight, scale, dtype := n.codes(rows, k, float8)
					bias := n.maybe(func() *Tensor { return n.narrows(1, rows) })
					return n.linear(weight, bias, rows, k, epilogue, edge, form, scale, dtype)
				})
			})
		}
	}
}

// token_linear multiplies codes of 4 bits in the same way.
func TestTokenLinear_Codes4(t *testing.T) {
	torchtest.CheckLeaks(t)
	for i, k := range []int64{32, 96, 896, 1152, 2560, 2880, 4096, 14336, 32768} {
		for j, epilogue := range []string{"", "float", "add", "silu", "gelu_tanh"} {
			codes4 := []string{"mxfp4", "int4", "int4-128"}[(i+j)%3]
			t.Run(fmt.Sprintf("%d/%s/%s", k, epilogue, codes4), func(t *testing.T) {
				most := map[string]float64{"float": 2e-4, "add": 2e-4}[epilogue] // a column of the input errs by 2^-16 of the largest of 32
				if most == 0 {
					most = 0.006 // the results are rounded
				}
				tokenResults(t, uint64(10*i+j), [][]int64{{}, {1, 1}, {3, 2}, {12, 6}}, most, func(n *tokenNumbers, edge string, form []int64) [][]float32 {
					n.codes4 = codes4
					rows := []int64{46, 2, 2112, 3072}[n.IntN(4)]
					rows = min(rows, max(46, (1<<22)/k/2*2))
					if epilogue == "float" {
						rows += int64(n.IntN(2))
					}
					weight, of := n.randomCodes4(1/math.Sqrt(float64(k)), rows, k), []any{nil, n.narrow, codes4}
					if n.reference {
						weight, of = n.x.Call1("streamtorch::unpack4", weight, k, Float32, codes4), nil
					}
					bias := n.maybe(func() *Tensor { return n.narrows(1, rows) })
					return n.linear(weight, bias, rows, k, epilogue, edge, form, of...)
				})
			})
		}
	}
}

// token_linear names what it does not take.
func TestTokenLinear_Refused(t *testing.T) {
	d := torchtest.Device()
	for _, c := range []struct {
		text string
		args func(x *Exec) []any
	}{
		{"the epilogue is", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 16), x.Ones(Float32, 4, 16), nil, nil, 0.0, false, "relu"}
		}},
		{"input is", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 8), x.Ones(Float32, 4, 16)}
		}},
		{"even number of rows", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 16), x.Ones(Float32, 3, 16), nil, nil, 0.0, false, "silu"}
		}},
		{"go together", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 16), x.Ones(Float32, 4, 16), nil, nil, 0.0, false, "", nil, x.Ones(Float32, 16)}
		}},
		{"shares memory", func(x *Exec) []any {
			in := x.Ones(Float32, 1, 16)
			return []any{in, x.Ones(Float32, 4, 16), nil, nil, 0.0, false, "", nil, x.Ones(Float32, 16), x.Ones(Float32, 16), in}
		}},
		{"codes in int8 or float8_e4m3fn have a scale", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 16), x.Ones(Int8, 4, 16)}
		}},
		{"or up to 15 more", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 16), x.Ones(Int8, 4, 32), nil, nil, 0.0, false, "", nil, nil, nil, nil, "full", []int64{}, x.Ones(Float32, 4), Float32}
		}},
		{"scale is", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 16), x.Ones(Int8, 4, 16), nil, nil, 0.0, false, "", nil, nil, nil, nil, "full", []int64{}, x.Ones(Float32, 3), Float32}
		}},
		{"packed codes in uint8 a form", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 32), x.Zeros(Uint8, 4, 80)}
		}},
		{"want mxfp4, int4 or int4-128", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 32), x.Zeros(Uint8, 4, 80), nil, nil, 0.0, false, "", nil, nil, nil, nil, "full", []int64{}, nil, Float32, "int3"}
		}},
		{"see pack4", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 160), x.Zeros(Uint8, 4, 80), nil, nil, 0.0, false, "", nil, nil, nil, nil, "full", []int64{}, nil, Float32, "int4"}
		}},
		{"has a residual", func(x *Exec) []any {
			return []any{x.Ones(Float32, 1, 16), x.Ones(Float32, 4, 16), nil, nil, 0.0, false, "add"}
		}},
	} {
		err := torchtest.TryDo(t, d, func(x *Exec) { x.Call1("streamtorch::token_linear", c.args(x.NoGrad())...) })
		torchtest.WantError(t, err, ErrInvalidArgument, "token_linear", c.text)
	}
}

// token_attention gives what LibTorch's operators give, and writes the same rows of the cache: over
// scattered pages, with norms, windows, caps, sinks and partial rotations.
func TestTokenAttention(t *testing.T) {
	torchtest.CheckLeaks(t)
	heads := []struct{ keyHeads, group, head int64 }{{2, 4, 64}, {1, 1, 16}, {3, 2, 80}, {2, 7, 96}, {2, 8, 128}, {1, 3, 256}, {8, 8, 64}, {32, 1, 96}}
	for i, h := range heads {
		for j, keys := range []int64{1, 15, 100, 1000, 5003} {
			if h.keyHeads*keys > 50_000 {
				keys = 1700 // more than one cluster of a key head
			}
			t.Run(fmt.Sprintf("%dx%dx%d/%d", h.keyHeads, h.group, h.head, keys), func(t *testing.T) {
				tokenResults(t, uint64(10*i+j), [][]int64{{}}, 0.006, func(n *tokenNumbers, edge string, _ []int64) [][]float32 {
					return attendOnce(n, h.keyHeads, h.group, h.head, keys, edge)
				})
			})
		}
	}
}

// attendOnce calls token_attention with a token that sees so many keys, its own among them.
func attendOnce(n *tokenNumbers, keyHeads, group, head, keys int64, edge string) [][]float32 {
	x, heads, first := n.x, keyHeads*group, int64(16*n.IntN(3))
	blocks := (keys+15)/16 + int64(n.IntN(3))
	pages := blocks + 3
	memory := n.narrows(1, 2, pages, keyHeads, 16, head)
	order := n.Perm(int(pages))[:blocks]
	table := make([]int64, 2*blocks)
	for i, page := range order {
		table[i], table[blocks+int64(i)] = int64(page), pages+int64(page)
	}
	qkv := n.floats(1, 1, (heads+2*keyHeads)*head)
	var queryNorm, keyNorm *Tensor
	switch n.IntN(3) {
	case 1:
		queryNorm, keyNorm = n.floats(1, head), n.floats(1, head)
	case 2:
		queryNorm, keyNorm = n.floats(1, heads*head), n.floats(1, keyHeads*head)
	}
	turned := head
	if n.IntN(2) == 0 {
		turned = head / 2
	}
	cos, sin := n.floats(0.7, 1, 1, turned), n.floats(0.7, 1, 1, turned)
	sinks := n.maybe(func() *Tensor { return n.narrows(1, heads) })
	window, limit := 0, 0.0
	if n.IntN(2) == 0 {
		window = 1 + n.IntN(int(keys)+10)
	}
	if n.IntN(2) == 0 {
		limit = 3
	}
	arrived := x.Zeros(Int32, 8*keyHeads)
	out := x.Call1("streamtorch::token_attention", qkv, queryNorm, keyNorm, 1e-6, n.IntN(2) == 0, cos, sin, FromSlice(x, []int64{first + keys - 1}, 1), memory,
		FromSlice(x, table, 2, blocks), FromSlice(x, []int64{first - 1}, 1), sinks, heads, window, 1/math.Sqrt(float64(head)), limit, arrived, edge)
	if slices.ContainsFunc(ToSlice[int32](x, arrived), func(v int32) bool { return v != 0 }) {
		panic("token_attention leaves a count in arrived")
	}
	return [][]float32{float32s(x, out), float32s(x, memory)}
}

// token_likeliest finds the first largest logit, wherever it lies.
func TestTokenLikeliest(t *testing.T) {
	torchtest.CheckLeaks(t)
	r := rand.New(rand.NewPCG(5, 6))
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		for _, n := range []int{1, 2, 1000, 32000, 151936} {
			for range 5 {
				logits := make([]float32, n)
				for i := range logits {
					logits[i] = float32(r.NormFloat64())
				}
				want := r.IntN(n)
				logits[want] = 9
				for i := want + 1; i < n; i += 1 + n/7 {
					logits[i] = 9 // an equal one behind it
				}
				if n > 1000 {
					logits[(want+n/2)%n] = float32(math.Inf(-1))
				}
				var sum float64
				for _, v := range logits {
					sum += math.Exp(float64(v))
				}
				token, position, result := x.Zeros(Int64, 1), FromSlice(x, []int64{41}, 1), x.Zeros(Float64, 4)
				x.Call("streamtorch::token_likeliest", FromSlice(x, logits, 1, int64(n)), token, position, result, "early")
				got := ToSlice[float64](x, result)
				if at := ToSlice[int64](x, token)[0]; at != int64(want) || got[0] != float64(want) || ToSlice[int64](x, position)[0] != 42 {
					t.Errorf("of %d logits the token is %d and %v, want %d", n, at, got[0], want)
				}
				if math.Abs(got[1]-(9-math.Log(sum))) > 1e-4 {
					t.Errorf("of %d logits the log probability is %v, want %v", n, got[1], 9-math.Log(sum))
				}
			}
		}
	})
}

// Logits that have no probabilities get NaN, and not a likely token in silence.
func TestTokenLikeliest_NotFinite(t *testing.T) {
	torchtest.CheckLeaks(t)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		for _, logits := range [][]float32{{nan}, {inf}, {-inf}, {1, nan, 2}, {-inf, nan, -inf}, {1, inf, 2}, {inf, inf}, {-inf, -inf}} {
			result := x.Zeros(Float64, 4)
			x.Call("streamtorch::token_likeliest", FromSlice(x, logits, 1, int64(len(logits))), x.Zeros(Int64, 1), x.Zeros(Int64, 1), result, "full")
			if got := ToSlice[float64](x, result); !math.IsNaN(got[1]) {
				t.Errorf("%v: the log probability is %v, want NaN", logits, got[1])
			}
		}
	})
}

// drawnToken returns the token that is drawn from logits, and how far the random number is from one
// that draws another token. It is slow and simple.
func drawnToken(logits []float32, temperature, topP, minP float64, topK int, uniform float64) (token int, margin float64) {
	order, largest := make([]int, len(logits)), slices.Max(logits)
	for i := range order {
		order[i] = i
	}
	share := func(i int) float64 { return math.Exp(float64(logits[i]-largest) / temperature) }
	filter := topP < 1 || minP > 0
	if topK > 0 || filter {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	}
	if topK > 0 {
		order = order[:min(topK, len(order))]
	}
	sum := func() (all float64) {
		for _, i := range order {
			all += share(i)
		}
		return all
	}
	margin = 1
	if most, before := topP*sum(), 0.0; filter {
		order = slices.DeleteFunc(order, func(i int) bool {
			drop := topP < 1 && before >= most || share(i) < minP
			if topP < 1 {
				margin = min(margin, math.Abs(before-most)/most)
			}
			if minP > 0 {
				margin = min(margin, math.Abs(share(i)-minP)/minP)
			}
			before += share(i)
			return drop
		})
	}
	all, running := sum(), 0.0
	for _, i := range order {
		running += share(i)
		margin = min(margin, math.Abs(running/all-uniform))
		if running > uniform*all {
			return i, margin
		}
	}
	return order[0], 0
}

// token_drawn draws what the rules of top-k, top-p and min-p tell, with each edge.
func TestTokenDrawn(t *testing.T) {
	torchtest.CheckLeaks(t)
	r := rand.New(rand.NewPCG(4, 5))
	near := 0
	for i := range 160 {
		n := []int{1, 7, 1031, 32000, 128256, 262144, 430001}[r.IntN(7)]
		if !torchtest.Device().IsCUDA() {
			n = min(n, 32000)
		}
		spread, offset := []float64{0.01, 1, 4, 20}[r.IntN(4)], 100*r.NormFloat64()
		logits := make([]float32, n)
		for k := range logits {
			logits[k] = float32(r.NormFloat64()*spread + offset)
			if r.IntN(3) == 0 {
				logits[k] = float32(math.Round(float64(logits[k]))) // equal ones
			}
		}
		temperature, topP, minP, topK := 0.2+2*r.Float64(), 1.0, 0.0, 0
		if r.IntN(2) == 0 {
			topP = 0.05 + 0.94*r.Float64()
		}
		if r.IntN(3) == 0 {
			minP = r.Float64() * 0.2
		}
		if r.IntN(2) == 0 {
			topK = 1 + r.IntN(min(n, 1024))
		}
		temperature, topP, minP = float64(float32(temperature)), float64(float32(topP)), float64(float32(minP))
		uniform := float32(r.Float64())
		want, margin := drawnToken(logits, temperature, topP, minP, topK, float64(uniform))
		if margin < 1e-5 { // another rounding may draw another token
			near++
			continue
		}
		torchtest.Do(t, torchtest.Device(), func(x *Exec) {
			x = x.NoGrad()
			from := FromSlice(x, logits, 1, int64(n))
			numbers := FromSlice(x, []float32{float32(temperature), float32(topP), float32(minP), float32(topK)}, 4)
			uniforms := FromSlice(x, []float32{0.5, 0.5, uniform}, 3)
			for _, edge := range []string{"full", "early", "wait"} {
				token, position, result := x.Zeros(Int64, 1), x.Ones(Int64, 1), x.Zeros(Float64, 4)
				x.Call("streamtorch::token_drawn", from, from, numbers, uniforms, token, position, result, topK > 0, topP < 1 || minP > 0, edge)
				logs := ToSlice[float32](x, x.LogSoftmax(x.View(from, -1), 0))
				got := ToSlice[float64](x, result)
				if int(x.Item(token)) != want || int(got[0]) != want || x.Item(position) != 2 {
					t.Errorf("%d: edge %s, %d logits of %v, temperature %v, top-p %v, min-p %v, top-k %d, number %v: token %v, want %d", i, edge, n, spread, temperature, topP, minP, topK, uniform, got[0], want)
				} else if math.Abs(got[1]-float64(logs[want])) > 1e-3+1e-5*math.Abs(offset) {
					t.Errorf("%d: the log probability is %v, want %v", i, got[1], logs[want])
				}
			}
		})
	}
	if near > 40 {
		t.Errorf("%d of 160 draws are too near to another token", near)
	}
}

// token_drawn draws the right one of equal tokens, also where their number is just what one block
// sorts.
func TestTokenDrawn_Equal(t *testing.T) {
	torchtest.CheckLeaks(t)
	r := rand.New(rand.NewPCG(6, 7))
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		x = x.NoGrad()
		for _, equal := range []int{1, 2, 511, 512, 513, 700} {
			for _, top := range []bool{true, false} {
				logits := make([]float32, 9000)
				for i := range logits {
					logits[i] = -30
				}
				tokens := r.Perm(len(logits))[:equal]
				slices.Sort(tokens)
				for _, token := range tokens {
					logits[token] = 5
				}
				kept := 1 + r.IntN(equal)
				want := r.IntN(kept)
				topK, topP := float32(kept), float32(1)
				if !top { // the running share of the last one that is kept exceeds this
					topK, topP = 0, (float32(kept)-0.5)/float32(equal)
				}
				token, position, result := x.Zeros(Int64, 1), x.Zeros(Int64, 1), x.Zeros(Float64, 4)
				from := FromSlice(x, logits, 1, int64(len(logits)))
				numbers := FromSlice(x, []float32{1, topP, 0, topK}, 4)
				uniforms := FromSlice(x, []float32{0, (float32(want) + 0.5) / float32(kept)}, 2)
				x.Call("streamtorch::token_drawn", from, from, numbers, uniforms, token, position, result, top, !top, "early")
				if got := int(x.Item(token)); got != tokens[want] {
					t.Errorf("%d equal tokens, %d kept by top-k %v: got %d, want number %d, %d", equal, kept, top, got, want, tokens[want])
				}
			}
		}
	})
}

// The kernels of a token name what they do not take.
func TestTokenKernels_Refused(t *testing.T) {
	attention := func(x *Exec, memory *Tensor, table []int64, position int64, edge string) {
		heads, head := int64(2), memory.Shape()[len(memory.Shape())-1]
		x.Call1("streamtorch::token_attention", x.Ones(Float32, 1, (heads+2)*head), nil, nil, 1e-6, false, x.Ones(Float32, 1, 1, head), x.Ones(Float32, 1, 1, head),
			FromSlice(x, []int64{position}, 1), memory, FromSlice(x, table, 2, int64(len(table)/2)), x.Full(Int64, -1, 1), nil, heads, 0, 1.0, 0.0, x.Zeros(Int32, 8), edge)
	}
	one := func(x *Exec) *Tensor { return x.Zeros(Int64, 1) }
	for _, c := range []struct {
		op, text   string
		everywhere bool // else a device does not look at the numbers
		call       func(x *Exec)
	}{
		{"token_attention", "want full, early or wait", true, func(x *Exec) { attention(x, x.Zeros(BFloat16, 2, 3, 1, 16, 16), []int64{1, 4}, 0, "late") }},
		{"token_attention", "want a floating dtype", true, func(x *Exec) { attention(x, x.Zeros(Int32, 2, 3, 1, 16, 16), []int64{1, 4}, 0, "full") }},
		{"token_attention", "key heads", true, func(x *Exec) { attention(x, x.Zeros(BFloat16, 2, 3, 16, 16), []int64{1, 4}, 0, "full") }},
		{"token_attention", "of a table of 1 blocks", false, func(x *Exec) { attention(x, x.Zeros(BFloat16, 2, 3, 1, 16, 16), []int64{1, 4}, 16, "full") }},
		{"token_attention", "the table has the pages -1 to 4", false, func(x *Exec) { attention(x, x.Zeros(BFloat16, 2, 3, 1, 16, 16), []int64{-1, 4}, 0, "full") }},
		{"token_attention", "the table has the pages 1 to 6", false, func(x *Exec) { attention(x, x.Zeros(BFloat16, 2, 3, 1, 16, 16), []int64{1, 6}, 0, "full") }},
		{"token_drawn", "want full, early or wait", true, func(x *Exec) {
			x.Call("streamtorch::token_drawn", x.Ones(Float32, 1, 9), x.Ones(Float32, 1, 9), x.Ones(Float32, 4), x.Zeros(Float32, 9), one(x), one(x), x.Zeros(Float64, 2), true, true, "")
		}},
		{"token_drawn", "share memory", true, func(x *Exec) {
			both := one(x)
			x.Call("streamtorch::token_drawn", x.Ones(Float32, 1, 9), x.Ones(Float32, 1, 9), x.Ones(Float32, 4), x.Zeros(Float32, 9), both, both, x.Zeros(Float64, 2), true, true, "full")
		}},
		{"token_likeliest", "want full, early or wait", true, func(x *Exec) {
			x.Call("streamtorch::token_likeliest", x.Ones(Float32, 1, 9), one(x), one(x), x.Zeros(Float64, 2), "late")
		}},
		{"token_likeliest", "share memory", true, func(x *Exec) {
			both := one(x)
			x.Call("streamtorch::token_likeliest", x.Ones(Float32, 1, 9), both, both, x.Zeros(Float64, 2), "full")
		}},
	} {
		if !c.everywhere && torchtest.Device().IsCUDA() {
			continue
		}
		err := torchtest.TryDo(t, torchtest.Device(), func(x *Exec) { c.call(x.NoGrad()) })
		torchtest.WantError(t, err, ErrInvalidArgument, c.op, c.text)
	}
}

// The stream checker sees what the kernels of a token write: pages, the stream and the token.
func TestTokenKernels_CheckStreams(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.Device()
	for name, write := range map[string]func(x *Exec, to *Tensor){
		"token_attention": func(x *Exec, memory *Tensor) {
			x.Call1("streamtorch::token_attention", x.Ones(Float32, 1, 96), nil, nil, 1e-6, false, x.Ones(Float32, 1, 1, 32), x.Ones(Float32, 1, 1, 32),
				x.Zeros(Int64, 1), memory, x.Zeros(Int64, 2, 1), x.Full(Int64, -1, 1), nil, 1, 0, 1.0, 0.0, x.Zeros(Int32, 8), "early")
		},
		"token_linear": func(x *Exec, sum *Tensor) {
			in, norm := x.Ones(Float32, 1, 1024), x.Ones(Float32, 1024)
			x.Call1("streamtorch::token_linear", in, x.Ones(BFloat16, 8, 1024), nil, norm, 1e-6, false, "", nil, x.Ones(Float32, 1024), norm, x.View(sum, -1), "early")
		},
		"add_rms_norm": func(x *Exec, sum *Tensor) {
			x.Call1("streamtorch::add_rms_norm", x.View(sum, 2, -1), x.Ones(Float32, 2, 512), nil, nil, 1e-6, false, Float32)
		},
		"rope_into_pages": func(x *Exec, memory *Tensor) {
			x.Call1("streamtorch::rope_into_pages", x.Ones(BFloat16, 1, 96), nil, nil, 1e-6, false, x.Ones(Float32, 1, 1, 32), x.Ones(Float32, 1, 1, 32),
				x.Zeros(Int64, 1), memory, x.Zeros(Int64, 2, 1), x.Full(Int64, -1, 1), 1)
		},
		"token_drawn": func(x *Exec, result *Tensor) {
			x.Call("streamtorch::token_drawn", x.Ones(Float32, 1, 9), x.Ones(Float32, 1, 9), x.Ones(Float32, 4), x.Zeros(Float32, 9), x.Zeros(Int64, 1), x.Zeros(Int64, 1), x.View(result, -1), true, true, "early")
		},
		"token_likeliest": func(x *Exec, result *Tensor) {
			x.Call("streamtorch::token_likeliest", x.Ones(Float32, 1, 9), x.Zeros(Int64, 1), x.Zeros(Int64, 1), x.View(result, -1), "early")
		},
	} {
		t.Run(name, func(t *testing.T) {
			stop, err := CheckStreams(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			dtype := map[string]DType{"token_attention": BFloat16, "rope_into_pages": BFloat16, "token_linear": Float32, "add_rms_norm": Float32, "token_likeliest": Float64, "token_drawn": Float64}[name]
			var written *Tensor
			torchtest.Do(t, d, func(x *Exec) { written = x.Keep(x.Zeros(dtype, 2, 1, 1, 16, 32)) })
			defer written.Close()
			a, b := twoStreams(t, d)
			err = a.Do(func(x *Exec) error {
				write(x.NoGrad(), written)
				y := x.On(b).NoGrad()
				y.Sum(written) // nothing makes b wait for a
				return nil
			})
			var r *StreamRace
			if !errors.As(err, &r) || !strings.Contains(r.Earlier.Op, name) {
				t.Errorf("got %v, want a race with %s", err, name)
			}
		})
	}
}
