package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"math"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A tensorList is a list of tensors that differ in size, layout and alignment.
type tensorList struct {
	sizes  []int
	shifts []int // by how many elements the tensor is not aligned
}

// listOf returns a list of n tensors. Some have no elements, and some lie in channels last.
func listOf(n int, aligned bool) tensorList {
	sizes := []int{1000, 1, 4097, 0, 64, 3, 4096, 20_003, 256, 7, 2, 8192, 1023, 5, 360}
	var l tensorList
	for i := range n {
		size, shift := sizes[i%len(sizes)], 0
		if i >= 2*len(sizes) {
			size %= 3000
		}
		if !aligned && i%3 != 0 {
			shift = i % 8
		}
		l.sizes, l.shifts = append(l.sizes, size), append(l.shifts, shift)
	}
	return l
}

// tensors makes the list. The function `value` returns `count` numbers.
func (l tensorList) tensors(x *Exec, dtype DType, value func(count int) *Tensor) []*Tensor {
	ts := make([]*Tensor, len(l.sizes))
	for i, n := range l.sizes {
		t := x.Narrow(x.Empty(dtype, int64(n+8)), 0, l.shifts[i], n)
		if n == 360 {
			t = x.Transpose(x.View(t, 3, 10, 12), 0, 1)
		}
		x.CopyInPlace(t, x.View(value(n), t.Shape()...))
		ts[i] = t
	}
	return ts
}

// odd returns n normal numbers. Some of them are replaced by numbers that are not finite, very
// small or very large.
func odd(x *Exec, n int) *Tensor {
	values := ToSlice[float32](x, x.Randn(Float32, int64(n)))
	for i, special := range []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e-41, 3e38, 0} {
		if at := 11*i + 4; at < n {
			values[at] = special
		}
	}
	return FromSlice(x, values)
}

// sameBits fails the test if the tensors differ in a bit.
func sameBits(t *testing.T, x *Exec, what string, got, want []*Tensor) {
	t.Helper()
	for i := range got {
		g, w := bitsOf(x, got[i]), bitsOf(x, want[i])
		if slices.Equal(g, w) {
			continue
		}
		at := 0
		for g[at] == w[at] {
			at++
		}
		t.Errorf("%s: element %d of %d of tensor %d is %v (%08x), LibTorch's is %v (%08x)", what, at, len(g), i,
			math.Float32frombits(g[at]), g[at], math.Float32frombits(w[at]), w[at])
		return
	}
}

func bitsOf(x *Exec, t *Tensor) []uint32 {
	var bits []uint32
	for _, v := range ToSlice[float32](x, x.Contiguous(x.To(x.Detach(t), Float32), Contiguous)) {
		bits = append(bits, math.Float32bits(v))
	}
	return bits
}

// listShapes are arguments `shape` of the kernels: the usual one, one block for several pieces,
// and long pieces.
var listShapes = [][]int{nil, {64, 1, 3, 1, 31}, {512, 4, 4, 0, 0}}

