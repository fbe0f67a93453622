package text

import (
	"math/rand/v2"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// features say which parts of sampling a step has. Steps with equal features share a graph.
type features struct {
	draw      bool // else the likeliest token is taken
	top       bool // top-k
	filter    bool // top-p or min-p
	penalties bool
	bias      bool
	mask      bool
	ranked    bool // the likeliest tokens are told
}

// sampler picks tokens on the device. Its parameters lie there, so that graphs read them.
type sampler struct {
	numbers  *cgotorch.Tensor // Float32 [7]: see the constants below
	uniforms *cgotorch.Tensor // Float32 [context+1]: the random number of each position
	seen     *cgotorch.Tensor // Float32 [vocab]: how often a token is in the sequence
	made     *cgotorch.Tensor // Float32 [vocab]: how often it is in the answer
	bias     *cgotorch.Tensor // Float32 [vocab]
	allowed  *cgotorch.Tensor // Bool [vocab]

	seed  uint64
	fresh bool // the uniforms are those of the seed
}

const (
	temperature = iota
	topP
	minP
	topK
	repetition
	presence
	frequency
	numbers
)

// mostRanked is the largest number of likeliest tokens that are told.
const mostRanked = 20

func newSampler(x *cgotorch.Exec, vocab, context int) *sampler {
	zeros := func(dtype cgotorch.DType, n int) *cgotorch.Tensor { return x.Zeros(dtype, int64(n)) }
	return &sampler{
		numbers: zeros(cgotorch.Float32, numbers), uniforms: zeros(cgotorch.Float32, context+1),
		seen: zeros(cgotorch.Float32, vocab), made: zeros(cgotorch.Float32, vocab), bias: zeros(cgotorch.Float32, vocab),
		allowed: zeros(cgotorch.Bool, vocab),
	}
}

func (s *sampler) tensors() []*cgotorch.Tensor {
	return []*cgotorch.Tensor{s.numbers, s.uniforms, s.seen, s.made, s.bias, s.allowed}
}

// seedWith makes the random numbers of all positions. They depend on the seed and the position
// alone, and lie from 0 up to a little less than 1.
func (s *sampler) seedWith(x *cgotorch.Exec, seed uint64) {
	if s.fresh && s.seed == seed {
		return
	}
	all := make([]float32, s.uniforms.Numel())
	for i := range all {
		all[i] = float32(rand.NewPCG(seed, uint64(i)).Uint64()>>40) / (1 << 24) * (1 - 1.0/(1<<20))
	}
	write(x, s.uniforms, all)
	s.seed, s.fresh = seed, true
}

// pick picks the token behind logits [1, vocab]. It moves the position, Int64 [1], to that of the
// new token, and writes the token, Int64 [1]. The result gets the token and its log probability:
// see [results]. edge is that of the kernel that draws.
func (s *sampler) pick(x *cgotorch.Exec, f features, logits, token, position, result *cgotorch.Tensor, edge string) {
	x.Tidy(func() *cgotorch.Tensor {
		logits = x.To(x.View(logits, -1), cgotorch.Float32)
		changed := s.change(x, f, logits)
		var sum *cgotorch.Tensor // a kernel that draws has its own
		if !f.draw || f.ranked {
			sum = logSum(x, logits)
		}
		if f.draw {
			x.Call("streamtorch::token_drawn", logits, changed, s.numbers, s.uniforms, token, position, result, f.top, f.filter, edge)
		} else {
			x.AddScalarInPlace(position, 1)
			x.CopyInPlace(token, likeliest(x, changed))
			tell(x, result, 0, token, x.Sub(x.IndexSelect(logits, 0, token), sum))
		}
		if f.penalties {
			s.count(x, token)
		}
		if f.ranked {
			values, ids := x.TopK(logits, min(mostRanked, int(logits.Numel())), 0, cgotorch.TopKOptions{})
			tell(x, result, 2, ids, x.Sub(values, sum))
		}
		return nil
	})
}

// tell writes tokens and their log probabilities into the result, from element `at` on.
func tell(x *cgotorch.Exec, result *cgotorch.Tensor, at int, tokens, logs *cgotorch.Tensor) {
	row := x.Cat([]*cgotorch.Tensor{x.To(tokens, cgotorch.Float64), x.To(logs, cgotorch.Float64)}, 0)
	x.CopyInPlace(x.Narrow(result, 0, at, int(row.Numel())), row)
}

// count counts a token, Int64 [1], for the penalties.
func (s *sampler) count(x *cgotorch.Exec, token *cgotorch.Tensor) {
	one := x.Ones(cgotorch.Float32, 1)
	call(x, "aten::index_add_", s.seen, 0, token, one, 1).Close()
	call(x, "aten::index_add_", s.made, 0, token, one, 1).Close()
}

// inRows returns t [n] as rows of one length. LibTorch reduces each row by a block of its own on a
// GPU, and a whole vocabulary by one.
func inRows(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	rows, n := int64(1), t.Numel()
	for rows < 512 && n%(2*rows) == 0 {
		rows *= 2
	}
	return x.View(t, rows, -1)
}

// likeliest returns the first token that has the largest of the logits [n], Int64 [1].
func likeliest(x *cgotorch.Exec, logits *cgotorch.Tensor) *cgotorch.Tensor {
	rows := inRows(x, logits)
	values, columns := x.MaxDim(rows, 1, cgotorch.ReduceOptions{})
	row := x.ArgMax(values, 0, cgotorch.ReduceOptions{KeepDim: true})
	return x.Add(x.MulScalar(row, rows.Shape()[1]), x.IndexSelect(columns, 0, row))
}

// logSum returns the logarithm of the sum of the exponentials of the logits [n], without
// dimensions.
func logSum(x *cgotorch.Exec, logits *cgotorch.Tensor) *cgotorch.Tensor {
	rows := inRows(x, logits)
	top := x.Max(x.AMax(rows, []int64{1}, cgotorch.ReduceOptions{}))
	sums := x.SumDim(x.Exp(x.Sub(rows, top)), []int64{1}, cgotorch.SumOptions{})
	return x.Add(x.Log(x.Sum(sums)), top)
}

// number returns a parameter, [1].
func (s *sampler) number(x *cgotorch.Exec, i int) *cgotorch.Tensor {
	return x.Narrow(s.numbers, 0, i, 1)
}

// change applies penalties, bias and mask to logits [vocab]. The penalties are those of
// transformers (repetition) and of OpenAI's interface (presence and frequency).
func (s *sampler) change(x *cgotorch.Exec, f features, logits *cgotorch.Tensor) *cgotorch.Tensor {
	if f.penalties {
		factor := s.number(x, repetition)
		less := x.Where(x.GtScalar(logits, 0), x.Div(logits, factor), x.Mul(logits, factor))
		logits = x.Where(x.GtScalar(s.seen, 0), less, logits)
		logits = x.Sub(logits, x.Mul(s.made, s.number(x, frequency)))
		logits = x.Sub(logits, x.Mul(x.To(x.GtScalar(s.made, 0), cgotorch.Float32), s.number(x, presence)))
	}
	if f.bias {
		logits = x.Add(logits, s.bias)
	}
	if f.mask {
		logits = x.MaskedFill(logits, x.LogicalNot(s.allowed), lowest(cgotorch.Float32))
	}
	return logits
}
