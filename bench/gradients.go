package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// benchGradients compares the gradients of a whole net with autocast, ours and PyTorch's, by their
// distance to PyTorch's gradients in float32. It does so with the initial weights, and with
// weights that have been trained for some steps.
//
// The distance of a parameter is |g - g32| / |g32|, where |.| is the Euclidean norm over all of
// its elements and over several batches. The gradients of each batch are computed from the same
// weights.
func benchGradients(c *config, emit func(row)) error {
	r := byHeart.onCPU(c)
	r.batch = c.or(8, 64)
	training, batches := c.or(2, 50), c.or(1, 4)
	t, err := newTwin(c, r, training+batches)
	if err != nil {
		return err
	}
	defer t.close()
	l, err := t.learner(start{seed: 1})
	if err != nil {
		return err
	}
	defer l.close()
	for _, weights := range []struct {
		name  string
		steps int
	}{{"initial", 0}, {"trained", training}} {
		l.autocast = 0
		for range weights.steps {
			err := l.stream.Do(func(x *cgotorch.Exec) error {
				images, labels := t.batch(x, l.done)
				l.step(x, images, labels)
				return nil
			})
			if err != nil {
				return err
			}
		}
		g := gradients{twin: t, learner: l}
		if err := g.measure(training, batches); err != nil {
			return fmt.Errorf("%s weights: %w", weights.name, err)
		}
		text := fmt.Sprintf("weights after %d steps in float32; %d batches; %s", weights.steps, batches, t.text())
		g.rows("parity/photographs/gradients/"+weights.name+"/", text, emit)
	}
	return nil
}

// gradientForm is a way to compute gradients. The peer's layout is channels last, or NCHW.
type gradientForm struct {
	autocast, fused, channelsLast bool
}

// Our forms and the peer's forms whose distances to the peer's float32 are measured. The peer's
// forms in NCHW show how much distances change if only the layout changes, and with it the order of
// additions.
var (
	ourForms   = []string{"bfloat16", "bfloat16-unfused", "float32"}
	theirForms = []string{"autocast", "autocast, NCHW", "float32, NCHW"}
	formOf     = map[string]gradientForm{
		"bfloat16":         {autocast: true, fused: true},
		"bfloat16-unfused": {autocast: true},
		"float32":          {fused: true},
		"autocast":         {autocast: true, channelsLast: true},
		"autocast, NCHW":   {autocast: true},
		"float32, NCHW":    {},
		"reference":        {channelsLast: true},
	}
)

// gradients measures distances of the gradients of one model.
type gradients struct {
	twin    *twin
	learner *learner
	names   []string            // of the parameters
	of      map[string]distance // by name of a form
	kernels map[string]string   // of our norms, by name of a form
}

// distance holds, for each parameter, sums of squares over elements and batches.
type distance struct{ difference, exact sample }

// add adds the gradients of one batch, of which there is one for each parameter.
func (d *distance) add(gradients, exact [][]float32) {
	if d.exact == nil {
		d.difference, d.exact = make(sample, len(exact)), make(sample, len(exact))
	}
	for i := range exact {
		for k, v := range exact[i] {
			e := float64(gradients[i][k]) - float64(v)
			d.difference[i] += e * e
			d.exact[i] += float64(v) * float64(v)
		}
	}
}

// relative returns the distance of each parameter.
func (d distance) relative() sample {
	all := ratios(d.difference, d.exact)
	for i := range all {
		all[i] = math.Sqrt(all[i])
	}
	return all
}

// measure computes the gradients of the batches of some steps, from `first` on.
func (g *gradients) measure(first, batches int) error {
	g.of, g.kernels = map[string]distance{}, map[string]string{}
	for _, n := range nn.NamedParameters(g.learner.model) {
		g.names = append(g.names, n.Name)
	}
	if err := g.learner.save(g.twin.path("weights")); err != nil {
		return err
	}
	if err := g.twin.prepare(false); err != nil {
		return err
	}
	for step := first; step < first+batches; step++ {
		exact, err := g.theirs("reference", step)
		if err != nil {
			return err
		}
		for _, forms := range []struct {
			names   []string
			compute func(form string, step int) ([][]float32, error)
		}{{ourForms, g.ours}, {theirForms, g.theirs}} {
			for _, form := range forms.names {
				got, err := forms.compute(form, step)
				if err != nil {
					return fmt.Errorf("%s: %w", form, err)
				}
				d := g.of[form]
				d.add(got, exact)
				g.of[form] = d
			}
		}
	}
	for form, d := range g.of {
		if err := d.relative().finite(); err != nil {
			return fmt.Errorf("distance of %s: %w", form, err)
		}
	}
	return nil
}