// fused_sgd_ and its kernel have the bits of _fused_sgd_, for lists that need one table and more.
func TestFusedSGD_BitsOfLibTorch(t *testing.T) {
	if testing.Short() {
		t.Skip("many cases of numbers")
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, n := range []int{1, 2, 65, 500, 900} {
			for i, o := range []struct {
				decay, momentum, dampening float64
				nesterov, first, scaled    bool
				found                      float64 // -1: no found_inf
				tensorLR, unaligned        bool
			}{
				{found: -1},
				{decay: 1e-2, found: 0, unaligned: true},
				{momentum: 0.9, found: -1, tensorLR: true},
				{decay: 5e-5, momentum: 0.9, found: 0},
				{decay: 5e-5, momentum: 0.9, found: 0, unaligned: true, tensorLR: true},
				{decay: 1e-2, momentum: 0.9, nesterov: true, found: -1},
				{momentum: 0.7, dampening: 0.3, found: -1, unaligned: true},
				{momentum: 0.9, decay: 0.1, found: 1},
				{momentum: 0.9, decay: 0.1, scaled: true, found: 0},
				{momentum: 0.9, dampening: 0.1, first: true, found: -1},
			} {
				torchtest.Do(t, d, func(x *Exec) {
					x = x.NoGrad()
					l := listOf(n, !o.unaligned)
					value := func(n int) *Tensor { return odd(x, n) }
					params, grads := l.tensors(x, Float32, value), l.tensors(x, Float32, value)
					var buffers []*Tensor
					if o.momentum != 0 {
						buffers = l.tensors(x, Float32, value)
					}
					var lr, scale, found *Tensor
					if o.tensorLR {
						lr = x.Full(Float32, 0.1)
					}
					if o.scaled {
						scale = x.Full(Float32, 3)
					}
					if o.found >= 0 {
						found = x.Full(Float32, o.found)
					}
					copies := func(of []*Tensor) []*Tensor {
						next := -1
						return l.tensors(x, Float32, func(int) *Tensor { next++; return x.Contiguous(of[next], Contiguous) })
					}
					wantParams, wantGrads := copies(params), copies(grads)
					var wantBuffers []*Tensor
					if buffers != nil {
						wantBuffers = copies(buffers)
					}
					options := FusedSGDOptions{WeightDecay: o.decay, Momentum: o.momentum, Dampening: o.dampening, Nesterov: o.nesterov,
						FirstStep: o.first, GradScale: scale, FoundInf: found}
					step := func() {
						if lr != nil {
							x.FusedSGDTensorLRInPlace(wantParams, wantGrads, wantBuffers, lr, options)
						} else {
							x.FusedSGDInPlace(wantParams, wantGrads, wantBuffers, 0.1, options)
						}
					}
					compare := func(what string) {
						what = fmt.Sprintf("%d tensors, options %d, %s", n, i, what)
						sameBits(t, x, what+", params", params, wantParams)
						sameBits(t, x, what+", grads", grads, wantGrads)
						sameBits(t, x, what+", buffers", buffers, wantBuffers)
					}
					x.Call("streamtorch::fused_sgd_", params, grads, buffers, lr, 0.1, o.decay, o.momentum, o.dampening, o.nesterov, o.first, scale, found)
					step()
					compare("the operator")
					if !d.IsCUDA() || o.first || o.scaled {
						return
					}
					for _, shape := range listShapes {
						x.Call("streamtorch::fused_sgd_kernel_", params, grads, buffers, lr, 0.1, o.decay, o.momentum, o.dampening, o.nesterov, found, shape)
						step()
						compare(fmt.Sprint("the kernel ", shape))
					}
				})
			}
		}
	})
}

// fused_adam_ and its kernel have the bits of _fused_adam_ and _fused_adamw_.
func TestFusedAdam_BitsOfLibTorch(t *testing.T) {
	if testing.Short() {
		t.Skip("many cases of numbers")
	}
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for _, n := range []int{1, 65, 500, 700} {
			for i, o := range []struct {
				decay                                           float64
				decoupled, amsgrad, scaled, tensorLR, unaligned bool
				found                                           float64 // -1: no found_inf
			}{
				{found: -1},
				{decay: 1e-2, decoupled: true, found: 0, unaligned: true},
				{decay: 1e-2, decoupled: true, found: -1, tensorLR: true},
				{decay: 1e-2, found: -1},
				{decay: 1e-2, decoupled: true, amsgrad: true, found: -1},
				{decay: 1e-2, decoupled: true, scaled: true, found: 0},
				{found: 1, decoupled: true},
			} {
				torchtest.Do(t, d, func(x *Exec) {
					x = x.NoGrad()
					l := listOf(n, !o.unaligned)
					value := func(n int) *Tensor { return odd(x, n) }
					square := func(n int) *Tensor { return x.Abs(odd(x, n)) }
					lists := [][]*Tensor{l.tensors(x, Float32, value), l.tensors(x, Float32, value), l.tensors(x, Float32, value),
						l.tensors(x, Float32, square), nil}
					if o.amsgrad {
						lists[4] = l.tensors(x, Float32, square)
					}
					var want [][]*Tensor
					for _, of := range lists {
						next := -1
						if of != nil {
							of = l.tensors(x, Float32, func(int) *Tensor { next++; return x.Contiguous(of[next], Contiguous) })
						}
						want = append(want, of)
					}
					var steps []*Tensor
					for i := range n {
						steps = append(steps, x.Full(Float32, float64(1+i%40)))
					}
					var lr, scale, found *Tensor
					if o.tensorLR {
						lr = x.Full(Float32, 0.01)
					}
					if o.scaled {
						scale = x.Full(Float32, 3)
					}
					if o.found >= 0 {
						found = x.Full(Float32, o.found)
					}
					options := FusedAdamOptions{WeightDecay: o.decay, AMSGrad: o.amsgrad, GradScale: scale, FoundInf: found}
					step := func() {
						switch {
						case o.decoupled && lr != nil:
							x.FusedAdamWTensorLRInPlace(want[0], want[1], want[2], want[3], want[4], steps, lr, options)
						case o.decoupled:
							x.FusedAdamWInPlace(want[0], want[1], want[2], want[3], want[4], steps, 0.01, options)
						default:
							x.FusedAdamInPlace(want[0], want[1], want[2], want[3], want[4], steps, 0.01, options)
						}
					}
					compare := func(what string) {
						for k, name := range []string{"params", "grads", "means", "squares", "largest"} {
							sameBits(t, x, fmt.Sprintf("%d tensors, options %d, %s, %s", n, i, what, name), lists[k], want[k])
						}
					}
					x.Call("streamtorch::fused_adam_", lists[0], lists[1], lists[2], lists[3], lists[4], steps, lr, 0.01, 0.9, 0.999, o.decay, 1e-8,
						o.decoupled, o.amsgrad, scale, found)
					step()
					compare("the operator")
					if !d.IsCUDA() || o.amsgrad || o.scaled || o.decay != 0 && !o.decoupled {
						return
					}
					for _, shape := range listShapes {
						x.Call("streamtorch::fused_adam_kernel_", lists[0], lists[1], lists[2], lists[3], steps, lr, 0.01, 0.9, 0.999, o.decay, 1e-8, found, shape)
						step()
						compare(fmt.Sprint("the kernel ", shape))
					}
				})
			}
		}
	})
}

