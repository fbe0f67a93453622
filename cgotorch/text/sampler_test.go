package text_test

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// expected computes by hand, in float64, how likely each token is to be drawn after a conversation.
func expected(logits []float32, prompt, answer []int64, o text.GenerateOptions) []float64 {
	scores := make([]float64, len(logits))
	for id, v := range logits {
		score := float64(v)
		if o.RepetitionPenalty != 0 && (slices.Contains(prompt, int64(id)) || slices.Contains(answer, int64(id))) {
			if score > 0 {
				score /= o.RepetitionPenalty
			} else {
				score *= o.RepetitionPenalty
			}
		}
		for _, token := range answer {
			if token == int64(id) {
				score -= o.FrequencyPenalty
			}
		}
		if slices.Contains(answer, int64(id)) {
			score -= o.PresencePenalty
		}
		scores[id] = (score + o.Bias[int64(id)]) / o.Temperature
	}
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	if o.TopK > 0 {
		order = order[:min(len(order), o.TopK)]
	}
	shares, sum := make([]float64, len(scores)), 0.0
	for _, id := range order {
		shares[id] = math.Exp(scores[id] - scores[order[0]])
		sum += shares[id]
	}
	before, kept := 0.0, 0.0
	for _, id := range order {
		share := shares[id] / sum
		if o.TopP > 0 && before >= o.TopP || share < o.MinP*shares[order[0]]/sum {
			shares[id] = 0
		}
		before += share
		kept += shares[id]
	}
	for id := range shares {
		shares[id] /= kept
	}
	return shares
}

// The tokens that are drawn are as frequent as the options say, and no other token is drawn.
func TestGenerateOptions_Draw(t *testing.T) {
	if testing.Short() {
		t.Skip("it draws some thousand tokens")
	}
	torchtest.CheckLeaks(t)
	o := text.Options{Context: 64}
	if torchtest.Device().IsCUDA() {
		o.DType = cgotorch.Float16 // as the kernels of a token take it
	}
	m := openRandom(t, strings.Replace(configs["llama"], "{", `{"head_dim": 16, `, 1), o)
	m.Edge("early")
	prompt := []int64{5, 9, 5, 30, 7}
	for name, o := range map[string]text.GenerateOptions{
		"all":         {Temperature: 1},
		"temperature": {Temperature: 3},
		"top-k":       {Temperature: 2, TopK: 5},
		"top-p":       {Temperature: 1.5, TopP: 0.7},
		"min-p":       {Temperature: 2, MinP: 0.2},
		"together":    {Temperature: 2, TopK: 12, TopP: 0.8, MinP: 0.05},
		"penalties":   {Temperature: 1, RepetitionPenalty: 0.3, PresencePenalty: 0.7, FrequencyPenalty: 0.4},
		"bias":        {Temperature: 1, Bias: map[int64]float64{5: 3, 30: -100}},
	} {
		t.Run(name, func(t *testing.T) {
			c := m.NewConversation()
			defer c.Close()
			o.MaxTokens, o.IgnoreEnd = 2, true
			const draws = 300
			first, second := make([]float64, 61), map[int64][]int64{}
			for seed := range draws {
				o.Seed = uint64(seed) * 0x9E3779B97F4A7C15
				ids, _ := tokensOf(t, c, prompt, o)
				if seed < 20 { // what is told besides does not change a draw
					o.Ranked = 3
					if again, _ := tokensOf(t, c, prompt, o); !slices.Equal(again, ids) {
						t.Errorf("with Ranked the tokens are %v, and %v without", again, ids)
					}
					o.Ranked = 0
				}
				first[ids[0]]++
				second[ids[0]] = append(second[ids[0]], ids[1])
			}
			check := func(counts []float64, n int, answer []int64) {
				var logits []float32
				whole := slices.Concat(prompt, answer)
				must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
					x = x.NoGrad()
					all := cgotorch.ToSlice[float32](x, m.Forward(x, cgotorch.FromSlice(x, whole, 1, int64(len(whole)))))
					logits = all[len(all)-61:]
					return nil
				}))
				for id, want := range expected(logits, prompt, answer, o) {
					got := counts[id] / float64(n)
					bound := 5*math.Sqrt(want*(1-want)/float64(n)) + 4/float64(n)
					if want == 0 && counts[id] > 0 || math.Abs(got-want) > bound+1e-9 {
						t.Errorf("after %v token %d was drawn in %.3f of %d, want %.3f ± %.3f", answer, id, got, n, want, bound)
					}
				}
			}
			check(first, draws, nil)
			likeliest := int64(slices.Index(first, slices.Max(first)))
			counts := make([]float64, 61)
			for _, id := range second[likeliest] {
				counts[id]++
			}
			check(counts, len(second[likeliest]), []int64{likeliest})
		})
	}
}

// The draw of a token depends on the seed and its position alone.
func TestGenerateOptions_Seed(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["llama"], text.Options{Context: 64})
	c := m.NewConversation()
	defer c.Close()
	o := text.GenerateOptions{MaxTokens: 20, Temperature: 1, IgnoreEnd: true, Seed: 3}
	whole, _ := tokensOf(t, c, []int64{1, 2, 3}, o)
	rest, _ := tokensOf(t, c, slices.Concat([]int64{1, 2, 3}, whole[:7]), o)
	if !slices.Equal(rest[:13], whole[7:]) {
		t.Errorf("from the middle: got %v, want %v", rest[:13], whole[7:])
	}
	o.Seed = 4
	if other, _ := tokensOf(t, c, []int64{1, 2, 3}, o); slices.Equal(other, whole) {
		t.Error("two seeds give one answer")
	}
}
