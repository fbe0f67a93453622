package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// form is a way to run a model with parallel branches.
type form struct {
	name        string
	fused       bool
	parallelism nn.Parallelism
}

var forms = []form{
	{"in-turn", false, nn.AlwaysSerial}, {"side-by-side", false, nn.AlwaysParallel}, {"chosen", false, nn.Measured},
	{"fused/in-turn", true, nn.AlwaysSerial}, {"fused/side-by-side", true, nn.AlwaysParallel}, {"fused/chosen", true, nn.Measured},
}

// benchParallelModel returns a benchmark of captured calls of a model with parallel branches. The
// model runs as it is, and fused. The branches run one after another, in parallel, or as Choices
// decide. The peers are PyTorch's CUDA graph and torch.compile.
func benchParallelModel(model string) func(c *config, emit func(row)) error {
	return withGraphPeers(func(c *config, s switches, peers graphPeers, emit func(row)) error {
		for _, batch := range []int{1, 8} {
			if err := modelRows(c, s, peers, model, batch, emit); err != nil {
				return err
			}
		}
		return nil
	})
}

func modelRows(c *config, s switches, peers graphPeers, model string, batch int, emit func(row)) error {
	m, err := peers.served(c, model, batch)
	if err != nil {
		return err
	}
	defer m.close()
	fused, err := m.fuse()
	if err != nil {
		return err
	}
	defer nn.Close(fused)
	calls := c.or(1, 50)
	var names []string
	var sides []side
	for _, f := range forms {
		net := m.model
		if f.fused {
			net = fused
		}
		nn.SetParallelism(net, f.parallelism)
		warm := 5 // number of first runs: warm-up and the capture
		if f.parallelism == nn.Measured {
			warm = 100 // number of first runs: warm-up, the capture, the trials and the measured calls
		}
		w, err := newCapturedWork(c, inference(net), cgotorch.CapturedOptions{InPlace: true, Log: c.tell}, warm, m.input)
		defer w.close()
		if err != nil {
			return err
		}
		names = append(names, f.name)
		sides = append(sides, w.side(calls))
	}
	for _, mode := range peerModes {
		if peers[mode] != nil && (mode != "eager" || c.brief) {
			names = append(names, mode)
			sides = append(sides, peers[mode].value("microseconds", "inference_block", "calls", calls, "copy", false))
		}
	}
	values, err := interleave(c.roundsOr(11), sides...)
	if err != nil {
		return err
	}
	of := map[string]sample{}
	for i, name := range names {
		of[name] = values[i]
	}
	report := func(ours, label, peer string) {
		if of[peer] == nil {
			return
		}
		emit(inTurns(fmt.Sprintf("parallel/models/%s/%d/%s", model, batch, ours), of[ours], "us", label, of[peer], lower,
			fmt.Sprintf("captured; %s %v; %s %v; blocks of %d calls back to back, in turns; bfloat16, evaluation, channels last; %s; %v; %s",
				ours, of[ours], label, of[peer], calls, c.settings(), s, peers.versions())))
	}
	report("in-turn", "PyTorch graph", "graph")
	report("side-by-side", "in turn", "in-turn")
	report("chosen", "in turn", "in-turn")
	report("fused/in-turn", "in turn", "in-turn")
	report("fused/side-by-side", "fused, in turn", "fused/in-turn")
	report("fused/chosen", "fused, in turn", "fused/in-turn")
	for _, f := range forms[3:] {
		report(f.name, "PyTorch compile", "compile")
	}
	return nil
}
