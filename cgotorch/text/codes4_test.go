package text_test

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The rows of packed codes are as long as mxfp4_pack makes them.
func TestPackedBytes(t *testing.T) {
	torchtest.Do(t, torchtest.Device(), func(x *cgotorch.Exec) {
		for _, columns := range []int{32, 64, 128, 160, 768, 2048, 2880, 3712, 3744, 4096, 7424, 7456, 14336, 32768} {
			groups := int64(columns / 32)
			packed := x.Call1("streamtorch::mxfp4_pack", x.Zeros(cgotorch.Uint8, 1, groups, 16), x.Zeros(cgotorch.Uint8, 1, groups))
			if got := text.PackedBytes(columns); int64(got) != packed.Shape()[1] {
				t.Errorf("%d columns take %d bytes, want %v", columns, got, packed.Shape())
			}
		}
	})
}

// nearest4 returns the number of 4 bits nearest to each of a group of 32.
func nearest4(group []float32) (all []float32) {
	largest := 0.
	for _, v := range group {
		largest = max(largest, math.Abs(float64(v)))
	}
	scale := 0.
	if largest > 0 {
		scale = math.Exp2(math.Floor(math.Log2(largest)) - 2)
	}
	for _, v := range group {
		best := 0.
		for _, magnitude := range []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6} {
			for _, sign := range []float64{1, -1} {
				if of := sign * magnitude * scale; math.Abs(of-float64(v)) < math.Abs(best-float64(v)) {
					best = of
				}
			}
		}
		all = append(all, float32(best))
	}
	return all
}

// With Quantize mxfp4 a mixture has the logits of one whose experts are rounded to 4 bits.
func TestOpen_CodesOf4Bits(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name := range mixtures {
		t.Run(name, func(t *testing.T) {
			saved := filepath.Join(mixtureFolder(t, name), "saved")
			m := openMixture(t, filepath.Dir(saved), 0, "")
			torchtest.DoOn(t, m.OwnStream(), func(x *cgotorch.Exec) { must.Do(t, m.Save(x, saved)) })
			narrow := openMixture(t, saved, 0, "mxfp4")
			var changed, length float64
			torchtest.DoOn(t, m.OwnStream(), func(x *cgotorch.Exec) {
				x = x.NoGrad()
				for _, n := range m.Weights {
					if !strings.Contains(n.Name, "experts") || strings.HasSuffix(n.Name, "bias") {
						continue
					}
					turned := len(n.Tensor.Shape()) == 3 // in one tensor of all experts, columns are rows
					rows := n.Tensor
					if turned {
						rows = x.Transpose(rows, 1, 2)
					}
					numbers := cgotorch.ToSlice[float32](x, x.To(x.Reshape(rows, -1), cgotorch.Float32))
					for group := range slices.Chunk(numbers, 32) {
						near := nearest4(group)
						for i, v := range near {
							changed += math.Pow(float64(v-group[i]), 2)
							length += math.Pow(float64(group[i]), 2)
						}
						copy(group, near)
					}
					x.CopyInPlace(rows, cgotorch.FromSlice(x, numbers, rows.Shape()...))
				}
			})
			must.Do(t, m.OwnStream().Synchronize())
			want := math.Sqrt(changed / length)
			if got := narrow.QuantizationError(); math.Abs(got-want) > 1e-3*want || want < 0.05 {
				t.Errorf("QuantizationError is %v, want %v", got, want)
			}
			if d := distance(logitsOf(t, narrow), logitsOf(t, m)); !(d < 1e-5) && !torchtest.Device().IsCUDA() {
				t.Errorf("the logits are %v away from those of rounded experts", d)
			}
			wide, _ := m.Memory()
			most := wide * 4 / 5
			if torchtest.Device().IsCUDA() { // of bfloat16; rows of so small a model are half padding
				most = wide * 19 / 20
			}
			if got, _ := narrow.Memory(); got > most {
				t.Errorf("the weights take %d bytes, and %d without Quantize", got, wide)
			}
			for _, n := range narrow.Weights {
				if strings.Contains(n.Name, "experts") && !strings.HasSuffix(n.Name, "bias") {
					t.Errorf("%s is a weight of a model whose experts have 4 bits", n.Name)
				}
			}
			torchtest.DoOn(t, narrow.OwnStream(), func(x *cgotorch.Exec) {
				torchtest.WantError(t, narrow.Save(x, t.TempDir()), cgotorch.ErrInvalidArgument, "became mxfp4")
			})
		})
	}
}

// Weights that no codes of 4 bits tell are refused.
func TestOpen_CodesOf4Bits_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range []struct{ config, want string }{
		{configs["llama"], "0 layers with experts"},
		{strings.Replace(configs["experts"], `"intermediate_size": 40`, `"intermediate_size": 48`, 1), "of widths 32 and 48"},
	} {
		folder := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(c.config), 0o644))
		_, err := text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1, Quantize: "mxfp4"})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "Quantize is mxfp4", c.want)
	}
	folder := mixtureFolder(t, "mixtral")
	saved := filepath.Join(folder, "saved")
	m := openMixture(t, folder, 0, "")
	torchtest.DoOn(t, m.OwnStream(), func(x *cgotorch.Exec) {
		for _, n := range m.Weights {
			if strings.HasSuffix(n.Name, "3.block_sparse_moe.experts.2.w2.weight") {
				x.NoGrad().FillInPlace(x.Narrow(n.Tensor, 0, rand.IntN(20), 1), math.NaN())
			}
		}
		must.Do(t, m.Save(x, saved))
	})
	_, err := text.Open(torchtest.Device(), saved, text.Options{Quantize: "mxfp4"})
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "layers.3.block_sparse_moe.experts.2.w2.weight", "without Quantize")
}
