package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
)

// peerModes are the ways in which PyTorch runs. Each has its own process.
var peerModes = []string{"eager", "graph", "compile", "compile graph"}

// graphPeers holds the process of each mode that is measured.
type graphPeers map[string]*peer

func (c *config) startGraphPeers(s switches, modes []string) (graphPeers, error) {
	if !c.device.IsCUDA() && !c.brief {
		return nil, errors.New("a CPU has no graphs; use -device cuda")
	}
	peers := graphPeers{}
	for _, mode := range modes {
		if mode != "eager" && !c.device.IsCUDA() || strings.HasPrefix(mode, "compile") && !c.compile {
			continue
		}
		p, err := c.startPeer("graph.py", s)
		if err != nil {
			peers.close()
			return nil, err
		}
		peers[mode] = p
	}
	return peers, nil
}

// prepare makes each process ready, one after another.
func (p graphPeers) prepare(c *config, what string, arguments ...any) error {
	for _, mode := range peerModes {
		if p[mode] == nil {
			continue
		}
		began := time.Now()
		if err := p[mode].do(nil, what, append([]any{"mode", mode, "device", c.device.String()}, arguments...)...); err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		c.tell(fmt.Sprintf("PyTorch %s is ready after %.0f s", mode, time.Since(began).Seconds()))
	}
	return nil
}

// add adds a side for each process. The side's value is the field `value` of the reply.
func (p graphPeers) add(to *named, value, what string, arguments ...any) {
	for _, mode := range peerModes {
		if p[mode] != nil {
			to.add(mode, p[mode].value(value, what, arguments...))
		}
	}
}

func (p graphPeers) versions() string { return p["eager"].versions }

func (p graphPeers) close() {
	for _, peer := range p {
		peer.close()
	}
}

// ourForms are the ways in which our step runs.
var ourForms = []string{"eager", "captured", "overlapped"}

// benchGraphTrain returns a benchmark of a training step on a resident batch. The sides are our
// eager and captured steps, for small batches also our captured step with an Overlap, and PyTorch's
// steps in all peerModes. The benchmark also compares memory.
func benchGraphTrain(model string, batch int) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		s := switches{benchmark: c.device.IsCUDA()}
		peers, err := c.startGraphPeers(s, peerModes)
		if err != nil {
			return err
		}
		defer peers.close()
		r := resident(model, c.or(2, batch))
		ours := map[string]*graphStep{}
		defer func() {
			for _, g := range ours {
				g.close()
			}
		}()
		for _, form := range ourForms {
			f := stepForm{eager: form == "eager"}
			if form == "overlapped" {
				if r.batch > 32 || !c.device.IsCUDA() {
					continue // a second stream is of use for small batches only
				}
				if f.overlap, err = cgotorch.NewOverlap(cgotorch.OverlapOptions{Log: c.tell}); err != nil {
					return err
				}
			}
			if ours[form], err = newGraphStep(c, r, f); err != nil {
				return fmt.Errorf("%s: %w", form, err)
			}
		}
		if err := peers.prepare(c, "prepare_train", "model", model, "batch", r.batch, "autocast", true); err != nil {
			return err
		}
		t := graphTrain{c, r, fmt.Sprintf("graph/train/%s/%d/", model, r.batch), s, ours, peers, emit}
		if err := t.rates(); err != nil {
			return err
		}
		return t.memory()
	}
}

// graphTrain makes the rows of one model and batch.
type graphTrain struct {
	c      *config
	recipe recipe
	prefix string
	s      switches
	ours   map[string]*graphStep
	peers  graphPeers
	emit   func(row)
}

func (t *graphTrain) common() string {
	return fmt.Sprintf("batch %d of 3x224x224, resident, bf16, channels last, fused SGD with momentum and weight decay; %s; %v; %s",
		t.recipe.batch, t.c.settings(), t.s, t.peers.versions())
}

func (t *graphTrain) rates() error {
	steps := t.c.or(1, max(10, 2000/t.recipe.batch))
	all := &named{}
	for _, form := range ourForms {
		if g := t.ours[form]; g != nil {
			all.add("ours "+form, func() (float64, error) { return g.block(steps) })
		}
	}
	t.peers.add(all, "milliseconds", "train_block", "steps", steps)
	if err := all.measure(t.c.roundsOr(7)); err != nil {
		return err
	}
	rate := func(v sample) float64 { return float64(t.recipe.batch) * 1e3 / v.median() }
	report := func(name, our, mode string) {
		ours, theirs := all.values["ours "+our], all.values[mode]
		if ours == nil || theirs == nil {
			return
		}
		r := against(t.prefix+name, rate(ours), "images/s", "PyTorch "+mode, rate(theirs), higher,
			fmt.Sprintf("ours %s %v; peer %v; blocks of %d steps in turns; %s", our, ours, theirs, steps, t.common()))
		r.Ratio = ratioOf(ratios(theirs, ours).median(), 1)
		t.emit(r)
	}
	report("eager", "eager", "eager")
	report("captured", "captured", "graph")
	report("captured-against-eager", "captured", "eager")
	report("captured-against-compile", "captured", "compile")
	report("captured-against-compile-graph", "captured", "compile graph")
	report("overlapped-against-compile", "overlapped", "compile")
	report("overlapped-against-compile-graph", "overlapped", "compile graph")
	for form, g := range t.ours {
		if g.captured == nil || !t.c.device.IsCUDA() {
			continue
		}
		if stats := g.captured.Stats(); stats.Graphs != 1 {
			return fmt.Errorf("%s: the step was not captured: %s", form, stats.Why)
		}
	}
	return nil
}