// ours returns our gradients of a step's batch.
func (g *gradients) ours(form string, step int) (all [][]float32, err error) {
	l, f := g.learner, formOf[form]
	nn.SetFused(l.model, f.fused)
	defer nn.SetFused(l.model, true)
	l.autocast = 0
	if f.autocast {
		l.autocast = cgotorch.BFloat16
	}
	err = l.stream.Do(func(x *cgotorch.Exec) error {
		images, labels := g.twin.batch(x, step)
		l.backward(x, images, labels)
		for _, p := range nn.Parameters(l.model) {
			all = append(all, cgotorch.ToSlice[float32](x, p.Grad()))
		}
		return nil
	})
	if err == nil {
		g.kernels[form], err = g.twin.kernels(l)
	}
	return all, err
}

// theirs returns the peer's gradients of a step's batch.
func (g *gradients) theirs(form string, step int) (all [][]float32, err error) {
	path, f := g.twin.path("gradients"), formOf[form]
	defer os.Remove(path)
	err = g.twin.peer.do(nil, "gradients", "step", step, "autocast", f.autocast, "channels_last", f.channelsLast, "path", path)
	if err != nil {
		return nil, err
	}
	file, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for i, p := range nn.Parameters(g.learner.model) {
		data, err := file.Read(g.names[i])
		if err != nil {
			return nil, err
		}
		values := make([]float32, p.Numel())
		if n, err := binary.Decode(data, binary.LittleEndian, values); err != nil || n != len(data) {
			return nil, fmt.Errorf("%s: %d bytes for %d values: %w", g.names[i], len(data), len(values), err)
		}
		all = append(all, values)
	}
	return all, nil
}

// rows reports each of our forms: the median and the worst of the distances, and the median and
// the worst of their ratios to the peer's distances of the same parameter.
func (g *gradients) rows(prefix, text string, emit func(row)) {
	device := kind(g.twin.c.device)
	autocast, inNCHW := g.of["autocast"].relative(), g.of["autocast, NCHW"].relative()
	layouts := ratios(inNCHW, autocast)
	noise := fmt.Sprintf("noise: PyTorch's autocast in NCHW has distances of median %.4g and worst %.4g, ratios to those in channels last of median %.3f and worst %.3f",
		inNCHW.median(), inNCHW.max(), layouts.median(), layouts.max())
	for _, form := range ourForms {
		peer, theirs := "PyTorch autocast", autocast
		if !formOf[form].autocast {
			peer, theirs = "PyTorch float32, NCHW", g.of["float32, NCHW"].relative()
		}
		ours := g.of[form].relative()
		times := ratios(ours, theirs)
		common := fmt.Sprintf("%d parameters; %s; %s; %s", len(g.names), noise, g.kernels[form], text)
		report := func(name string, value float64, unit string, peerValue float64, note string) {
			emit(against(prefix+form+"/"+name+"/"+device, value, unit, peer, peerValue, lower, note+"; "+common))
		}
		const relative, timesPeer = "relative distance to float32", "times the peer's distance"
		report("median", ours.median(), relative, theirs.median(), "of the parameters")
		report("worst", ours.max(), relative, theirs.max(),
			fmt.Sprintf("of the parameters; ours %s, peer %s", g.names[ours.worst()], g.names[theirs.worst()]))
		report("ratio-median", times.median(), timesPeer, 1,
			fmt.Sprintf("of the parameters' ratios; %.0f %% of them are above 1, quartiles %.3f and %.3f", 100*times.above(1), times.quantile(0.25), times.quantile(0.75)))
		worst := times.worst()
		report("ratio-worst", times.max(), timesPeer, 1, fmt.Sprintf("%s, distances %.4g and %.4g", g.names[worst], ours[worst], theirs[worst]))
	}
}

// worst returns the index of the largest value.
func (s sample) worst() int { return slices.Index(s, s.max()) }

// above returns the share of the values that are above `limit`.
func (s sample) above(limit float64) float64 {
	n := 0
	for _, v := range s {
		if v > limit {
			n++
		}
	}
	return float64(n) / float64(len(s))
}
