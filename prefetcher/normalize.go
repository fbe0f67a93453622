package prefetcher

import "github.com/streamtorch/streamtorch/cgotorch"

// normalizer makes (p/255 - mean)/std of pixels.
//
// Note [Two ways to normalise]: on the CPU it divides, subtracts and divides as torchvision's ToTensor and Normalize do, so that
// the numbers are theirs to the bit: a training run that begins with a difference in the last bit ends elsewhere. On a CUDA
// device that would be four passes over the memory; there it is p*scale + shift with scale = 1/(255 std) and shift = -mean/std,
// which is one kernel from uint8 to the images' dtype, and differs in the last bits.
type normalizer struct {
	mean, std    *cgotorch.Tensor // [C], on the CPU
	scale, shift *cgotorch.Tensor // [C], on CUDA
	dtype        cgotorch.DType   // of all of them, and of the arithmetic
}

// allocate makes the constants. If it fails, close frees what there is.
func (n *normalizer) allocate(x *cgotorch.Exec, o Options) {
	n.dtype = cgotorch.Float32
	if o.DType == cgotorch.Float64 {
		n.dtype = cgotorch.Float64
	}
	keep := func(value func(mean, std float64) float64) *cgotorch.Tensor {
		values := make([]float64, len(o.Mean))
		for i := range values {
			values[i] = value(o.Mean[i], o.Std[i])
		}
		return x.Keep(x.To(cgotorch.FromSlice(x, values), n.dtype))
	}
	if x.Device().IsCUDA() {
		n.scale = keep(func(_, std float64) float64 { return 1 / (255 * std) })
		n.shift = keep(func(mean, std float64) float64 { return -mean / std })
		return
	}
	n.mean = keep(func(mean, _ float64) float64 { return mean })
	n.std = keep(func(_, std float64) float64 { return std })
}

// write enqueues out = (pixels/255 - mean)/std. pixels is uint8 [N, H, W, C], out of a floating dtype and the same shape.
func (n *normalizer) write(x *cgotorch.Exec, pixels, out *cgotorch.Tensor) {
	if n.scale != nil {
		x.AddCMulOut(n.shift, pixels, n.scale, 1, out)
		return
	}
	v := x.To(pixels, n.dtype)
	x.DivScalarInPlace(v, 255)
	x.SubInPlace(v, n.mean)
	x.DivInPlace(v, n.std)
	x.CopyInPlace(out, v)
}

func (n *normalizer) close() {
	for _, t := range []*cgotorch.Tensor{n.mean, n.std, n.scale, n.shift} {
		t.Close()
	}
}
