package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

const (
	patch      = 2 // height and width of the whitening layer's kernel
	patchSize  = 3 * patch * patch
	classCount = 10
)

// network is the model with the parts that training treats in a special way.
type network struct {
	*nn.Sequential
	whiten *nn.Conv2d
	norms  []*nn.BatchNorm2d
}

// newNetwork makes the model. Its three groups have the given widths. The whitening layer needs
// setWhitening before its first use.
func newNetwork(x *cgotorch.Exec, widths [3]int) *network {
	n := &network{whiten: nn.NewConv2d(x, 3, 2*patchSize, nn.Square(patch), nn.Conv2dOptions{})}
	nn.Constant(x, n.whiten.Bias, 0)
	modules := []nn.Module{n.whiten, &nn.GELU{}}
	in := 2 * patchSize
	for _, width := range widths {
		modules = append(modules, n.group(x, in, width))
		in = width
	}
	modules = append(modules, &nn.MaxPool2d{Kernel: nn.Square(3)}, &nn.Flatten{},
		nn.NewLinear(x, in, classCount, nn.LinearOptions{NoBias: true}),
		nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.MulScalar(in, 1.0/9) }))
	n.Sequential = nn.NewSequential(modules...)
	nn.To(x, n.Sequential, nn.ToOptions{ChannelsLast: true})
	n.freeze(x, n.whiten.Weight)
	for _, norm := range n.norms {
		n.freeze(x, norm.Weight)
	}
	return n
}

// group returns two convolutions with norms. The first norm works on pooled images.
func (n *network) group(x *cgotorch.Exec, in, out int) nn.Module {
	first, second := n.norm(x, out), n.norm(x, out)
	return nn.NewSequential(
		newConv(x, in, out), &nn.MaxPool2d{Kernel: nn.Square(2)}, first, &nn.GELU{},
		newConv(x, out, out), second, &nn.GELU{},
	)
}

func (n *network) norm(x *cgotorch.Exec, channels int) *nn.BatchNorm2d {
	norm := nn.NewBatchNorm2d(x, channels, nn.BatchNorm2dOptions{Eps: cgotorch.Set(1e-12), Momentum: cgotorch.Set(0.4)})
	n.norms = append(n.norms, norm)
	return norm
}

// newConv returns a convolution of 3x3 that begins as the identity. Its first `in` channels are
// copies of the inputs, and the other channels are random.
func newConv(x *cgotorch.Exec, in, out int) *nn.Conv2d {
	conv := nn.NewConv2d(x, in, out, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1), NoBias: true})
	y, same := x.NoGrad(), min(in, out)
	x.Tidy(func() *cgotorch.Tensor {
		copies := y.Narrow(conv.Weight, 0, 0, same)
		y.ZeroInPlace(copies)
		y.CopyInPlace(y.Select(y.Select(y.Narrow(copies, 1, 0, same), 3, 1), 2, 1), y.Eye(cgotorch.Float32, same))
		return nil
	})
	return conv
}

// freeze excludes a parameter from training.
func (n *network) freeze(x *cgotorch.Exec, t *cgotorch.Tensor) {
	if err := t.SetRequiresGrad(false); err != nil {
		x.Fail("freeze", err)
	}
}

// biases returns the parameters of the norms that are trained.
func (n *network) biases() []*cgotorch.Tensor {
	var biases []*cgotorch.Tensor
	for _, norm := range n.norms {
		biases = append(biases, norm.Bias)
	}
	return biases
}

// others returns the trained parameters that are not in norms.
func (n *network) others() []*cgotorch.Tensor {
	biases := n.biases()
	return slices.DeleteFunc(nn.Parameters(n.Sequential), func(p *cgotorch.Tensor) bool {
		return !p.RequiresGrad() || slices.Contains(biases, p)
	})
}

// averaged returns the tensors that lookahead averages: trained parameters and running
// statistics.
func (n *network) averaged() []*cgotorch.Tensor {
	all := slices.Concat(n.others(), n.biases())
	for _, norm := range n.norms {
		all = append(all, norm.RunningMean, norm.RunningVar)
	}
	return all
}

// patchCovariance returns the second moments of all patches of `patch` x `patch` pixels in the
// first images of p, normalised: float32 [patchSize, patchSize]. Rows are in the order of a
// convolution's weight.
func patchCovariance(x *cgotorch.Exec, p *pictures, most int) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		n, inner := int64(min(p.n, most)), int64(side-patch+1)
		pixels := x.Empty(cgotorch.Float32, n, 3, side, side)
		images.Normalize(x, x.Narrow(p.pixels, 0, 0, int(n)), nil, images.NormalizationTable(x, mean, deviation, cgotorch.Float32), pixels)
		var shifted []*cgotorch.Tensor // patch*patch of [N, 3, inner, inner]
		for row := range patch {
			for column := range patch {
				shifted = append(shifted, x.Narrow(x.Narrow(pixels, 2, row, int(inner)), 3, column, int(inner)))
			}
		}
		// [patch*patch, N, 3, …] becomes [3, patch*patch, N, …].
		values := x.Reshape(x.Permute(x.Stack(shifted, 0), 2, 0, 1, 3, 4), patchSize, n*inner*inner)
		return x.DivScalar(x.MatMul(values, x.Transpose(values, 0, 1)), float64(n*inner*inner))
	})
}

// whitening returns the weights of the whitening layer, [2*patchSize, 3, patch, patch]. The first
// half are the eigenvectors of the covariance, the largest eigenvalue first. Each is divided by
// the deviation along it. The second half is the negative of the first.
func whitening(covariance []float32) ([]float32, error) {
	var values, vectors []float32
	err := cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error { // cuSOLVER would take longer to open than 12 x 12 numbers need
		// "U" gives eigenvectors the signs that they have in bench/record_cifar.py.
		out := x.Call("aten::linalg_eigh", cgotorch.FromSlice(x, covariance, patchSize, patchSize), "U")
		values = cgotorch.ToSlice[float32](x, out[0].(*cgotorch.Tensor))
		vectors = cgotorch.ToSlice[float32](x, out[1].(*cgotorch.Tensor))
		return nil
	})
	if err != nil {
		return nil, err
	}
	const floor = 5e-4 // added to each eigenvalue
	weights := make([]float32, 2*patchSize*patchSize)
	for i := range patchSize {
		column := patchSize - 1 - i // LibTorch's eigenvalues ascend
		if values[column] < -floor/2 {
			return nil, fmt.Errorf("whitening: the eigenvalue %v of a covariance is negative", values[column])
		}
		scale := float32(1 / math.Sqrt(float64(values[column])+floor))
		for k := range patchSize {
			w := vectors[k*patchSize+column] * scale
			weights[i*patchSize+k], weights[(patchSize+i)*patchSize+k] = w, -w
		}
	}
	return weights, nil
}

// setWhitening writes the weights of the whitening layer.
func (n *network) setWhitening(x *cgotorch.Exec, weights []float32) {
	x.NoGrad().CopyInPlace(n.whiten.Weight, cgotorch.FromSlice(x, weights, 2*patchSize, 3, patch, patch)).Close()
}