// memory compares the peaks of allocated bytes, from the making of the model on.
func (t *graphTrain) memory() error {
	for _, pair := range []struct{ name, ours, mode string }{
		{"eager", "eager", "eager"}, {"captured", "captured", "graph"},
		{"captured-against-eager", "captured", "eager"}, {"overlapped-against-eager", "overlapped", "eager"},
	} {
		g, p := t.ours[pair.ours], t.peers[pair.mode]
		if g == nil || p == nil {
			continue
		}
		var memory struct{ Allocated, Reserved float64 }
		if err := p.do(&memory, "train_memory"); err != nil {
			return err
		}
		t.emit(against(t.prefix+"memory/"+pair.name, g.peak/(1<<20), "MiB", "PyTorch "+pair.mode, memory.Allocated/(1<<20), lower,
			fmt.Sprintf("peak of allocated bytes, from the making of the model on; reserved at the end %.0f MiB, peer's peak %.0f MiB; %s",
				g.reserved/(1<<20), memory.Reserved/(1<<20), t.common())))
	}
	return nil
}

// graphStep is a training step on a resident batch, eager or captured, and the step's use of
// memory.
type graphStep struct {
	*learner
	c              *config
	images, labels *cgotorch.Tensor
	captured       *cgotorch.Captured // nil if the step is eager
	peak, reserved float64            // bytes
}

// stepForm says how a step runs. The zero value is a captured step of one process on one stream.
type stepForm struct {
	eager   bool
	lowered bool // the images are bfloat16 on a GPU, as those of a prefetcher
	overlap *cgotorch.Overlap
	group   *distributed.Group // the ranks that the gradients are reduced over
}

// newGraphStep makes a step and warms it up.
func newGraphStep(c *config, r recipe, form stepForm) (*graphStep, error) {
	if err := c.device.ReleaseCachedMemory(); err != nil {
		return nil, err
	}
	before, err := c.device.Memory() // on the CPU this call starts the counter
	if err = errors.Join(err, c.device.ResetPeakMemory()); err != nil {
		return nil, err
	}
	g := &graphStep{c: c}
	if err := g.open(r, form); err != nil {
		g.close()
		return nil, err
	}
	m, err := c.device.Memory()
	g.peak, g.reserved = float64(m.PeakAllocated-before.Allocated), float64(m.Reserved-before.Reserved)
	return g, err
}

func (g *graphStep) open(r recipe, form stepForm) (err error) {
	if g.learner, err = r.learner(g.c, 1, 1_000_000); err != nil {
		return err
	}
	g.overlap = form.overlap
	if !form.eager {
		g.captured = g.capture(form, true)
	}
	err = g.stream.Do(func(x *cgotorch.Exec) (err error) {
		if form.group != nil {
			g.reduced, err = distributed.NewGradients(x, form.group, g.model, distributed.GradientsOptions{})
		}
		g.images, g.labels = r.randomBatch(x)
		if form.lowered && g.c.device.IsCUDA() {
			defer g.images.Close() // that of float32
			g.images = x.Keep(x.To(g.images, cgotorch.BFloat16))
		}
		return err
	})
	if err != nil {
		return err
	}
	warm := 6
	switch {
	case form.eager:
		warm = 2
	case form.overlap != nil:
		warm = 40 // the choices of an Overlap take about 24 steps
	}
	_, err = g.block(g.c.or(1, warm))
	return err
}

// capture returns the step as a function that captures itself. The caller closes it.
func (g *graphStep) capture(form stepForm, inPlace bool) *cgotorch.Captured {
	o := cgotorch.CapturedOptions{InPlace: inPlace, Log: g.c.tell}
	if form.group != nil {
		o.Agree = form.group.Agree
	}
	return cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{g.step(x, in[0], in[1])}
	}, o)
}

// block runs the given number of steps and returns milliseconds per step. The measured time ends
// when the last step has ended on the device.
func (g *graphStep) block(steps int) (float64, error) {
	seconds, err := g.c.secondsEach(steps, func() error {
		return g.stream.Do(func(x *cgotorch.Exec) error {
			if g.captured == nil {
				g.step(x, g.images, g.labels)
			} else {
				g.captured.Run(x, g.images, g.labels)
			}
			return nil
		})
	})
	return seconds * 1e3, err
}

func (g *graphStep) close() {
	g.captured.Close()
	g.images.Close()
	g.labels.Close()
	g.learner.close()
}
