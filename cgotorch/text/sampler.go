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

// sampler picks the tokens of rows on the device. Its parameters lie there, so that graphs read
// them.
type sampler struct {
	numbers  *cgotorch.Tensor // Float32 [rows, 7]: see the constants below
	uniforms *cgotorch.Tensor // Float32 [rows, context+1]: the random number of each position
	seen     *cgotorch.Tensor // Float32 [rows, vocab]: how often a token is in the sequence
	made     *cgotorch.Tensor // Float32 [rows, vocab]: how often it is in the answer
	bias     *cgotorch.Tensor // Float32 [rows, vocab]
	allowed  *cgotorch.Tensor // Bool [rows, vocab]

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

func newSampler(x *cgotorch.Exec, rows, vocab, context int) *sampler {
	zeros := func(dtype cgotorch.DType, n int) *cgotorch.Tensor { return x.Zeros(dtype, int64(rows), int64(n)) }
	return &sampler{
		numbers: zeros(cgotorch.Float32, numbers), uniforms: zeros(cgotorch.Float32, context+1),
		seen: zeros(cgotorch.Float32, vocab), made: zeros(cgotorch.Float32, vocab), bias: zeros(cgotorch.Float32, vocab),
		allowed: zeros(cgotorch.Bool, vocab),
	}
}

func (s *sampler) tensors() []*cgotorch.Tensor {
	return []*cgotorch.Tensor{s.numbers, s.uniforms, s.seen, s.made, s.bias, s.allowed}
}

// rows returns the sampler of n rows from row `from` on. Its tensors share the memory of s.
func (s *sampler) rows(x *cgotorch.Exec, from, n int) *sampler {
	some := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.Narrow(t, 0, from, n) }
	return &sampler{numbers: some(s.numbers), uniforms: some(s.uniforms), seen: some(s.seen), made: some(s.made), bias: some(s.bias), allowed: some(s.allowed)}
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

// pick picks the tokens behind logits [rows, vocab]. It moves each position, Int64 [rows], to that
// of the new token, and writes the tokens, Int64 [rows]. The result gets tokens and their log
// probabilities: see [results]. Of several rows, those with a position below 0 are passed over.
// edge is that of the kernel that draws.
func (s *sampler) pick(x *cgotorch.Exec, f features, logits, token, position, result *cgotorch.Tensor, edge string) {
	x.Tidy(func() *cgotorch.Tensor {
		rows := logits.Shape()[0]
		logits = x.To(logits, cgotorch.Float32)
		changed := s.change(x, f, logits)
		var sum *cgotorch.Tensor // a kernel that draws has its own
		if f.ranked || !f.draw && rows == 1 {
			sum = logSum(x, logits)
		}
		switch {
		case f.draw || rows > 1 && changed != logits: // a row that takes the likeliest one has a top-k of 1
			x.Call("streamtorch::token_drawn", logits, changed, s.numbers, s.uniforms, token, position, result, f.top || !f.draw, f.filter, edge)
		case rows > 1:
			x.Call("streamtorch::token_likeliest", logits, token, position, result, edge)
		default:
			x.AddScalarInPlace(position, 1)
			x.CopyInPlace(token, likeliest(x, changed))
			tell(x, result, 0, x.View(token, 1, 1), x.Sub(x.IndexSelect(logits, 1, token), sum))
		}
		if f.penalties {
			s.count(x, token, position)
		}
		if f.ranked {
			values, ids := x.TopK(logits, min(mostRanked, int(logits.Shape()[1])), 1, cgotorch.TopKOptions{})
			tell(x, result, 2, ids, x.Sub(values, sum))
		}
		return nil
	})
}

// tell writes tokens and their log probabilities, [rows, n], into the result, from column `at` on.
func tell(x *cgotorch.Exec, result *cgotorch.Tensor, at int, tokens, logs *cgotorch.Tensor) {
	both := x.Cat([]*cgotorch.Tensor{x.To(tokens, cgotorch.Float64), x.To(logs, cgotorch.Float64)}, 1)
	x.CopyInPlace(x.Narrow(result, 1, at, int(both.Shape()[1])), both)
}

// count counts tokens, Int64 [rows], for the penalties. Rows that were passed over have no new one.
func (s *sampler) count(x *cgotorch.Exec, token, position *cgotorch.Tensor) {
	token = x.Unsqueeze(token, 1)
	//edge:batch-counted-once TestBatcher_PenaltiesBesideLong
	one := x.To(x.GeScalar(x.Unsqueeze(position, 1), 0), cgotorch.Float32)
	call(x, "aten::scatter_add_", s.seen, 1, token, one).Close()
	call(x, "aten::scatter_add_", s.made, 1, token, one).Close()
}

// inRows returns t [1, n] as rows of one length. LibTorch reduces each row by a block of its own on
// a GPU, and a whole vocabulary by one.
func inRows(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	rows, n := int64(1), t.Numel()
	for rows < 512 && n%(2*rows) == 0 {
		rows *= 2
	}
	return x.View(t, rows, -1)
}

// likeliest returns the first token that has the largest of the logits [1, n], Int64 [1].
func likeliest(x *cgotorch.Exec, logits *cgotorch.Tensor) *cgotorch.Tensor {
	rows := inRows(x, logits)
	values, columns := x.MaxDim(rows, 1, cgotorch.ReduceOptions{})
	row := x.ArgMax(values, 0, cgotorch.ReduceOptions{KeepDim: true})
	return x.Add(x.MulScalar(row, rows.Shape()[1]), x.IndexSelect(columns, 0, row))
}

// logSum returns the logarithm of the sum of the exponentials of each row of logits, [rows, 1].
func logSum(x *cgotorch.Exec, logits *cgotorch.Tensor) *cgotorch.Tensor {
	if logits.Shape()[0] > 1 {
		return call(x, "aten::logsumexp", logits, []int64{1}, true)
	}
	rows := inRows(x, logits)
	top := x.Max(x.AMax(rows, []int64{1}, cgotorch.ReduceOptions{}))
	sums := x.SumDim(x.Exp(x.Sub(rows, top)), []int64{1}, cgotorch.SumOptions{})
	return x.View(x.Add(x.Log(x.Sum(sums)), top), 1, 1)
}

// number returns a parameter of each row, [rows, 1].
func (s *sampler) number(x *cgotorch.Exec, i int) *cgotorch.Tensor {
	return x.Narrow(s.numbers, 1, i, 1)
}

// change applies penalties, bias and mask to logits [rows, vocab]. The penalties are those of
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
