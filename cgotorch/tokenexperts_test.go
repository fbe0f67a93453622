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

// token_experts gives what LibTorch's operators give: each picked expert by itself, and their sum.
func TestTokenExperts(t *testing.T) {
	torchtest.CheckLeaks(t)
	for i, c := range []struct{ experts, top, width, inner int64 }{{4, 2, 64, 8}, {128, 8, 2048, 768}, {32, 4, 2880, 2880}, {8, 2, 4096, 1432}, {16, 16, 896, 72}, {3, 2, 72, 16384}} {
		for j, epilogue := range []string{"silu", "gelu_tanh", "clamped", "add"} {
			t.Run(fmt.Sprintf("%d of %d, %d by %d/%s", c.top, c.experts, c.inner, c.width, epilogue), func(t *testing.T) {
				most := 0.006
				if c.width < 100 || c.inner < 100 {
					most = 0.02 // the input is rounded, and few elements do not even that out
				}
				tokenResults(t, uint64(10*i+j), [][]int64{{}, {2, 1}, {12, 6}}, most, func(n *tokenNumbers, edge string, form []int64) [][]float32 {
					return [][]float32{expertsOnce(n, c.experts, c.top, c.width, c.inner, epilogue, edge, form)}
				})
			})
		}
	}
}

// The same with weights of 4 bits gives what their numbers in float32 give.
func TestTokenExperts_Codes4(t *testing.T) {
	torchtest.CheckLeaks(t)
	for i, c := range []struct{ experts, top, width, inner int64 }{{4, 2, 64, 32}, {128, 8, 2048, 768}, {32, 4, 2880, 2880}, {8, 2, 4096, 1408}, {16, 16, 896, 64}, {3, 2, 96, 14336}} {
		for j, epilogue := range []string{"silu", "gelu_tanh", "clamped", "add"} {
			codes4 := []string{"mxfp4", "int4", "int4-128"}[(i+j)%3]
			t.Run(fmt.Sprintf("%d of %d, %d by %d/%s/%s", c.top, c.experts, c.inner, c.width, epilogue, codes4), func(t *testing.T) {
				tokenResults(t, uint64(10*i+j), [][]int64{{}, {2, 1}, {12, 6}}, 0.006, func(n *tokenNumbers, edge string, form []int64) [][]float32 {
					n.codes4 = codes4
					return [][]float32{expertsOnce(n, c.experts, c.top, c.width, c.inner, epilogue, edge, form)}
				})
			})
		}
	}
}

// randomCodes4 returns random packed codes of 4 bits. Their numbers have about this deviation.
func (n *tokenNumbers) randomCodes4(deviation float64, shape ...int64) *Tensor {
	columns := shape[len(shape)-1]
	rows, of128 := elementsOf(shape)/columns, n.codes4 == "int4-128"
	group := int64(32)
	if of128 {
		group = 128
	}
	groups := (columns + group - 1) / group
	codes, scales := make([]byte, rows*groups*group/2), make([]byte, rows*groups)
	for i := range codes {
		codes[i] = byte(n.IntN(256))
	}
	for i := range scales {
		scales[i] = byte(126 + int(math.Round(math.Log2(deviation))) + n.IntN(3) - 1)
	}
	of := func(data []byte, last ...int64) *Tensor {
		return FromSlice(n.x, data, slices.Concat(shape[:len(shape)-1], last)...)
	}
	powers := of(scales, groups)
	if n.codes4 != "mxfp4" {
		powers = n.x.To(n.x.MulScalar(n.x.Exp2(n.x.AddScalar(n.x.To(powers, Float32), -127)), -0.75), BFloat16)
	}
	return n.x.Call1("streamtorch::pack4", of(codes, groups, group/2), powers, n.codes4)
}

