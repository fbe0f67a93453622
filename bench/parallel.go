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

// sections are those of which a GPU has room for more than one branch, and those of which it has not.
func sections(c *config) []section {
	depth := c.or(2, 20)
	conv := func(branches, channels, size, batch int) section {
		return section{fmt.Sprintf("conv/%dx%dx%d/batch=%d", channels, size, size, batch), branches,
			[]int64{int64(batch), int64(channels), int64(size), int64(size)}, func(x *cgotorch.Exec) nn.Module {
				chain := nn.NewSequential()
				for range depth {
					chain.Modules = append(chain.Modules, nn.Child{Name: fmt.Sprint(len(chain.Modules)),
						Module: nn.NewConv2d(x, channels, channels, nn.Square(3), nn.Conv2dOptions{Padding: nn.Square(1), NoBias: true})})
				}
				return chain
			}}
	}
	gemm := func(branches, m, n, k int) section {
		return section{fmt.Sprintf("gemm/%dx%dx%d", m, n, k), branches, []int64{int64(m), int64(n)}, func(x *cgotorch.Exec) nn.Module {
			chain := nn.NewSequential()
			for range depth / 2 {
				chain.Modules = append(chain.Modules,
					nn.Child{Module: nn.NewLinear(x, n, k, nn.LinearOptions{NoBias: true})},
					nn.Child{Module: nn.NewLinear(x, k, n, nn.LinearOptions{NoBias: true})})
			}
			return chain
		}}
	}
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
	dtype := cgotorch.Float32
	if c.device.IsCUDA() {
		dtype = cgotorch.BFloat16
	}
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
	calls := c.or(1, 20)
	var sides []side
	found := "nothing is measured on the CPU"
	for _, schedule := range schedules {
		note := func(text string) {
			if schedule == nn.Fastest {
				found = text
			}
		}
		m := &nn.Parallel{Branches: p.Branches, Schedule: schedule, Log: note}
		captured := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			return []*cgotorch.Tensor{m.Forward(x.NoGrad(), in[0])}
		}, cgotorch.CapturedOptions{InPlace: true, Log: note})
		defer captured.Close()
		for range c.or(1, 40) { // rehearsals, the capture, and what is compared
			if err := stream.Do(func(x *cgotorch.Exec) error { captured.Run(x, in); return nil }); err != nil {
				return err
			}
		}
		sides = append(sides, func() (float64, error) {
			return microseconds(c, calls, func() error {
				return stream.Do(func(x *cgotorch.Exec) error { captured.Run(x, in); return nil })
			})
		})
	}
	if !c.brief { // blocks of some 5 ms: a GPU at its limit of power runs at one clock after one kind of work and at another after another
		us, err := sides[0]()
		if err != nil {
			return err
		}
		calls = max(1, int(5000/us))
	}
	values, err := interleave(c.roundsOr(41), sides...)
	if err != nil {
		return err
	}
	for i, name := range []string{"", "side-by-side", "chosen"} {
		if i == 0 {
			continue
		}
		r := against(fmt.Sprintf("parallel/%s/branches=%d/%s", of.name, of.branches, name), values[i].median(), "us", "one after another", values[0].median(), lower,
			fmt.Sprintf("captured, %v, ours %v; one after another %v; %s; %v; found: %s", dtype, values[i], values[0], c.settings(), s, found))
		r.Ratio = ratioOf(ratios(values[0], values[i]).median(), 1)
		emit(r)
	}
	return nil
}
