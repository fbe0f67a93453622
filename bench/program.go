package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// benchProgram returns a benchmark of the inference of a model that PyTorch has exported. Our sides
// are the program as it was exported and fused, both captured. The peers are PyTorch's eager model
// on the CPU, and its graph and torch.compile on a GPU. Results must equal the eager model's.
func benchProgram(model string) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		s := switches{benchmark: c.device.IsCUDA()}
		peers, err := c.startGraphPeers(s, peerModes[:3])
		if err != nil {
			return err
		}
		defer peers.close()
		folder, err := os.MkdirTemp("", "bench-programs-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		batches := []int{1, 8, 32}
		if c.brief {
			batches = []int{1}
		}
		if err := peers["eager"].do(nil, "export", "folder", folder, "model", model, "batches", batches, "device", c.device.String()); err != nil {
			return err
		}
		r := &programRun{c, s, model, folder, peers, emit}
		for _, batch := range batches {
			if err := r.rows(batch); err != nil {
				return fmt.Errorf("batch %d: %w", batch, err)
			}
		}
		return nil
	}
}

// programRun is a run of the rows of one program.
type programRun struct {
	c      *config
	s      switches
	model  string
	folder string // of the files that graph.py writes
	peers  graphPeers
	emit   func(row)
}

func (r *programRun) rows(batch int) error {
	c := r.c
	in, want, err := r.stored(batch)
	if err != nil {
		return err
	}
	defer in.Close()
	calls, all, how := c.or(1, max(10, 300/batch)), &named{}, map[string]string{}
	for _, name := range []string{"captured", "fused"} {
		p, err := r.load(pt2.Options{Fuse: name == "fused"})
		if err != nil {
			return err
		}
		defer p.Close()
		w, err := c.capture(p, in)
		defer w.close()
		far, differs := w.difference(want)
		if err := errors.Join(err, differs); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		how[name] = fmt.Sprintf("differs by %.2g; %d nodes; %s", far, len(p.Nodes()), p.Report())
		all.add("ours "+name, w.side(calls))
	}
	if err := r.peers.prepare(c, "prepare_inference", "model", r.model, "batch", batch); err != nil {
		return err
	}
	r.peers.add(all, "microseconds", "inference_block", "calls", calls)
	if err := all.measure(c.roundsOr(7)); err != nil {
		return err
	}
	for _, our := range []string{"captured", "fused"} {
		for _, mode := range peerModes {
			ours, theirs := all.values["ours "+our], all.values[mode]
			if theirs == nil {
				continue
			}
			r.emit(inTurns(fmt.Sprintf("program/%s/%d/%s-against-%s", r.model, batch, our, mode), ours, "us", "PyTorch "+mode, theirs, lower,
				fmt.Sprintf("%s, %s; ours %v; peer %v; blocks of %d calls back to back, in turns; %v, evaluation, input on the device; %s; %v; %s",
					our, how[our], ours, theirs, calls, c.dtype(), c.settings(), r.s, r.peers.versions())))
		}
	}
	return nil
}

// load loads the exported program.
func (r *programRun) load(o pt2.Options) (p *pt2.Program, err error) {
	err = cgotorch.DefaultStream(r.c.device).Do(func(x *cgotorch.Exec) (err error) {
		p, err = pt2.Load(x, filepath.Join(r.folder, r.model+".pt2"), o)
		return err
	})
	return p, err
}

// stored returns the input of a batch on the device, and the output of the eager model. The caller
// closes the input.
func (r *programRun) stored(batch int) (in *cgotorch.Tensor, want []float32, err error) {
	file, err := safetensors.Open(filepath.Join(r.folder, fmt.Sprintf("%s-%d.safetensors", r.model, batch)))
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	err = cgotorch.DefaultStream(r.c.device).Do(func(x *cgotorch.Exec) error {
		read := func(name string) *cgotorch.Tensor {
			info, _ := file.Lookup(name)
			dtype, _ := checkpoint.DType(info.DType)
			return cgotorch.FromBytes(x, cgotorch.Must(file.Read(name)), dtype, info.Shape)
		}
		want = cgotorch.ToSlice[float32](x, x.To(read("output"), cgotorch.Float32))
		t := read("input")
		if t.Dim() == 4 {
			t = x.Contiguous(t, cgotorch.ChannelsLast)
		}
		in = x.Keep(t)
		return nil
	})
	return in, want, err
}