// Packed codes give their numbers again, in every dtype, also where a row has several segments.
func TestPack4(t *testing.T) {
	torchtest.CheckLeaks(t)
	magnitudes := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	r := rand.New(rand.NewPCG(1, 1))
	for _, columns := range []int64{32, 96, 768, 2880, 4096, 4128, 14336} {
		const rows = 3
		codes, scales := make([]byte, rows*columns/2), make([]byte, rows*columns/32)
		for i := range codes {
			codes[i] = byte(r.IntN(256))
		}
		for i := range scales {
			scales[i] = byte(117 + r.IntN(20))
		}
		scales[1] = 255
		var want []float32
		for i := range rows * columns {
			code := codes[i/2] >> (i % 2 * 4) & 15
			v := math.Ldexp(magnitudes[code&7], int(scales[i/32])-127)
			if code >= 8 {
				v = -v
			}
			if scales[i/32] == 255 {
				v = math.NaN()
			}
			want = append(want, float32(v))
		}
		torchtest.Do(t, torchtest.Device(), func(x *Exec) {
			bytes := FromSlice(x, codes, rows, columns/32, 16)
			packed := x.Call1("streamtorch::pack4", bytes, FromSlice(x, scales, rows, columns/32), "mxfp4")
			factors := make([]float32, len(scales)) // exact in bfloat16, as all products with codes are
			for i := range factors {
				factors[i] = float32(int(scales[i])-127) / 64
			}
			ints := x.Call1("streamtorch::pack4", bytes, x.To(FromSlice(x, factors, rows, columns/32), BFloat16), "int4")
			got := float32s(x, x.Call1("streamtorch::unpack4", ints, columns, BFloat16, "int4"))
			for i, v := range got {
				if code := codes[i/2] >> (i % 2 * 4) & 15; v != float32(int(code)-8)*factors[i/32] {
					t.Fatalf("%d columns, int4: number %d is %v, want %d times %v", columns, i, v, int(code)-8, factors[i/32])
				}
			}
			groups := (columns + 127) / 128 // where a row ends within a group, codes behind it mean nothing
			padded := x.View(x.Pad(x.View(bytes, rows, columns/2), []int64{0, 64*groups - columns/2}, PadOptions{Value: 7}), rows, groups, 64)
			of128 := make([]float32, rows*groups)
			for i := range of128 {
				of128[i] = float32(math.Ldexp(float64(i%int(groups)+1), i/int(groups)-6))
			}
			ints = x.Call1("streamtorch::pack4", padded, x.To(FromSlice(x, of128, rows, groups), BFloat16), "int4-128")
			got = float32s(x, x.Call1("streamtorch::unpack4", ints, columns, Float32, "int4-128"))
			for i, v := range got {
				row, column := int64(i)/columns, int64(i)%columns
				if code := codes[i/2] >> (i % 2 * 4) & 15; v != float32(int(code)-8)*of128[row*groups+column/128] {
					t.Fatalf("%d columns, int4-128: number %d is %v, want %d times %v", columns, i, v, int(code)-8, of128[row*groups+column/128])
				}
			}
			for _, dtype := range []DType{Float32, BFloat16, Float16, Float64} {
				got := float32s(x, x.Call1("streamtorch::unpack4", packed, columns, dtype, "mxfp4"))
				for i := range want {
					if got[i] != want[i] && !(math.IsNaN(float64(got[i])) && math.IsNaN(float64(want[i]))) {
						t.Fatalf("%d columns, %v: number %d is %v, want %v", columns, dtype, i, got[i], want[i])
					}
				}
			}
		})
	}
	for _, c := range []struct {
		text string
		call func(x *Exec)
	}{
		{"pack4: codes are", func(x *Exec) { x.Call1("streamtorch::pack4", x.Zeros(Uint8, 2, 3, 16), x.Zeros(Uint8, 2, 4)) }},
		{"pack4: codes are", func(x *Exec) { x.Call1("streamtorch::pack4", x.Zeros(Uint8, 2, 0, 16), x.Zeros(Uint8, 2, 0)) }},
		{"pack4: codes are", func(x *Exec) { x.Call1("streamtorch::pack4", x.Zeros(Uint8, 4, 2, 16), x.Zeros(Uint8, 2, 4)) }},
		{"aligned to 16 bytes", func(x *Exec) {
			x.Call1("streamtorch::unpack4", x.View(x.Narrow(x.Zeros(Uint8, 161), 0, 1, 160), 2, 80), 64, Float32)
		}},
		{"want mxfp4, int4 or int4-128", func(x *Exec) { x.Call1("streamtorch::pack4", x.Zeros(Uint8, 2, 3, 16), x.Zeros(Uint8, 2, 3), "int3") }},
		{"BFloat16", func(x *Exec) { x.Call1("streamtorch::pack4", x.Zeros(Uint8, 2, 3, 16), x.Zeros(Uint8, 2, 3), "int4") }},
		{"groups, 64]", func(x *Exec) {
			x.Call1("streamtorch::pack4", x.Zeros(Uint8, 2, 3, 16), x.Zeros(BFloat16, 2, 3), "int4-128")
		}},
		{"for 64 columns", func(x *Exec) { x.Call1("streamtorch::unpack4", x.Zeros(Uint8, 2, 81), 64, Float32) }},
		{"floating dtype", func(x *Exec) { x.Call1("streamtorch::unpack4", x.Zeros(Uint8, 2, 80), 64, Int32) }},
		{"unpack4", func(x *Exec) { x.Call1("streamtorch::unpack4", x.Zeros(Uint8, 2, 80), -1, Float32) }},
	} {
		err := torchtest.TryDo(t, torchtest.Device(), c.call)
		torchtest.WantError(t, err, ErrInvalidArgument, c.text)
	}
}

