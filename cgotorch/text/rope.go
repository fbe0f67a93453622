package text

import (
	"encoding/json"
	"errors"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// ropeConfig says how rotary position embeddings turn queries and keys.
type ropeConfig struct {
	kind     string // default, linear, llama3, yarn or longrope
	theta    float64
	width    int // elements of a head that turn, from the first on
	factor   float64
	low      float64   // llama3: low_freq_factor; yarn: beta_slow
	high     float64   // llama3: high_freq_factor; yarn: beta_fast
	original int       // tokens of a sequence before the scaling
	scale    float64   // factor of sines and cosines
	short    []float64 // longrope: divisors of the frequencies up to `original` tokens
	long     []float64 // longrope: the same for longer sequences
	smooth   bool      // yarn: bounds are not rounded
}

// hubRope has the fields of rope_parameters, or of rope_scaling in older files.
type hubRope struct {
	Type      string    `json:"rope_type"`
	OldType   string    `json:"type"`
	Theta     *float64  `json:"rope_theta"`
	Partial   *float64  `json:"partial_rotary_factor"`
	Factor    *float64  `json:"factor"`
	Attention *float64  `json:"attention_factor"`
	Low       *float64  `json:"low_freq_factor"`
	High      *float64  `json:"high_freq_factor"`
	Original  int       `json:"original_max_position_embeddings"`
	BetaFast  *float64  `json:"beta_fast"`
	BetaSlow  *float64  `json:"beta_slow"`
	MScale    *float64  `json:"mscale"`
	MScaleAll *float64  `json:"mscale_all_dim"`
	Truncate  *bool     `json:"truncate"`
	Short     []float64 `json:"short_factor"`
	Long      []float64 `json:"long_factor"`
}

// rope reads the rotary embeddings of a config, and gives each layer its own.
func (f family) rope(h hubConfig, c *decoderConfig) error {
	var byKind struct {
		Full    *hubRope `json:"full_attention"`
		Sliding *hubRope `json:"sliding_attention"`
	}
	var all hubRope
	data := h.RopeScaling // if both are there, this one counts
	if isNull(data) {
		data = h.RopeParameter
	}
	if !isNull(data) {
		if err := errors.Join(json.Unmarshal(data, &byKind), json.Unmarshal(data, &all)); err != nil {
			return refused("rope_parameters or rope_scaling is %.80s: %v", data, err)
		}
	}
	theta := or(h.Theta, f.theta)
	switch {
	case byKind.Full != nil:
		all = *byKind.Full
	case f.scaling != nil && isNull(data):
		all = *f.scaling
	}
	if h.Original == 0 {
		h.Original = f.original
	}
	one, err := all.config(f, h, c, theta)
	if err != nil {
		return err
	}
	c.ropes = []ropeConfig{one}
	if f.localTheta == 0 && byKind.Sliding == nil {
		return nil
	}
	local := or(byKind.Sliding, hubRope{})
	if one, err = local.config(f, h, c, or(h.LocalTheta, f.localTheta)); err != nil {
		return err
	}
	c.ropes = append(c.ropes, one)
	for i, layer := range c.layers {
		if layer.window > 0 {
			c.layers[i].rope = 1
		}
	}
	return nil
}

func isNull(data json.RawMessage) bool { return len(data) == 0 || string(data) == "null" }

func ptr[T any](v T) *T { return &v }

// config checks the fields. theta is the base when r has none.
func (r hubRope) config(f family, h hubConfig, c *decoderConfig, theta float64) (ropeConfig, error) {
	out := ropeConfig{kind: r.Type, theta: or(r.Theta, theta), factor: or(r.Factor, 1), original: h.Original, scale: 1}
	if out.kind == "" {
		out.kind = r.OldType
	}
	if out.original == 0 {
		out.original = r.Original
	}
	if out.original == 0 {
		out.original = c.context
	}
	out.width = int(float64(c.head) * or(r.Partial, or(h.Partial, 1)))
	switch {
	case out.width != c.head && !f.partial:
		return out, refused("partial_rotary_factor makes %d elements of a head of %d turn, and models of type %s turn all", out.width, c.head, h.ModelType)
	case !(out.theta > 0 && out.theta < 1e12):
		return out, refused("rope_theta is %v, want a number above 0", out.theta)
	case out.width < 2 || out.width%2 != 0 || out.width > c.head:
		return out, refused("partial_rotary_factor makes %d elements of a head of %d turn, want an even number", out.width, c.head)
	case !(out.factor >= 1 && out.factor < 1e6):
		return out, refused("the factor of rope_parameters is %v, want at least 1", out.factor)
	case out.original < 1:
		return out, refused("original_max_position_embeddings is %d, want at least 1", out.original)
	}
	if kind := f.ropeTypes[out.kind]; kind != "" {
		out.kind = kind
	}
	switch out.kind {
	case "", "default":
		out.kind = "default"
	case "linear":
	case "llama3":
		out.low, out.high = or(r.Low, 1), or(r.High, 4)
		if !(out.low > 0 && out.high > out.low) {
			return out, refused("low_freq_factor is %v and high_freq_factor %v, want two growing numbers above 0", out.low, out.high)
		}
	case "yarn":
		out.low, out.high, out.smooth = or(r.BetaSlow, 1), or(r.BetaFast, 32), !or(r.Truncate, true)
		if r.Factor == nil {
			out.factor = float64(c.context) / float64(out.original)
		}
		if !(out.low > 0 && out.high > out.low && out.theta > 1) {
			return out, refused("beta_slow is %v, beta_fast %v and rope_theta %v, want two growing numbers above 0, and one above 1", out.low, out.high, out.theta)
		}
		out.scale = r.yarnScale(out.factor)
	case "longrope":
		if err := r.longrope(c, &out); err != nil {
			return out, err
		}
	default:
		return out, refused("rope_type is %q, and only default, linear, llama3, yarn and longrope are known", out.kind)
	}
	if !(out.scale > 0) || math.IsInf(out.scale, 1) {
		return out, refused("attention_factor, or what the factor makes of it, is %v, want a number above 0", out.scale)
	}
	return out, nil
}

func (r hubRope) yarnScale(factor float64) float64 {
	grow := func(m float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 0.1*m*math.Log(factor) + 1
	}
	switch {
	case r.Attention != nil:
		return *r.Attention
	case or(r.MScale, 0) != 0 && or(r.MScaleAll, 0) != 0:
		return grow(*r.MScale) / grow(*r.MScaleAll)
	}
	return grow(1)
}

func (r hubRope) longrope(c *decoderConfig, out *ropeConfig) error {
	out.short, out.long = r.Short, r.Long
	if len(r.Short) != out.width/2 || len(r.Long) != out.width/2 {
		return refused("short_factor has %d numbers and long_factor %d, want %d", len(r.Short), len(r.Long), out.width/2)
	}
	for _, v := range append(append([]float64{}, r.Short...), r.Long...) {
		if !(v > 0) {
			return refused("short_factor or long_factor has %v, want numbers above 0", v)
		}
	}
	factor := or(r.Factor, float64(c.context)/float64(out.original))
	switch {
	case r.Attention != nil:
		out.scale = *r.Attention
	case factor > 1:
		out.scale = math.Sqrt(1 + math.Log(factor)/math.Log(float64(out.original)))
	}
	return nil
}

// long reports whether rotations are those of a long sequence. When a sequence becomes long, the
// rotation of its first tokens changes, and their cached keys are then wrong.
func (c *decoderConfig) long(tokens int) bool {
	return slices.ContainsFunc(c.ropes, func(r ropeConfig) bool { return r.kind == "longrope" && tokens > r.original })
}

// frequencies returns the angle of one position for each element, float32 [width]. Elements i and
// i+width/2 turn by one angle, and that of the first is negative: see [rotation]. The arithmetic is
// that of Hugging Face's transformers, in float32. It waits for the device.
func (r ropeConfig) frequencies(x *cgotorch.Exec, tokens int) *cgotorch.Tensor {
	exponents := x.DivScalar(x.Arange(cgotorch.Float32, 0, r.width, 2), r.width)
	powers := cgotorch.ToSlice[float32](x, call(x, "aten::pow.Scalar", r.theta, exponents))
	out := make([]float32, 2*len(powers))
	for i, power := range powers {
		inverse := 1 / power
		switch r.kind {
		case "linear":
			inverse /= float32(r.factor)
		case "llama3":
			inverse = r.llama3(inverse)
		case "longrope":
			divisors := r.short
			if tokens > r.original {
				divisors = r.long
			}
			inverse = 1 / (float32(divisors[i]) * power)
		case "yarn":
			ramp := r.ramp(i)
			inverse = 1/(float32(r.factor)*power)*ramp + inverse*(1-ramp)
		}
		out[i], out[i+len(powers)] = -inverse, inverse
	}
	return cgotorch.FromSlice(x, out, int64(len(out)))
}

// llama3 stretches long waves, leaves short ones, and goes over between them.
func (r ropeConfig) llama3(inverse float32) float32 {
	wave := float32(2*math.Pi) / inverse
	longest, shortest := float64(r.original)/r.low, float64(r.original)/r.high
	switch {
	case float64(wave) > longest:
		return inverse / float32(r.factor)
	case float64(wave) < shortest:
		return inverse
	}
	smooth := (float32(r.original)/wave - float32(r.low)) / float32(r.high-r.low)
	return (1-smooth)*(inverse/float32(r.factor)) + smooth*inverse
}

// ramp is the share of the stretched frequency in pair i, for yarn.
func (r ropeConfig) ramp(i int) float32 {
	at := func(turns float64) float64 {
		return float64(r.width) * math.Log(float64(r.original)/(turns*2*math.Pi)) / (2 * math.Log(r.theta))
	}
	low, high := at(r.high), at(r.low)
	if !r.smooth {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.width-1))
	if low == high {
		high += 0.001
	}
	return min(max((float32(i)-float32(low))/float32(high-low), 0), 1)
}
