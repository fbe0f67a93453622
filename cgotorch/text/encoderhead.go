package text

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// encoderHead makes one row of numbers of the hidden states of each text.
type encoderHead struct {
	pools  []string // as sentence-transformers names them; their results lie beside each other
	stages []func(x *cgotorch.Exec, h *cgotorch.Tensor) *cgotorch.Tensor
}

// poolings returns the names of all poolings, as sentence-transformers has them.
func poolings() []string {
	return []string{"cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"}
}

// forward maps hidden states [rows, width] to float32 [texts, n].
func (h *encoderHead) forward(x *cgotorch.Exec, b *encoderBatch, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		var all []*cgotorch.Tensor
		weighted := h.weighted()
		for _, name := range h.pools {
			var weights *cgotorch.Tensor
			if i := slices.Index(weighted, name); i >= 0 {
				weights = b.weights[i]
			}
			all = append(all, b.pool(x, name, hidden, weights))
		}
		out := all[0]
		if len(all) > 1 {
			out = x.Cat(all, 1)
		}
		for _, stage := range h.stages {
			out = stage(x, out)
		}
		return out
	})
}

// weighted returns the poolings that are weighted sums of rows.
func (h *encoderHead) weighted() []string {
	return slices.DeleteFunc(slices.Clone(h.pools), func(name string) bool { return name == "cls" || name == "lasttoken" || name == "max" })
}

// poolingWeight returns the weight of token i of n.
func poolingWeight(name string, i, n int) float32 {
	switch name {
	case "mean_sqrt_len_tokens":
		return float32(1 / math.Sqrt(float64(n)))
	case "weightedmean":
		return float32(float64(i+1) / (float64(n) * float64(n+1) / 2))
	}
	return float32(1 / float64(n))
}

// pool returns one row of each text, in float32. `weights` are those of a weighted sum.
func (b *encoderBatch) pool(x *cgotorch.Exec, name string, hidden, weights *cgotorch.Tensor) *cgotorch.Tensor {
	wide := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.To(t, cgotorch.Float32) }
	const sum, maximum = 0, 2
	switch name {
	case "cls":
		return wide(x.IndexSelect(hidden, 0, b.first))
	case "lasttoken":
		return wide(x.IndexSelect(hidden, 0, b.last))
	}
	mode, o := sum, cgotorch.EmbeddingBagOptions{PerSampleWeights: weights}
	if name == "max" {
		mode = maximum
	}
	out, _, _, _ := x.EmbeddingBag(wide(hidden), x.Arange(cgotorch.Int64, 0, b.rows, 1), b.first, mode, o)
	return out
}

func normalize(x *cgotorch.Exec, h *cgotorch.Tensor) *cgotorch.Tensor {
	length := x.VectorNorm(h, 2, []int64{-1}, cgotorch.SumOptions{KeepDim: true})
	return x.Div(h, x.Clamp(length, 1e-12, nil))
}

// rankHead lists the tensors of a cross-encoder's head, and returns the head.
func (c *encoderConfig) rankHead(w *encoderWeights) *encoderHead {
	r, h := c.rank, &encoderHead{pools: []string{c.rank.pool}}
	dense := w.linear(cgotorch.Float32, []string{c.names.dense}, c.width, c.width, r.bias)
	var norm *layerNorm
	if r.norm {
		norm = w.norm(cgotorch.Float32, c.names.denseNorm, c.width, c.eps, c.normBias)
	}
	score := w.linear(cgotorch.Float32, []string{c.names.score}, c.width, 1, true)
	activation := map[bool]string{true: "sigmoid", false: "linear"}[r.sigmoid]
	h.stages = append(h.stages, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		return score.forward(x, norm.forward(x, dense.forward(x, in, r.activation)), activation)
	})
	return h
}

// hubPooling has the fields of Pooling's config.json.
type hubPooling struct {
	Width         int   `json:"embedding_dimension"`
	OldWidth      int   `json:"word_embedding_dimension"`
	Mode          any   `json:"pooling_mode"`
	IncludePrompt *bool `json:"include_prompt"`

	CLS          bool  `json:"pooling_mode_cls_token"`
	Max          bool  `json:"pooling_mode_max_tokens"`
	Mean         *bool `json:"pooling_mode_mean_tokens"`
	MeanSqrt     bool  `json:"pooling_mode_mean_sqrt_len_tokens"`
	WeightedMean bool  `json:"pooling_mode_weightedmean_tokens"`
	Last         bool  `json:"pooling_mode_lasttoken"`
}

// pools returns the names of the module's poolings, in order.
func (p *hubPooling) pools() (names []string, err error) {
	switch mode := p.Mode.(type) {
	case nil:
		for i, set := range []bool{p.CLS, p.Max, p.Mean != nil && *p.Mean, p.MeanSqrt, p.WeightedMean, p.Last} {
			if set {
				names = append(names, poolings()[i])
			}
		}
		if names == nil {
			names = []string{"mean"}
		}
	case string:
		names = []string{mode}
	case []any:
		for _, one := range mode {
			name, _ := one.(string)
			names = append(names, name)
		}
	}
	for _, name := range names {
		if !slices.Contains(poolings(), name) {
			return nil, refused("pooling_mode is %v, want names of %v", p.Mode, poolings())
		}
	}
	if len(names) == 0 {
		return nil, refused("pooling_mode is %v, want a name or a list of names", p.Mode)
	}
	return names, nil
}

// hubDense has the fields of Dense's config.json.
type hubDense struct {
	In         int     `json:"in_features"`
	Out        int     `json:"out_features"`
	Bias       *bool   `json:"bias"`
	Activation *string `json:"activation_function"`
	Input      *string `json:"module_input_name"`
	Output     *string `json:"module_output_name"`
	Residual   bool    `json:"use_residual"`
}

// dense lists the tensors of a Dense. It returns the width behind it.
func (h *encoderHead) dense(w *encoderWeights, folder string, width int) (int, error) {
	var d hubDense
	path := filepath.Join(folder, "config.json")
	if err := readJSON(path, &d); err != nil {
		return 0, err
	}
	activation, ok := "tanh", true
	if d.Activation != nil {
		activation, ok = torchActivation(*d.Activation)
	}
	const vector = "sentence_embedding"
	var err error
	switch {
	case !ok:
		err = refused("activation_function is %q, and only torch.nn's Identity, Tanh, GELU, ReLU, SiLU and Sigmoid are known", *d.Activation)
	case d.In != width:
		err = refused("in_features is %d, and the module before gives %d numbers", d.In, width)
	case d.Out < 1 || d.Out > 1<<20:
		err = refused("out_features is %d, want 1 to %d", d.Out, 1<<20)
	case or(d.Input, vector) != vector || or(d.Output, vector) != vector:
		err = refused("module_input_name is %q and module_output_name is %q, and only %s is known", or(d.Input, vector), or(d.Output, vector), vector)
	}
	if err != nil {
		return 0, fmt.Errorf("text: %s: %w", path, err)
	}
	if err := w.open(folder); err != nil {
		return 0, err
	}
	p := w.linear(cgotorch.Float32, []string{"linear"}, d.In, d.Out, or(d.Bias, true))
	var residual *product
	if d.Residual && d.In != d.Out {
		residual = w.linear(cgotorch.Float32, []string{"residual"}, d.In, d.Out, false)
	}
	h.stages = append(h.stages, func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
		out := p.forward(x, in, activation)
		switch {
		case residual != nil:
			out = x.Add(out, residual.forward(x, in, "linear"))
		case d.Residual:
			out = x.Add(out, in)
		}
		return out
	})
	return d.Out, nil
}