// expertsOnce calls token_experts with random picks.
func expertsOnce(n *tokenNumbers, experts, top, width, inner int64, epilogue, edge string, form []int64) []float32 {
	x, rows, columns := n.x, 2*inner, width
	if epilogue == "add" {
		rows, columns = width, inner
	}
	experts = min(experts, 2+(1<<23)/(rows*columns))
	if experts < top {
		experts = top
	}
	var weight *Tensor
	var dtype any
	codes := "mxfp4" // means nothing without codes
	if n.codes4 == "" {
		weight = n.narrows(1/math.Sqrt(float64(columns)), experts, rows, columns)
	} else if weight = n.randomCodes4(1/math.Sqrt(float64(columns)), experts, rows, columns); n.reference {
		weight = x.Call1("streamtorch::unpack4", weight, columns, Float32, n.codes4)
	} else {
		dtype, codes = n.narrow, n.codes4
	}
	bias := n.maybe(func() *Tensor { return n.narrows(1, experts, rows) })
	picks := make([]int32, 4*top)
	for i, e := range n.Perm(int(experts))[:top] {
		picks[4*i], picks[4*i+1], picks[4*i+2] = int32(e), -1, int32(e)
	}
	if form == nil {
		form = []int64{}
	}
	picked := FromSlice(x, picks, top, 4)
	if epilogue == "add" {
		shares, residual := n.floats(0.5, top), n.floats(1, 1, rows)
		return float32s(x, x.Call1("streamtorch::token_experts", n.narrows(1, top, columns), weight, picked, nil, shares, bias, nil, 0.0, false, "add", residual, 0.0, 0.0, edge, form, dtype, codes))
	}
	input, norm := n.floats(1, 1, columns), n.maybe(func() *Tensor { return n.floats(1, columns) })
	return float32s(x, x.Call1("streamtorch::token_experts", input, weight, picked, nil, nil, bias, norm, 1e-5, n.IntN(2) == 0, epilogue, nil, 1.5, 1.7, edge, form, dtype, codes))
}

// token_route picks the experts with the largest scores, the first of equal ones first.
func TestTokenRoute(t *testing.T) {
	torchtest.CheckLeaks(t)
	for i, c := range []struct{ experts, top, columns int64 }{{1, 1, 8}, {8, 2, 4096}, {32, 4, 2880}, {128, 8, 2048}, {512, 10, 2048}, {1000, 16, 100}} {
		for j, ofTop := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d of %d, %v", c.top, c.experts, ofTop), func(t *testing.T) {
				tokenResults(t, uint64(10*i+j), [][]int64{{}}, 1e-4, func(n *tokenNumbers, edge string, _ []int64) [][]float32 {
					x := n.x
					weight := make([]float32, c.experts*c.columns)
					for e := range c.experts {
						for k := range c.columns {
							weight[e*c.columns+k] = float32(n.NormFloat64() / math.Sqrt(float64(c.columns)))
						}
						if e > 0 && n.IntN(4) == 0 { // an equal score
							copy(weight[e*c.columns:(e+1)*c.columns], weight[(e-1)*c.columns:e*c.columns])
						}
					}
					arrived := x.Zeros(Int32, 8)
					results := x.Call("streamtorch::token_route", n.floats(1, 1, c.columns), FromSlice(x, weight, c.experts, c.columns), nil,
						n.maybe(func() *Tensor { return n.floats(1, c.columns) }), 1e-5, n.IntN(2) == 0, c.top, ofTop, arrived, edge)
					if slices.ContainsFunc(ToSlice[int32](x, arrived), func(v int32) bool { return v != 0 }) {
						panic("token_route leaves a count in arrived")
					}
					return [][]float32{float32s(x, x.AddScalar(results[0].(*Tensor), 1)), float32s(x, results[1].(*Tensor))}
				})
			})
		}
	}
}