// The kernel of casts has the bits of _foreach_copy_, for numbers of all kinds.
func TestForeachCast_BitsOfLibTorch(t *testing.T) {
	d := torchtest.CUDA(t)
	for _, n := range []int{1, 65, 500, 1100} {
		for _, unaligned := range []bool{false, true} {
			for _, half := range []DType{BFloat16, Float16} {
				torchtest.Do(t, d, func(x *Exec) {
					x = x.NoGrad()
					l := listOf(n, !unaligned)
					wide := l.tensors(x, Float32, func(n int) *Tensor { return odd(x, n) })
					for _, shape := range listShapes {
						zeros := func(dtype DType) []*Tensor {
							return l.tensors(x, dtype, func(n int) *Tensor { return x.Zeros(dtype, int64(n)) })
						}
						got, want := zeros(half), zeros(half)
						x.Call("streamtorch::foreach_cast_kernel_", got, wide, shape)
						x.ForeachCopyInPlace(want, wide)
						sameBits(t, x, fmt.Sprintf("%d tensors to %v, %v", n, half, shape), got, want)
						back, wantBack := zeros(Float32), zeros(Float32)
						x.Call("streamtorch::foreach_cast_kernel_", back, got, shape)
						x.ForeachCopyInPlace(wantBack, got)
						sameBits(t, x, fmt.Sprintf("%d tensors from %v, %v", n, half, shape), back, wantBack)
					}
				})
			}
		}
	}
}

// A step of SGD on 200 tensors is one kernel of a graph, and a launch reads the learning rate that
// the tensor then has.
func TestFusedSGD_Captured(t *testing.T) {
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	params := kept(t, s, 200, func(x *Exec) *Tensor { return x.Ones(Float32, 1001) })
	grads := kept(t, s, 200, func(x *Exec) *Tensor { return x.Ones(Float32, 1001) })
	rate := kept(t, s, 1, func(x *Exec) *Tensor { return x.Full(Float32, 0.5) })[0]
	step := func(x *Exec) {
		x.NoGrad().Call("streamtorch::fused_sgd_", params, grads, []*Tensor(nil), rate, 0.0, 0.0, 0.0, 0.0, false, false)
	}
	torchtest.DoOn(t, s, func(x *Exec) { step(x) })
	g := captured(t, s, 0, step)
	if size, err := GraphSize(g); err != nil || size.Kernels != 1 || size.Nodes != 1 {
		t.Errorf("the graph has the size %+v (%v), want one kernel", size, err)
	}
	torchtest.DoOn(t, s, func(x *Exec) { x.FillInPlace(rate, 0.25) })
	launch(t, g, s)
	torchtest.DoOn(t, s, func(x *Exec) {
		for _, i := range []int{0, 100, 199} {
			torchtest.Equal(t, x, params[i], slices.Repeat([]float32{0.25}, 1001))
		}
	})
}
