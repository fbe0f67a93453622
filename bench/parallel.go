package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// A section is several equal branches over one input.
type section struct {
	name     string
	branches int
	shape    []int64 // of the input
	branch   func(x *cgotorch.Exec) nn.Module
}

// convSection is of chains of 3x3 convolutions.
func convSection(c *config, branches, channels, size, batch int) section {
	return section{fmt.Sprintf("conv/%dx%dx%d/batch=%d", channels, size, size, batch), branches,
		[]int64{int64(batch), int64(channels), int64(size), int64(size)}, func(x *cgotorch.Exec) nn.Module {
			chain := nn.NewSequential()
			for range c.or(2, 20) {
				chain.Modules = append(chain.Modules, nn.Child{Name: fmt.Sprint(len(chain.Modules)),
					Module: nn.NewConv2d(x, channels, channels, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1), NoBias: true})})
			}
			return chain
		}}
}

// gemmSection is of chains of products of m x n by n x k, and of m x k by k x n.
func gemmSection(c *config, branches, m, n, k int) section {
	return section{fmt.Sprintf("gemm/%dx%dx%d", m, n, k), branches, []int64{int64(m), int64(n)}, func(x *cgotorch.Exec) nn.Module {
		chain := nn.NewSequential()
		for range c.or(1, 10) {
			chain.Modules = append(chain.Modules,
				nn.Child{Module: nn.NewLinear(x, n, k, nn.LinearOptions{NoBias: true})},
				nn.Child{Module: nn.NewLinear(x, k, n, nn.LinearOptions{NoBias: true})})
		}
		return chain
	}}
}

// sections are those of which a GPU has room for more than one branch, and those of which it has not.
func sections(c *config) []section {
	conv := func(branches, channels, size, batch int) section {
		return convSection(c, branches, channels, size, batch)
	}
	gemm := func(branches, m, n, k int) section { return gemmSection(c, branches, m, n, k) }
	if c.brief {
		return []section{conv(2, 8, 6, 1), gemm(2, 8, 8, 16)}
	}
	return []section{
		conv(2, 128, 14, 1), conv(4, 128, 14, 1), conv(2, 128, 14, 8), conv(2, 128, 28, 8), conv(2, 256, 14, 32),
		gemm(2, 1024, 1024, 1024), gemm(2, 1024, 1024, 4096), gemm(4, 512, 1024, 4096), gemm(4, 512, 512, 2048), gemm(2, 4096, 4096, 4096),
	}
}

// benchParallel compares branches side by side, and as a Choice has them, with one after another, in one process, captured.
func benchParallel(c *config, emit func(row)) error {
	// With its benchmark cuDNN takes other kernels, and other ones in each process.
	var s switches
	if err := s.set(); err != nil {
		return err
	}
	for _, of := range sections(c) {
		if err := sectionRows(c, s, of, emit); err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
	}
	return nil
}

var schedules = []nn.Schedule{nn.InTurn, nn.SideBySide, nn.Fastest}

func sectionRows(c *config, s switches, of section, emit func(row)) error {
	dtype := c.dtype()
	p := &nn.Parallel{}
	var in *cgotorch.Tensor
	stream := cgotorch.DefaultStream(c.device)
	err := stream.Do(func(x *cgotorch.Exec) error {
		for range of.branches {
			p.Branches = append(p.Branches, nn.Child{Name: fmt.Sprint(len(p.Branches)), Module: of.branch(x)})
		}
		nn.To(x, p, nn.ToOptions{DType: dtype, ChannelsLast: len(of.shape) == 4})
		t := x.To(x.Randn(cgotorch.Float32, of.shape...), dtype)
		if len(of.shape) == 4 {
			t = x.Contiguous(t, cgotorch.ChannelsLast)
		}
		in = x.Keep(t)
		return nil
	})
	if err != nil {
		return err
	}
	defer nn.Close(p)
	defer in.Close()
	var works []*capturedWork
	found := "nothing is measured on the CPU"
	for _, schedule := range schedules {
		note := func(text string) {
			if schedule == nn.Fastest {
				found = text
			}
		}
		m := &nn.Parallel{Branches: p.Branches, Schedule: schedule, Log: note}
		w, err := newCapturedWork(c, inference(m), cgotorch.CapturedOptions{InPlace: true, Log: note}, 40, in)
		defer w.close()
		if err != nil {
			return err
		}
		works = append(works, w)
	}
	calls := c.or(1, 20)
	// Blocks of some 20 ms: shorter ones are of their end, when the host has waited, and in longer ones a GPU at its limit of power has time to
	// change its clock, which differs from one kind of work to another.
	if !c.brief {
		us, err := works[0].side(calls)()
		if err != nil {
			return err
		}
		calls = max(1, int(20000/us))
	}
	var sides []side
	for _, w := range works {
		sides = append(sides, w.side(calls))
	}
	values, err := interleave(c.roundsOr(41), sides...)
	if err != nil {
		return err
	}
	if c.device.IsCUDA() {
		kernels, err := works[0].traced()
		if err != nil {
			return err
		}
		emit(alone(fmt.Sprintf("parallel/%s/branches=%d/blocks", of.name, of.branches), blocks(kernels), "blocks a kernel",
			"mean over the kernels' time, one after another"))
	}
	for i, name := range []string{"side-by-side", "chosen"} {
		r := against(fmt.Sprintf("parallel/%s/branches=%d/%s", of.name, of.branches, name), values[i+1].median(), "us", "one after another", values[0].median(), lower,
			fmt.Sprintf("captured, %v, ours %v; one after another %v; %s; %v; found: %s", dtype, values[i+1], values[0], c.settings(), s, found))
		r.Ratio = ratioOf(ratios(values[0], values[i+1]).median(), 1)
		emit(r)
	}
	return nil
}