// A NaN among the scores is picked, and not passed over in silence.
func TestTokenRoute_NaN(t *testing.T) {
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		x = x.NoGrad()
		weight := FromSlice(x, []float32{1, 0, 0, 0, float32(math.NaN()), 0, 0, 0, 3, 0, 0, 0}, 3, 4)
		results := x.Call("streamtorch::token_route", x.Ones(Float32, 1, 4), weight, nil, nil, 0.0, false, 2, true, x.Zeros(Int32, 1), "full")
		if got := ToSlice[int32](x, results[0].(*Tensor)); !slices.Equal(got, []int32{1, -1, 1, 0, 2, -1, 2, 0}) {
			t.Errorf("picks are %v, want 1 and 2", got)
		}
		if got := ToSlice[float32](x, results[1].(*Tensor)); !math.IsNaN(float64(got[0])) {
			t.Errorf("the shares are %v, want NaN", got)
		}
	})
}

// A NaN among the weights reaches the results of its expert, and no others.
func TestTokenExperts_NaN(t *testing.T) {
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		x = x.NoGrad()
		weight := x.Ones(BFloat16, 3, 4, 64)
		x.FillInPlace(x.Narrow(x.Select(weight, 0, 1), 0, 2, 1), math.NaN())
		for _, epilogue := range []string{"silu", "gelu_tanh", "clamped"} {
			out := x.Call1("streamtorch::token_experts", x.Ones(Float32, 1, 64), weight, FromSlice(x, []int32{1, -1, 1, 0, 2, -1, 2, 0}, 2, 4), nil, nil, nil, nil, 0.0, false,
				epilogue, nil, 7.0, 1.7, "full")
			nans := 0
			for i, v := range float32s(x, out) {
				if math.IsNaN(float64(v)) {
					nans++
				}
				if i >= 2 && math.IsNaN(float64(v)) {
					t.Errorf("%s: the other expert has NaN", epilogue)
				}
			}
			if nans == 0 {
				t.Errorf("%s: NaN is lost", epilogue)
			}
		}
	})
}

// The times of slots wrap, and the counts of uses stay. A slot of this token is not given up.
func TestTokenRoute_Wraps(t *testing.T) {
	const experts, slots, most = 8, 3, math.MaxInt32 - 1
	for _, often := range []bool{false, true} {
		torchtest.Do(t, torchtest.Device(), func(x *Exec) {
			x = x.NoGrad()
			table := FromSlice(x, []int32{0, 1, 2, -1, -1, -1, -1, -1, 0, 1, 2, most, most, most, most})
			counts, arrived := x.Zeros(Int64, 2), x.Zeros(Int32, 1)
			for token, top := range [][]float32{{1, 0, 0, 2, 0, 0, 0, 0}, {1, 0, 0, 0, 2, 0, 0, 0}} {
				results := x.Call("streamtorch::token_route", FromSlice(x, []float32{1, 0, 0, 0}, 1, 4), x.Mul(FromSlice(x, top, experts, 1), x.Ones(Float32, 1, 4)), nil, nil, 0.0, false, 2, true,
					arrived, "full", table, counts, often)
				picks := ToSlice[int32](x, results[0].(*Tensor))
				if want := int32(3 + token); picks[1] != want || picks[0] != 1 && picks[0] != 2 || picks[4] != 0 || picks[5] != -1 {
					t.Errorf("often %v: picks are %v, want expert %d in slot 1 or 2, and expert 0 in slot 0", often, picks, want)
				}
			}
			for i, v := range ToSlice[int32](x, table)[experts+slots:] {
				if v == math.MaxInt32 || !often && i == slots && v > -most {
					t.Errorf("often %v: stamp %d is %d", often, i, v)
				}
			}
		})
	}
}

// A column that is not finite reaches all results of codes of 4 bits.
func TestTokenLinear_Codes4NotFinite(t *testing.T) {
	for _, form := range []string{"mxfp4", "int4", "int4-128"} {
		for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			torchtest.Do(t, torchtest.Device(), func(x *Exec) {
				x = x.NoGrad()
				n := &tokenNumbers{Rand: rand.New(rand.NewPCG(3, 3)), x: x, narrow: BFloat16, codes4: form}
				input := n.narrows(1, 1, 96)
				x.FillInPlace(x.Narrow(input, 1, 70, 1), v)
				for i, got := range float32s(x, x.Call1("streamtorch::token_linear", input, n.randomCodes4(0.1, 20, 96), nil, nil, 0.0, false, "float", nil, nil, nil, nil, "full", []int64{}, nil, BFloat16, form)) {
					if !math.IsNaN(float64(got)) && !math.IsInf(float64(got), 0) {
						t.Errorf("%s, %v: result %d is %v", form, v, i, got)
					}
				}
			})
		}
	}
}

