package main

import (
	"context"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// decoder is a model without experts, with a cache, and an encoder's result to attend to.
type decoder struct {
	shape   switchShape
	device  cgotorch.Device
	stream  *cgotorch.Stream
	model   *text.Switch
	cache   *text.Cache
	encoded *cgotorch.Tensor
}

func (s switchShape) newDecoder(d cgotorch.Device) (*decoder, error) {
	if err := cgotorch.Seed(1); err != nil {
		return nil, err
	}
	o := &decoder{shape: s, device: d, stream: cgotorch.DefaultStream(d)}
	return o, o.stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		o.model = text.NewSwitch(x, s.config, text.SwitchOptions{DType: s.dtype, NoExperts: true})
		for _, block := range o.model.Decoder.Block {
			if !block.FF.IsSparse() { // what ReLU has above zero would be the same for all tokens, and so would be the experts
				w := block.FF.Dense.WO.Weight
				x.CopyInPlace(w, x.Sub(w, x.MeanDim(w, []int64{1}, cgotorch.SumOptions{KeepDim: true})))
			}
		}
		o.cache = o.model.NewCache(x, text.CacheOptions{Capacity: s.length, Source: s.source})
		o.encoded = x.Keep(x.To(x.Randn(cgotorch.Float32, 1, int64(s.source), int64(s.config.DModel)), s.dtype))
		return nil
	})
}

func (o *decoder) close() {
	o.encoded.Close()
	if o.cache != nil {
		o.cache.Close()
	}
	if o.model != nil {
		nn.Close(o.model)
	}
}

// residentExperts gives the model's layers the store's experts, on the device.
func (o *decoder) residentExperts(store *weights.Store) error {
	c := o.shape.config
	var layers []*text.FeedForward
	for _, block := range o.model.Decoder.Block {
		if block.FF.IsSparse() {
			layers = append(layers, block.FF)
		}
	}
	return o.stream.Do(func(x *cgotorch.Exec) error {
		n, d, f := int64(c.NumExperts), int64(c.DModel), int64(c.DFF)
		for i, names := range c.ExpertNames(true) {
			wi, wo := x.Empty(o.shape.dtype, n, f, d), x.Empty(o.shape.dtype, n, d, f)
			experts := &text.ResidentExperts{}
			for k, name := range names {
				e := &text.Dense{WI: &nn.Linear{Weight: x.Keep(x.Select(wi, 0, k))}, WO: &nn.Linear{Weight: x.Keep(x.Select(wo, 0, k))}}
				for tensor, to := range map[string]*cgotorch.Tensor{"wi.weight": e.WI.Weight, "wo.weight": e.WO.Weight} {
					from, err := store.Bytes(name, tensor)
					if err != nil {
						return err
					}
					cgotorch.CopyFrom(x, x.Call("aten::view.dtype", to, cgotorch.Uint8)[0].(*cgotorch.Tensor), from)
				}
				experts.Expert = append(experts.Expert, e)
			}
			layers[i].Sparse.Experts = experts
		}
		return nil
	})
}

// switchMode is a way of having experts.
type switchMode struct {
	name     string
	gating   text.Gating
	policy   weights.Policy
	slots    int
	peer     string // in switch.py
	captured bool
	onDevice bool // the experts, found without the host
	known    bool // the choices, from a run before
}

// decoding is a decoder in one mode.
type decoding struct {
	*decoder
	mode    switchMode
	pieces  *text.Pieces
	units   *weights.Cache[*text.Dense]
	experts *weights.Experts[*text.Dense]
	runs    text.RoutedExperts
	base    int64 // bytes on the device before the model
	blocks  *blockTimes
}

