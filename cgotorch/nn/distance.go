package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// CosineSimilarityOptions are the options of [CosineSimilarity].
type CosineSimilarityOptions struct {
	Dim cgotorch.Opt[int]     // the dimension of the vectors; unset means 1
	Eps cgotorch.Opt[float64] // least length of a vector; unset means 1e-8
}

// CosineSimilarity returns the cosines of the angles between the vectors of a and b, along one
// dimension. The result lacks this dimension. It does not wait.
func CosineSimilarity(x *cgotorch.Exec, a, b *cgotorch.Tensor, o CosineSimilarityOptions) *cgotorch.Tensor {
	if a.DType() != cgotorch.Float16 || b.DType() != cgotorch.Float16 {
		return x.Call1("aten::cosine_similarity", a, b, o.Dim.Or(1), o.Eps.Or(1e-8))
	}
	return x.Tidy(func() *cgotorch.Tensor { // of float16 the squares overflow, and Eps is 0
		return x.To(x.Call1("aten::cosine_similarity", squarable(x, a), squarable(x, b), o.Dim.Or(1), o.Eps.Or(1e-8)), cgotorch.Float16)
	})
}