// Both operators name what they do not take.
func TestTokenExperts_Refused(t *testing.T) {
	for _, c := range []struct {
		op, text   string
		everywhere bool // else a device does not look at the numbers
		call       func(x *Exec)
	}{
		{"token_experts", "the epilogue is", true, func(x *Exec) {
			x.Call1("streamtorch::token_experts", x.Ones(Float32, 1, 8), x.Ones(BFloat16, 3, 4, 8), x.Zeros(Int32, 2, 4), nil, nil, nil, nil, 0.0, false, "relu")
		}},
		{"token_experts", "go together", true, func(x *Exec) {
			x.Call1("streamtorch::token_experts", x.Ones(BFloat16, 2, 8), x.Ones(BFloat16, 3, 4, 8), x.Zeros(Int32, 2, 4), nil, x.Ones(Float32, 2))
		}},
		{"token_experts", "picks are", true, func(x *Exec) {
			x.Call1("streamtorch::token_experts", x.Ones(Float32, 1, 8), x.Ones(BFloat16, 3, 4, 8), x.Zeros(Int32, 4, 4))
		}},
		{"token_experts", "none of 3 experts", false, func(x *Exec) {
			x.Call1("streamtorch::token_experts", x.Ones(Float32, 1, 8), x.Ones(BFloat16, 3, 4, 8), FromSlice(x, []int32{0, -1, 0, 0, 2, -1, 3, 0}, 2, 4))
		}},
		{"token_experts", "even number of rows", true, func(x *Exec) {
			x.Call1("streamtorch::token_experts", x.Ones(Float32, 1, 8), x.Ones(BFloat16, 3, 5, 8), x.Zeros(Int32, 2, 4))
		}},
		{"token_route", "top is 4 of 3 experts", true, func(x *Exec) {
			x.Call("streamtorch::token_route", x.Ones(Float32, 1, 8), x.Ones(Float32, 3, 8), nil, nil, 0.0, false, 4, true, x.Zeros(Int32, 1), "full")
		}},
		{"token_route", "the table has slot 9 of 2", false, func(x *Exec) {
			table := FromSlice(x, []int32{9, 9, 9, -1, -1, 0, 0, 0})
			x.Call("streamtorch::token_route", x.Ones(Float32, 1, 8), x.Ones(Float32, 3, 8), nil, nil, 0.0, false, 2, true, x.Zeros(Int32, 1), "full", table, x.Zeros(Int64, 2))
		}},
		{"token_route", "the table has expert 7 of 3", false, func(x *Exec) {
			table := FromSlice(x, []int32{-1, -1, -1, 7, 7, 0, 0, 0})
			x.Call("streamtorch::token_route", x.Ones(Float32, 1, 8), x.Ones(Float32, 3, 8), nil, nil, 0.0, false, 2, true, x.Zeros(Int32, 1), "full", table, x.Zeros(Int64, 2))
		}},
		{"token_route", "weight is", true, func(x *Exec) {
			x.Call("streamtorch::token_route", x.Ones(Float32, 1, 8), x.Ones(Int32, 3, 8), nil, nil, 0.0, false, 2, true, x.Zeros(Int32, 1), "full")
		}},
		{"token_route", "want full, early or wait", true, func(x *Exec) {
			x.Call("streamtorch::token_route", x.Ones(Float32, 1, 8), x.Ones(Float32, 3, 8), nil, nil, 0.0, false, 2, true, x.Zeros(Int32, 1), "late")
		}},
	} {
		if !c.everywhere && torchtest.Device().IsCUDA() {
			continue
		}
		err := torchtest.TryDo(t, torchtest.Device(), func(x *Exec) { c.call(x.NoGrad()) })
		torchtest.WantError(t, err, ErrInvalidArgument, c.op, c.text)
	}
}

