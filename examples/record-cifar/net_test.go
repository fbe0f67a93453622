package main

import (
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The outputs of the whitening layer have second moments of about 1 and are not correlated. The
// second half of the outputs is the negative of the first.
func TestWhitening(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		const n = 16
		p, _ := noise(t, d, n, 256)
		var covariance []float32
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			covariance = cgotorch.ToSlice[float32](x, patchCovariance(x, p.use(x), n))
		})
		weights, err := whitening(covariance)
		if err != nil {
			t.Fatal(err)
		}
		const last = (patchSize - 1) * patchSize
		if first, end := norm(weights[:patchSize]), norm(weights[last:][:patchSize]); first >= end {
			t.Errorf("the first weights have a norm of %v and the last %v, want the largest eigenvalue first", first, end)
		}
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			net := newNetwork(x, [3]int{8, 8, 8})
			defer nn.Close(net.Sequential)
			net.setWhitening(x, weights)
			v := newViews(x, cgotorch.Float32)
			defer v.close()
			y := x.NoGrad()
			batch := v.batch(y, p.use(x), y.Arange(cgotorch.Int64, 0, n, nil), equalShifts(y, n, 0), nil)
			out := net.whiten.Forward(y, batch) // [n, 2*patchSize, 31, 31]
			const size = side - patch + 1
			rows := y.Reshape(y.Transpose(out, 0, 1), 2*patchSize, n*size*size)
			moments := cgotorch.ToSlice[float32](x, y.DivScalar(y.MatMul(rows, y.Transpose(rows, 0, 1)), n*size*size))
			for i := range 2 * patchSize {
				for k := range 2 * patchSize {
					want := 0.0
					switch {
					case i == k:
						want = 1
					case i%patchSize == k%patchSize:
						want = -1
					}
					if got := float64(moments[i*2*patchSize+k]); math.Abs(got-want) > 5e-3 {
						t.Fatalf("the moment of outputs %d and %d is %v, want %v", i, k, got, want)
					}
				}
			}
		})
	})
}

func norm(values []float32) float64 {
	sum := 0.0
	for _, v := range values {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}

func TestWhitening_RefusesNegativeEigenvalues(t *testing.T) {
	covariance := make([]float32, patchSize*patchSize)
	for i := range patchSize {
		covariance[i*patchSize+i] = -1
	}
	if _, err := whitening(covariance); err == nil {
		t.Error("got no error")
	}
}

// A new convolution passes its input on in its first channels.
func TestNewConv_BeginsAsIdentity(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.NoTF32(t)
		torchtest.Do(t, d, func(x *cgotorch.Exec) {
			for _, size := range [][2]int{{3, 5}, {4, 4}, {6, 2}} {
				in, out := size[0], size[1]
				conv := newConv(x, in, out)
				defer nn.Close(conv)
				images := x.Randn(cgotorch.Float32, 2, int64(in), 6, 6)
				same := min(in, out)
				got := x.Narrow(conv.Forward(x.NoGrad(), images), 1, 0, same)
				if !x.AllClose(got, x.Narrow(images, 1, 0, same), cgotorch.ToleranceOptions{Absolute: cgotorch.Set(1e-6)}) {
					t.Errorf("from %d to %d channels: the first are not the input", in, out)
				}
			}
		})
	})
}

// Training changes all parameters except the whitening layer's weights and the norms' weights.
func TestNetwork_Parameters(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		net := newNetwork(x, [3]int{8, 16, 16})
		defer nn.Close(net.Sequential)
		if got := []int{len(net.biases()), len(net.others()), len(net.averaged())}; got[0] != 6 || got[1] != 8 || got[2] != 26 {
			t.Errorf("%d biases of norms, %d others, %d averaged; want 6, 8 and 26", got[0], got[1], got[2])
		}
		out := net.Forward(x, x.Randn(cgotorch.Float32, 4, 3, side, side))
		if shape := out.Shape(); len(shape) != 2 || shape[0] != 4 || shape[1] != classCount {
			t.Errorf("logits %v, want [4, %d]", shape, classCount)
		}
	})
}
