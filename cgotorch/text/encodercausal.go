package text

import (
	"fmt"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// causalNet is a decoder whose hidden states become vectors. It has no head and no cache.
type causalNet struct{ d *decoder }

// openCausal opens a decoder without its head. It waits for the device.
func openCausal(stream *cgotorch.Stream, folder string, c *decoderConfig, given cgotorch.DType) (*causalNet, error) {
	for _, r := range c.ropes {
		if r.kind == "longrope" {
			return nil, fmt.Errorf("text: %s: rope_type is longrope, whose rotations depend on the longest text of a batch: use Open and Model.Forward: %w",
				filepath.Join(folder, "config.json"), cgotorch.ErrInvalidArgument)
		}
	}
	paths, err := weightFiles(folder)
	if err != nil {
		return nil, err
	}
	files, err := openWeights(paths)
	defer files.close()
	if err != nil {
		return nil, err
	}
	c.headless(files)
	if c.published != nil {
		if c.quantized, err = c.published.quantization(); err != nil {
			return nil, fmt.Errorf("text: %s: %w", filepath.Join(folder, "config.json"), err)
		}
	}
	o := Options{DType: given}
	dtype, err := o.dtype(c, files)
	if err != nil {
		return nil, err
	}
	if _, err := c.fits(stream.Device(), 0, dtype, 0, ""); err != nil {
		return nil, err
	}
	kernels, err := c.kernels(stream.Device(), dtype, false)
	if err != nil {
		return nil, err
	}
	net := &causalNet{}
	err = stream.Do(func(x *cgotorch.Exec) error {
		mk := &maker{x: plain(x), c: c, dtype: dtype, kernelChoice: kernels}
		net.d = mk.decoder()
		mk.keep()
		return nil
	})
	if err != nil {
		return nil, err
	}
	sources, err := net.d.match(files)
	if err != nil {
		return net, err
	}
	var from []source
	for _, n := range net.d.Weights {
		s := sources[n.Name]
		s.to = n.Tensor
		from = append(from, s)
	}
	return net, fillSources(stream, from)
}

// headless makes a config for files that may lack the head, and the prefix of all names.
func (c *decoderConfig) headless(files weightSet) {
	c.tied = true
	delete(files.of, headName)
	delete(files.of, innerPrefix+headName)
	if files.of[c.names.prefix[0]+"embed_tokens.weight"] == nil {
		c.names.prefix = append([]string{""}, c.names.prefix...)
	}
}

func (n *causalNet) free() error { return n.d.close() }

func (n *causalNet) places(l *encoderLayout) []int64 { return l.positions(0, false, 0) }

// flashes reports whether attention takes flash attention. Sinks need its sums.
func (n *causalNet) flashes() bool { return n.d.kernelChoice.flash && !n.d.c.sinks }

func (n *causalNet) mostCaptured() int {
	if !n.flashes() || n.d.c.experts.top > 0 {
		return 0
	}
	return rowsOfHost(n.d.c.width, n.d.c.inner, true)
}

func (n *causalNet) hidden(x *cgotorch.Exec, b *encoderBatch) *cgotorch.Tensor {
	d := n.d
	p := &pass{rows: b.rows}
	p.rotations = d.begin(x, d.frequencies[0], b.places)
	masks := map[int]*cgotorch.Tensor{}
	at := x.Arange(cgotorch.Int64, 0, b.longest, 1)
	for _, l := range d.layers {
		if far := l.window == 0 || l.window >= b.longest; masks[l.window] == nil && !n.flashes() && (!far || d.byHand(x, false)) {
			masks[l.window] = d.sees(x, at, at, l.window)
		}
	}
	p.attend = func(layer int, qkv *cgotorch.Tensor) *cgotorch.Tensor {
		l := d.layers[layer]
		sizes := []int64{int64(d.c.heads), int64(d.c.keyHeads), int64(d.c.keyHeads)}
		if n.flashes() {
			all := x.SplitWithSizes(qkv, sizes, 1)
			return b.flash(x, all[0], all[1], all[2], flashOptions{causal: true, window: l.window, scale: d.c.queryScale})
		}
		return b.each(x, func(g encoderGroup) *cgotorch.Tensor {
			part := x.View(x.Narrow(qkv, 0, g.from, g.count*g.length), int64(g.count), int64(g.length), -1, int64(d.c.head))
			all := x.SplitWithSizes(part, sizes, 2)
			mask := masks[l.window]
			if mask != nil {
				mask = x.Narrow(x.Narrow(mask, 0, 0, g.length), 1, 0, g.length)
			}
			return d.mix(x, l, all[0], all[1], all[2], mask)
		})
	}
	return d.hidden(x, p, b.tokens)
}