func (s switchShape) newDecoding(c *config, store *weights.Store, mode switchMode) (d *decoding, err error) {
	d = &decoding{mode: mode}
	if err = c.device.ReleaseCachedMemory(); err != nil {
		return nil, err
	}
	memory, err := c.device.Memory()
	if err != nil {
		return nil, err
	}
	d.base = memory.Allocated
	if d.decoder, err = s.newDecoder(c.device); err != nil {
		return nil, err
	}
	if mode.onDevice {
		err = d.residentExperts(store)
	} else {
		build := func(x *cgotorch.Exec, _ string) (*text.Dense, error) {
			return text.NewExpert(x, s.config, s.dtype), nil
		}
		d.units, err = weights.NewCache(store, c.device, build, weights.CacheOptions{Policy: mode.policy, Slots: mode.slots})
		if err == nil {
			d.experts, err = weights.NewExperts(d.units, s.config.ExpertNames(true), weights.ExpertsOptions{})
		}
	}
	if err == nil {
		err = d.stream.Do(func(x *cgotorch.Exec) error {
			d.pieces = d.model.NewPieces(x, d.cache, text.PiecesOptions{Gating: mode.gating})
			if d.runs = d.experts; mode.onDevice {
				d.runs = d.model.ResidentExperts(x)
			}
			d.model.Decoder.Start(x, d.cache, d.encoded, nil)
			return nil
		})
	}
	if err == nil && mode.captured {
		err = d.pieces.Capture(d.stream)
	}
	if err == nil && mode.known {
		err = d.learn()
	}
	if err != nil {
		d.close()
		return nil, err
	}
	d.blocks = &blockTimes{RoutedExperts: d.runs}
	return d, nil
}

func (d *decoding) close() {
	if d.pieces != nil {
		d.pieces.Close()
	}
	if d.experts != nil {
		d.experts.Close()
	}
	if d.units != nil {
		d.units.Close()
	}
	d.decoder.close()
}

// learn runs a sequence to know what will be chosen.
func (d *decoding) learn() error {
	r := &recordedExperts{RoutedExperts: d.runs}
	defer func() {
		for _, read := range r.reads {
			read.Close()
		}
	}()
	if _, err := d.generate(r, func() error { return nil }); err != nil {
		return err
	}
	k := &knownExperts{units: d.units, names: d.shape.config.ExpertNames(true)}
	for _, read := range r.reads {
		id, err := read.Item()
		if err != nil {
			return err
		}
		k.choices = append(k.choices, int(id))
	}
	d.runs = k
	return nil
}

// recordedExperts remember each choice.
type recordedExperts struct {
	text.RoutedExperts
	reads []*cgotorch.HostRead
}

func (r *recordedExperts) Route(x *cgotorch.Exec, layer int, ids *cgotorch.Tensor) {
	r.reads = append(r.reads, x.ReadAsync(ids))
	r.RoutedExperts.Route(x, layer, ids)
}

// knownExperts are prefetched one after another as they were chosen in a sequence before.
type knownExperts struct {
	units   *weights.Cache[*text.Dense]
	names   [][]string
	choices []int // of all layers of all tokens
	next    int
}

func (k *knownExperts) name(i int) string {
	i %= len(k.choices)
	return k.names[i%len(k.names)][k.choices[i]]
}

func (k *knownExperts) Route(*cgotorch.Exec, int, *cgotorch.Tensor) {}

func (k *knownExperts) Predict(*cgotorch.Exec, int, *cgotorch.Tensor) {}

func (k *knownExperts) Run(x *cgotorch.Exec, _ int, tokens *cgotorch.Tensor) *cgotorch.Tensor {
	u := k.units.Use(x, k.name(k.next))
	defer u.Release(x)
	for ahead := 1; ahead < k.units.Slots(); ahead++ {
		if err := k.units.Prefetch(context.Background(), k.name(k.next+ahead)); err != nil {
			x.Fail("bench", err)
		}
	}
	k.next++
	return u.Module.Forward(x, tokens)
}

// generate runs a sequence, calls start before the tokens that count, and returns all ids.
func (d *decoding) generate(experts text.RoutedExperts, start func() error) (ids []int64, err error) {
	err = d.stream.Do(func(x *cgotorch.Exec) error {
		d.model.Decoder.Start(x, d.cache, d.encoded, nil)
		return nil
	})
	var reads []*cgotorch.HostRead
	defer func() {
		for _, r := range reads {
			r.Close()
		}
	}()
	for i := range d.shape.warmUp + d.shape.tokens {
		if i == d.shape.warmUp && err == nil {
			err = start()
		}
		if err == nil {
			err = d.stream.Do(func(x *cgotorch.Exec) error {
				d.cache.Next(x, d.pieces.Step(x.NoGrad(), experts))
				reads = append(reads, x.ReadAsync(d.cache.Tokens))
				return nil
			})
		}
	}
	if err == nil && d.units != nil {
		err = d.units.Flush(context.Background())
	}
	if err == nil {
		err = d.device.Synchronize()
	}
	for _, r := range reads {
		if err == nil {
			var id float64
			id, err = r.Item()
			ids = append(ids, int64(id))
		}
	}
	return ids, err
}
