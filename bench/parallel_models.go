package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// A form is a way in which a model of branches is run.
type form struct {
	name     string
	fused    int // index into the models: as it is, fused, fused with siblings merged
	schedule nn.Schedule
}

var forms = []form{
	{"in-turn", 0, nn.InTurn}, {"side-by-side", 0, nn.SideBySide}, {"chosen", 0, nn.Fastest},
	{"fused/in-turn", 1, nn.InTurn}, {"fused/side-by-side", 1, nn.SideBySide}, {"fused/chosen", 1, nn.Fastest},
	{"merged/in-turn", 2, nn.InTurn}, {"merged/side-by-side", 2, nn.SideBySide},
}

// benchParallelModel returns a benchmark of captured calls of a model of branches: on one stream, side by side, and as Choices have it; as it is
// and fused; PyTorch's graph and torch.compile beside them.
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
	models := []nn.Module{m.model}
	for _, o := range []nn.FuseOptions{{}, {Merge: true}} {
		fused, err := m.fuse(o)
		if err != nil {
			return err
		}
		defer nn.Close(fused)
		models = append(models, fused)
	}
	calls := c.or(1, 50)
	var names []string
	var sides []side
	for _, f := range forms {
		net := models[f.fused]
		nn.SetSchedule(net, f.schedule)
		warm := 5 // rehearsals, and the capture
		if f.schedule == nn.Fastest {
			warm = 100 // and trials, and what is compared
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
		r := against(fmt.Sprintf("parallel/models/%s/%d/%s", model, batch, ours), of[ours].median(), "us", label, of[peer].median(), lower,
			fmt.Sprintf("captured; %s %v; %s %v; blocks of %d calls back to back, in turns; bfloat16, evaluation, channels last; %s; %v; %s",
				ours, of[ours], label, of[peer], calls, c.settings(), s, peers.versions()))
		r.Ratio = ratioOf(ratios(of[peer], of[ours]).median(), 1)
		emit(r)
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
