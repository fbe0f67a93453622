package nn_test

import (
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func multiply(by float64) nn.Module {
	return nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.MulScalar(in, by) })
}

// sum adds the results of two branches.
func sum(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor {
	return x.Add(branches[0], branches[1])
}

func TestParallel_Forward(t *testing.T) {
	concat := func(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor { return x.Cat(branches, 0) }
	maximum := func(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor {
		return x.Maximum(branches[0], branches[1])
	}
	for name, c := range map[string]struct {
		join func(x *cgotorch.Exec, branches []*cgotorch.Tensor) *cgotorch.Tensor
		want []float32
	}{
		"channels": {nil, []float32{2, -4, 3, -6}},
		"concat":   {concat, []float32{2, -4, 3, -6}},
		"sum":      {sum, []float32{5, -10}},
		"function": {maximum, []float32{3, -4}},
	} {
		for _, parallelism := range []nn.Parallelism{"", nn.AlwaysParallel, nn.AlwaysSerial} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				m := nn.NewParallel(multiply(2), multiply(3))
				m.Join, m.Parallelism = c.join, parallelism
				in := cgotorch.FromSlice(x, []float32{1, -2}, 1, 2)
				before := cgotorch.LiveHandles()["tensor"]
				out := m.Forward(x, in)
				if got := cgotorch.LiveHandles()["tensor"] - before; got != 1 {
					t.Errorf("%s, %q: %d handles after Forward, want 1", name, parallelism, got)
				}
				if got := values(x, out); !slices.Equal(got, c.want) {
					t.Errorf("%s, %q: got %v, want %v", name, parallelism, got, c.want)
				}
			})
		}
	}
}

// A batch norm in a branch on another stream has counted its batch when Forward returns.
func TestParallel_BatchNorm_Counts(t *testing.T) {
	torchtest.CheckStreams(t)
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		norm := nn.NewBatchNorm2d(x, 2, nn.BatchNormOptions{})
		defer nn.Close(norm)
		m := nn.NewParallel(&nn.Identity{}, norm)
		m.Parallelism = nn.AlwaysParallel
		m.Forward(x.NoGrad(), x.Ones(cgotorch.Float32, 2, 2, 3, 3))
		if got := cgotorch.ToSlice[int64](x, norm.NumBatchesTracked); got[0] != 1 {
			t.Errorf("%d batches were counted, want 1", got[0])
		}
	})
}

func TestParallel_Forward_Refuses(t *testing.T) {
	forward := func(m *nn.Parallel) func(x *cgotorch.Exec) {
		return func(x *cgotorch.Exec) { m.Forward(x, x.Zeros(cgotorch.Float32, 1, 1)) }
	}
	torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, forward(&nn.Parallel{})), cgotorch.ErrInvalidArgument, "nn.Parallel", "no branches")
	m := nn.NewParallel(multiply(1), multiply(1))
	m.Parallelism = "sideways"
	torchtest.WantError(t, torchtest.TryDo(t, cgotorch.CPU, forward(m)), cgotorch.ErrInvalidArgument, "nn.Parallel", `"sideways"`, "serial")
}

// forked holds Parallels in many kinds of fields.
type forked struct {
	nn.Parallel
	First  *nn.Parallel
	Value  nn.Parallel
	Hidden *nn.Parallel   `state:"-"`
	List   []*nn.Parallel `state:"-"`
	Parent *forked        `state:"-"`
	Other  *forked        `state:"-"`
	Stage  nn.Module
}

func TestSetParallelism(t *testing.T) {
	var all []*nn.Parallel
	parallel := func(branches ...nn.Module) *nn.Parallel {
		p := nn.NewParallel(branches...)
		all = append(all, p)
		return p
	}
	other := &forked{First: parallel()}
	m := &forked{
		First:  parallel(parallel(), nn.NewSequential(parallel())),
		Hidden: parallel(&nn.Residual{Body: parallel()}),
		List:   []*nn.Parallel{nil, parallel()},
		Other:  other,
		Stage:  &nn.Sequential{Modules: []nn.Child{{Module: parallel()}}},
	}
	m.Branches = []nn.Child{{Module: parallel()}}
	m.Parent, other.Parent, other.Other = m, m, other
	all = append(all, &m.Parallel, &m.Value, &other.Parallel, &other.Value)
	for _, want := range []nn.Parallelism{nn.AlwaysSerial, nn.AlwaysParallel, ""} {
		nn.SetParallelism(m, want)
		for i, p := range all {
			if p.Parallelism != want {
				t.Errorf("Parallel %d has the parallelism %q, want %q", i, p.Parallelism, want)
			}
		}
	}
	for _, nothing := range []any{nil, 7, (*nn.Parallel)(nil), &nn.Linear{}} {
		nn.SetParallelism(nothing, nn.AlwaysSerial)
	}
}

// A branch may return its input. That input must stay open.
func TestParallel_BranchIsItsInput(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		for _, parallelism := range []nn.Parallelism{"", nn.AlwaysParallel, nn.AlwaysSerial} {
			m := nn.NewParallel(nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return in }), &nn.ReLU{})
			m.Parallelism = parallelism
			in := x.Ones(cgotorch.Float32, 1, 2, 3, 3)
			m.Forward(x, in)
			if in.Closed() {
				t.Errorf("%q: the input is closed", parallelism)
			}
		}
	})
}
