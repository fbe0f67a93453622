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

var formsOf4 = []string{"mxfp4", "int4", "int4-128"}

// groupOf returns how many columns have one scale.
func groupOf(form string) int {
	if form == "int4-128" {
		return 128
	}
	return 32
}

// Packed codes have the shape that pack4 gives them.
func TestPacked4(t *testing.T) {
	torchtest.Do(t, torchtest.Device(), func(x *cgotorch.Exec) {
		for _, columns := range []int{32, 64, 128, 160, 768, 2048, 2880, 4096, 4128, 8192, 8224, 14336, 32768} {
			for _, form := range formsOf4 {
				of, group := cgotorch.BFloat16, groupOf(form)
				if form == "mxfp4" {
					of = cgotorch.Uint8
				}
				groups := int64((columns + group - 1) / group)
				packed := x.Call1("streamtorch::pack4", x.Zeros(cgotorch.Uint8, 3, groups, int64(group/2)), x.Zeros(of, 3, groups), form)
				if got := text.Packed4(form, 3, columns); int64(got[0]) != packed.Shape()[0] || int64(got[1]) != packed.Shape()[1] {
					t.Errorf("%s: %d columns have the shape %v, want %v", form, columns, got, packed.Shape())
				}
			}
		}
	})
}

// nearest4 returns the numbers of 4 bits nearest to those of a group.
func nearest4(form string, group []float32) (all []float32) {
	largest := float32(0) // with its sign
	for _, v := range group {
		if math.Abs(float64(v)) > math.Abs(float64(largest)) {
			largest = v
		}
	}
	var numbers []float64
	scale := 0.
	switch {
	case largest == 0:
	case form != "mxfp4":
		bits := math.Float32bits(largest / -8)
		scale = float64(math.Float32frombits((bits + 0x7FFF + bits>>16&1) &^ 0xFFFF)) // in bfloat16
	default:
		scale = math.Exp2(math.Floor(math.Log2(math.Abs(float64(largest)))) - 2)
	}
	for code := range 16 {
		if form != "mxfp4" {
			numbers = append(numbers, float64(code-8))
		} else {
			numbers = append(numbers, []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[code%8]*float64(1-code/8*2))
		}
	}
	for _, v := range group {
		best := 0.
		for _, n := range numbers {
			if of := n * scale; math.Abs(of-float64(v)) < math.Abs(best-float64(v)) {
				best = of
			}
		}
		all = append(all, float32(best))
	}
	return all
}

// With Quantize mxfp4 a mixture has the logits of one whose experts are rounded to 4 bits, and with
// int4 and int4-128 those of one all of whose products are.
func TestOpen_CodesOf4Bits(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name := range mixtures {
		for _, form := range formsOf4 {
			t.Run(name+"/"+form, func(t *testing.T) { codesOf4Bits(t, name, form) })
		}
	}
	for _, form := range formsOf4[1:] {
		t.Run("llama/"+form, func(t *testing.T) { codesOf4Bits(t, "llama", form) })
	}
}

func codesOf4Bits(t *testing.T, name, form string) {
	saved := filepath.Join(mixtureFolder(t, name), "saved")
	m := openMixture(t, filepath.Dir(saved), 0, "")
	torchtest.DoOn(t, m.OwnStream(), func(x *cgotorch.Exec) { must.Do(t, m.Save(x, saved)) })
	narrow := openMixture(t, saved, 0, form)
	isNarrow := func(name string) bool {
		experts := strings.Contains(name, "experts") && !strings.HasSuffix(name, "bias")
		return experts || form != "mxfp4" && (strings.HasSuffix(name, "_proj.weight") || name == "lm_head.weight")
	}
	var changed, length float64
	torchtest.DoOn(t, m.OwnStream(), func(x *cgotorch.Exec) {
		x = x.NoGrad()
		for _, n := range m.Weights {
			if !isNarrow(n.Name) {
				continue
			}
			turned := len(n.Tensor.Shape()) == 3 // in one tensor of all experts, columns are rows
			rows := n.Tensor
			if turned {
				rows = x.Transpose(rows, 1, 2)
			}
			numbers := cgotorch.ToSlice[float32](x, x.To(x.Reshape(rows, -1), cgotorch.Float32))
			columns := rows.Shape()[len(rows.Shape())-1]
			for row := range slices.Chunk(numbers, int(columns)) {
				for group := range slices.Chunk(row, groupOf(form)) {
					near := nearest4(form, group)
					for i, v := range near {
						changed += math.Pow(float64(v-group[i]), 2)
						length += math.Pow(float64(group[i]), 2)
					}
					copy(group, near)
				}
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
		if isNarrow(n.Name) {
			t.Errorf("%s is a weight, and has 4 bits", n.Name)
		}
	}
	torchtest.DoOn(t, narrow.OwnStream(), func(x *cgotorch.Exec) {
		torchtest.WantError(t, narrow.Save(x, t.TempDir()), cgotorch.ErrInvalidArgument, "became "+form)
	})
}

// Dense models of every kind open with int4 and int4-128, drawn and with a tied head, and answer.
func TestOpen_Int4Dense(t *testing.T) {
	torchtest.CheckLeaks(t)
	for i, name := range []string{"llama", "windows", "long", "llama", "windows", "long"} {
		form := formsOf4[1+i/3]
		for _, tied := range []string{"false", "true"} {
			folder := t.TempDir()
			config := strings.Replace(configs[name], "{", `{"tie_word_embeddings": `+tied+", ", 1)
			must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644))
			m := must.Get(text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1, Quantize: form, Context: 64}))(t)
			c := m.NewConversation()
			if ids, _ := tokensOf(t, c, []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 9, Greedy: true, IgnoreEnd: true}); len(ids) != 9 {
				t.Errorf("%s, %s, tied %s: %v", form, name, tied, ids)
			}
			must.Do(t, c.Close())
			must.Do(t, m.Close())
		}
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
	for _, form := range formsOf4 {
		_, err := text.Open(torchtest.Device(), saved, text.Options{Quantize: form})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "layers.3.block_sparse_moe.experts.2.w2.weight", "without Quantize")
	}
}

// A prompt whose experts are computed together, because there is room for their numbers, has the
// logits of one whose experts are computed one by one.
func TestOpen_CodesOf4Bits_Together(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name := range mixtures {
		for _, form := range formsOf4 {
			folder := mixtureFolder(t, name)
			o := text.Options{RandomWeights: 7, DType: cgotorch.BFloat16, Context: 160, Quantize: form}
			together := must.Get(text.Open(torchtest.Device(), folder, o))(t)
			o.DeviceMemory = 1 << 40 // a bound, within which there is no room for numbers
			single := must.Get(text.Open(torchtest.Device(), folder, o))(t)
			if !together.WideExperts() || single.WideExperts() {
				t.Errorf("%s, %s: %v together, and %v within a bound", name, form, together.WideExperts(), single.WideExperts())
			}
			if d := distance(logitsOf(t, together), logitsOf(t, single)); !(d < 0.02) {
				t.Errorf("%s, %s: the logits are %v apart", name, form, d)
			}
			must.Do(t, together.Close())
			must.Do(t, single.Close())
		}
	}
}