// With a table, experts come into slots, and leave them in the right order. The results are those
// of all experts at each step, also with as few slots as picks.
func TestTokenExperts_Slots(t *testing.T) {
	torchtest.CheckLeaks(t)
	const experts, top, width, inner = 16, 3, 64, 32
	for _, often := range []bool{false, true} {
		for i, slots := range []int64{3, 5, 16, 3, 5, 16, 3, 5, 16, 3, 5, 16} {
			codes4 := []string{"", "mxfp4", "int4", "int4-128"}[i/3]
			t.Run(fmt.Sprintf("%d slots, often %v, %s", slots, often, codes4), func(t *testing.T) {
				r := rand.New(rand.NewPCG(8, uint64(slots)))
				torchtest.Do(t, torchtest.Device(), func(x *Exec) {
					x = x.NoGrad()
					n := &tokenNumbers{Rand: r, x: x, narrow: BFloat16, codes4: codes4}
					up, down := n.narrows(0.2, experts, 2*inner, width), n.narrows(0.2, experts, width, inner)
					var dtype any
					form := "mxfp4" // means nothing without codes
					if codes4 != "" {
						form = codes4
						up, down, dtype = n.randomCodes4(0.2, experts, 2*inner, width), n.randomCodes4(0.2, experts, width, inner), BFloat16
					}
					router, bias := n.floats(0.2, experts, width), n.narrows(1, experts, 2*inner)
					upSlots, downSlots := x.Zeros(up.DType(), slots, 2*inner, up.Shape()[2]), x.Zeros(up.DType(), slots, width, down.Shape()[2])
					state := make([]int32, experts+2*slots+1)
					for i := range experts + slots {
						state[i] = -1
					}
					table, counts, arrived := FromSlice(x, state), x.Zeros(Int64, 2), x.Zeros(Int32, 1)
					model := newSlotModel(experts, slots, often)
					for step := range 40 {
						input := n.floats(1, 1, width)
						route := func(args ...any) (picks, shares *Tensor) {
							results := x.Call("streamtorch::token_route", append([]any{input, router, nil, nil, 1e-5, false, top, true, arrived, "early"}, args...)...)
							return results[0].(*Tensor), results[1].(*Tensor)
						}
						run := func(picks, shares, a, b *Tensor) []float32 {
							h := x.Call1("streamtorch::token_experts", input, up, picks, a, nil, bias, nil, 0.0, false, "silu", nil, 0.0, 0.0, "wait", []int64{}, dtype, form)
							return float32s(x, x.Call1("streamtorch::token_experts", h, down, picks, b, shares, nil, nil, 0.0, false, "add", input, 0.0, 0.0, "early", []int64{}, dtype, form))
						}
						picks, shares := route()
						want := run(picks, shares, nil, nil)
						var numbers []int32
						for i, p := range ToSlice[int32](x, picks) {
							if i%4 == 2 {
								numbers = append(numbers, p)
							}
						}
						picks, shares = route(table, counts, often)
						if got, want := ToSlice[int32](x, picks), model.pick(numbers); !slices.Equal(got, want) {
							t.Fatalf("step %d: picks are %v, want %v", step, got, want)
						}
						if got := run(picks, shares, upSlots, downSlots); !slices.Equal(got, want) {
							t.Fatalf("step %d: the results have other bits through slots", step)
						}
					}
					if got := ToSlice[int64](x, counts); !slices.Equal(got, model.counts[:]) {
						t.Errorf("counts are %v, want %v", got, model.counts)
					}
				})
			})
		}
	}
}

// slotModel is the table of token_route, slow and simple.
type slotModel struct {
	slots  []int32 // the expert of each, or -1
	stamps []int
	often  bool
	time   int
	counts [2]int64
}

func newSlotModel(experts, slots int64, often bool) *slotModel {
	m := &slotModel{slots: slices.Repeat([]int32{-1}, int(slots)), stamps: slices.Repeat([]int{0}, int(slots)), often: often}
	return m
}

func (m *slotModel) pick(experts []int32) (picks []int32) {
	m.time++
	used := map[int]bool{}
	for _, e := range experts {
		if slot := slices.Index(m.slots, e); slot >= 0 {
			used[slot] = true
			m.stamps[slot]++
			if !m.often {
				m.stamps[slot] = m.time
			}
		}
	}
	for _, e := range experts {
		slot, from := slices.Index(m.slots, e), int32(-1)
		m.counts[map[bool]int{true: 0, false: 1}[slot >= 0]]++
		if slot < 0 {
			for i := range m.slots {
				if !used[i] && (slot < 0 || m.stamps[i] < m.stamps[slot]) {
					slot = i
				}
			}
			used[slot], m.slots[slot], from = true, e, e
			if m.stamps[slot] = m.time; m.often {
				m.stamps[slot] = 1
			}
		}
		picks = append(picks, int32(slot), from, e, 0)
	}
	return picks
}
