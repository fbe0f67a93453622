package cgotorch_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// rows_linear gives what LibTorch's operators give in float32. The bits are equal for all edges and
// rings.
func TestRowsLinear(t *testing.T) {
	torchtest.CheckLeaks(t)
	epilogues := []string{"", "float", "silu", "gelu_tanh"}
	for i, c := range []struct{ count, rows, k int64 }{
		{1, 16, 8}, {2, 40, 64}, {5, 8, 520}, {8, 1000, 4096}, {8, 72, 14_336}, {9, 24, 4096}, {16, 200, 2880}, {16, 72, 14_336},
		{17, 8, 64}, {24, 1000, 2048}, {32, 1032, 4096}, {32, 72, 14_336}, {31, 104, 9728}, {33, 24, 64}, {32, 24, 65_536}, {3, 5, 12},
	} {
		for j, epilogue := range epilogues {
			if c.rows%2 == 1 && j >= 2 {
				continue
			}
			t.Run(fmt.Sprintf("%dx%dx%d/%s", c.count, c.rows, c.k, epilogue), func(t *testing.T) {
				tokenResults(t, uint64(4*i+j+i%2), [][]int64{nil, {4, 1}, {3, 3}}, 0.006, func(n *tokenNumbers, edge string, form []int64) [][]float32 {
					input, weight := n.narrows(1, c.count, c.k), n.narrows(1/float64(c.k), c.rows, c.k)
					weight = n.x.MulScalar(weight, 30)
					bias := n.maybe(func() *Tensor { return n.narrows(0.1, c.rows) })
					ToSlice[float32](n.x, n.x.To(n.x.Narrow(weight, 0, 0, 1), Float32)) // waits, because the kernel reads weights early
					if form == nil {
						form = []int64{}
					}
					return [][]float32{float32s(n.x, n.x.Call1("streamtorch::rows_linear", input, weight, bias, epilogue, edge, form))}
				})
			})
		}
	}
}

// A row of rows_linear has the same bits beside other rows. On the CPU it depends on their number.
func TestRowsLinear_Alone(t *testing.T) {
	torchtest.CheckLeaks(t)
	if !torchtest.Device().IsCUDA() {
		t.Skip("LibTorch's product on the CPU depends on the number of rows")
	}
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		n := &tokenNumbers{Rand: rand.New(rand.NewPCG(1, 2)), x: x.NoGrad(), narrow: BFloat16}
		for _, c := range []struct{ fewest, most, k int64 }{{1, 8, 4096}, {9, 16, 14_336}, {17, 32, 4096}} {
			input, weight := n.narrows(1, c.most, c.k), n.narrows(1, 200, c.k)
			run := func(first, count int64) []float32 {
				return float32s(x, n.x.Call1("streamtorch::rows_linear", n.x.Narrow(input, 0, int(first), int(count)), weight, nil, "float", "full", []int64{}))
			}
			all, some := run(0, c.most), run(c.most-c.fewest, c.fewest)
			if !slices.Equal(some, all[(c.most-c.fewest)*200:]) {
				t.Errorf("%d of %d rows have other bits beside the others", c.fewest, c.most)
			}
		}
	})
}

// A chain of kernels of rows gives the same bits if each begins while the one before runs. So none
// reads what that one writes before it has waited.
func TestRowsLinear_Chain(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.Do(t, torchtest.Device(), func(x *Exec) {
		for _, rows := range []int64{3, 16, 32} {
			n := &tokenNumbers{Rand: rand.New(rand.NewPCG(4, uint64(rows))), x: x.NoGrad(), narrow: BFloat16}
			const width, inner, links = 512, 1536, 12
			stream, norm := n.floats(1, rows, width), n.floats(1, width)
			gateUp, down := n.narrows(0.05, 2*inner, width), n.narrows(0.05, width, inner)
			run := func(edge string) []float32 {
				sum := n.x.Clone(stream)
				var late *Tensor
				ToSlice[float32](x, norm) // waits, because the kernels read weights early
				for range links {
					in := n.x.Call1("streamtorch::add_rms_norm", sum, late, nil, norm, 1e-6, false, BFloat16, edge)
					made := n.x.Call1("streamtorch::rows_linear", in, gateUp, nil, "silu", edge)
					late = n.x.Call1("streamtorch::rows_linear", made, down, nil, "", edge)
				}
				return float32s(x, n.x.Call1("streamtorch::add_rms_norm", sum, late, nil, norm, 1e-6, false, Float32, edge))
			}
			want := run("full")
			for _, edge := range []string{"early", "wait"} {
				for range 3 {
					if !slices.Equal(run(edge), want) {
						t.Errorf("%d rows: a chain with the edge %s has other bits than with full edges", rows, edge)
					}
				}
			}
		}
	})
}

func TestRowsLinear_BadInput(t *testing.T) {
	torchtest.CheckLeaks(t)
	for text, call := range map[string]func(x *Exec, in, weight *Tensor){
		"input is":        func(x *Exec, in, weight *Tensor) { x.Call("streamtorch::rows_linear", x.Narrow(in, 1, 0, 8), weight) },
		"weight is":       func(x *Exec, in, weight *Tensor) { x.Call("streamtorch::rows_linear", in, x.Select(weight, 0, 0)) },
		"bias is":         func(x *Exec, in, weight *Tensor) { x.Call("streamtorch::rows_linear", in, weight, x.Ones(BFloat16, 5)) },
		"the epilogue is": func(x *Exec, in, weight *Tensor) { x.Call("streamtorch::rows_linear", in, weight, nil, "add") },
		"an even number": func(x *Exec, in, weight *Tensor) {
			x.Call("streamtorch::rows_linear", in, x.Narrow(weight, 0, 0, 3), nil, "silu")
		},
		"the edge is": func(x *Exec, in, weight *Tensor) { x.Call("streamtorch::rows_linear", in, weight, nil, "", "late") },
		"sizes is": func(x *Exec, in, weight *Tensor) {
			x.Call("streamtorch::rows_linear", in, weight, nil, "", "full", []int64{0, 1})
		},
	} {
		err := torchtest.TryDo(t, torchtest.Device(), func(x *Exec) {
			x = x.NoGrad()
			call(x, x.Ones(BFloat16, 2, 16), x.Ones(BFloat16, 4, 16))
		})
		torchtest.WantError(t, err, ErrInvalidArgument, "streamtorch::rows_linear", text)
	}
}
