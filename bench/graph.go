package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
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

func (p graphPeers) versions() string { return p["eager"].versions }

func (p graphPeers) close() {
	for _, peer := range p {
		peer.close()
	}
}

// withGraphPeers returns a benchmark of inference. It starts the processes of the first three
// peerModes and then calls `run`. This program and the peers use the same switches.
func withGraphPeers(run func(c *config, s switches, peers graphPeers, emit func(row)) error) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		s := switches{benchmark: c.device.IsCUDA()}
		peers, err := c.startGraphPeers(s, peerModes[:3])
		if err != nil {
			return err
		}
		defer peers.close()
		return run(c, s, peers, emit)
	}
}

// trainCase is a training step on a resident batch.
type trainCase struct {
	model string
	batch int
	// The precision: "bf16" is float32 with autocast to bfloat16, "tf32" is float32 with matrix
	// products in TF32, and "f32" is float32.
	precision string
}

var trainCases = []trainCase{
	{"resnet50", 32, "bf16"}, {"resnet50", 128, "bf16"}, {"resnet50", 256, "bf16"},
	{"resnet18", 32, "bf16"}, {"resnet18", 64, "bf16"}, {"resnet101", 64, "bf16"},
	{"mobilenet_v2", 32, "bf16"}, {"mobilenet_v2", 64, "bf16"}, {"efficientnet_b0", 64, "bf16"}, {"vit_b_16", 64, "bf16"},
	{"resnet50", 64, "tf32"}, {"resnet50", 64, "f32"},
}

func (t trainCase) name() string {
	if t.precision == "bf16" {
		return fmt.Sprintf("graph/train/%s/%d", t.model, t.batch)
	}
	return fmt.Sprintf("graph/train/%s/%s/%d", t.precision, t.model, t.batch)
}

func trainBenchmarks() []benchmark {
	var all []benchmark
	for _, t := range trainCases {
		all = append(all, benchmark{t.name(), true, t.bench})
	}
	return all
}

// bench is a benchmark of the case. The sides are our eager and captured steps, for small batches
// also our captured step with an Overlap, and PyTorch's steps in all peerModes. The benchmark also
// measures the launch of a graph, and memory.
func (t trainCase) bench(c *config, emit func(row)) error {
	t.batch = c.or(2, t.batch)
	s := switches{benchmark: c.device.IsCUDA(), tf32: t.precision == "tf32"}
	peers, err := c.startGraphPeers(s, peerModes)
	if err != nil {
		return err
	}
	defer peers.close()
	return t.rows(c, s, peers, emit)
}

func (t trainCase) rows(c *config, s switches, peers graphPeers, emit func(row)) error {
	var ours []*graphStep
	defer func() {
		for _, g := range ours {
			g.close()
		}
	}()
	forms := []string{"ours eager", "ours captured"}
	if t.batch <= 32 && c.device.IsCUDA() {
		forms = append(forms, "ours overlapped") // a second stream is of use for small batches only
	}
	for i, form := range forms {
		var overlap *cgotorch.Overlap
		if i == 2 {
			var err error
			if overlap, err = cgotorch.NewOverlap(cgotorch.OverlapOptions{Log: c.tell}); err != nil {
				return err
			}
		}
		g, err := newGraphStep(c, t, stepForm{eager: i == 0, overlap: overlap})
		if err != nil {
			return fmt.Errorf("%s: %w", form, err)
		}
		ours = append(ours, g)
	}
	if err := peers.prepare(c, "prepare_train", "model", t.model, "batch", t.batch, "autocast", t.precision == "bf16"); err != nil {
		return err
	}
	steps := c.or(1, max(10, 2000/t.batch))
	var sides []side
	for _, g := range ours {
		sides = append(sides, func() (float64, error) { return g.block(steps) })
	}
	var modes []string
	for _, mode := range peerModes {
		if peers[mode] != nil {
			modes = append(modes, mode)
			sides = append(sides, peers[mode].value("milliseconds", "train_block", "steps", steps))
		}
	}
	values, err := interleave(c.roundsOr(7), sides...)
	if err != nil {
		return err
	}
	of := map[string]sample{}
	for i, name := range append(slices.Clone(forms), modes...) {
		of[name] = values[i]
	}
	common := fmt.Sprintf("blocks of %d steps in turns; batch %d of 3x224x224, resident, %s, channels last, fused SGD with momentum and weight decay; %s; %v; %s",
		steps, t.batch, t.precision, c.settings(), s, peers.versions())
	prefix := t.name() + "/"
	rate := func(v sample) float64 { return float64(t.batch) * 1e3 / v.median() }
	report := func(name, our, mode string) {
		if of[mode] == nil || of[our] == nil {
			return
		}
		r := against(prefix+name, rate(of[our]), "images/s", "PyTorch "+mode, rate(of[mode]), higher,
			fmt.Sprintf("%s; ours %v; peer %v; %s", our, of[our], of[mode], common))
		r.Ratio = ratioOf(ratios(of[mode], of[our]).median(), 1)
		emit(r)
	}
	report("eager", "ours eager", "eager")
	report("captured", "ours captured", "graph")
	report("captured-against-eager", "ours captured", "eager")
	report("captured-against-compile", "ours captured", "compile")
	report("captured-against-compile-graph", "ours captured", "compile graph")
	report("overlapped-against-compile", "ours overlapped", "compile")
	report("overlapped-against-compile-graph", "ours overlapped", "compile graph")
	for i, g := range ours[1:] {
		if stats := g.captured.Stats(); c.device.IsCUDA() && stats.Graphs != 1 {
			return fmt.Errorf("%s: the step was not captured: %s", forms[1+i], stats.Why)
		}
	}
	for i, mode := range modes[:min(2, len(modes))] {
		var memory struct{ Allocated, Reserved float64 }
		if err := peers[mode].do(&memory, "train_memory"); err != nil {
			return err
		}
		name := []string{"eager", "captured"}[i]
		if mode == "eager" {
			for k, g := range ours[1:] {
				emit(against(prefix+"memory/"+strings.TrimPrefix(forms[1+k], "ours ")+"-against-eager", g.peak/(1<<20), "MiB", "PyTorch eager",
					memory.Allocated/(1<<20), lower, "peak of allocated bytes, as in memory/eager; "+common))
			}
		}
		emit(against(prefix+"memory/"+name, ours[i].peak/(1<<20), "MiB", "PyTorch "+mode, memory.Allocated/(1<<20), lower,
			fmt.Sprintf("peak of allocated bytes, from the making of the model on; reserved at the end %.0f MiB, peer's peak %.0f MiB; %s", ours[i].reserved/(1<<20), memory.Reserved/(1<<20), common)))
	}
	if !c.device.IsCUDA() {
		return nil
	}
	runs, dos, err := ours[1].launches(c.or(1, 50))
	if err != nil {
		return err
	}
	theirs, err := peers["graph"].value("microseconds", "launch", "count", 50)()
	if err != nil {
		return err
	}
	emit(against(prefix+"launch", runs.median(), "us", "PyTorch graph.replay", theirs, lower,
		fmt.Sprintf("time on the host until Captured.Run returns while the device is busy with the one before, median of %d, 0.9 quantile %.1f us; with the Do around it %.1f, %.1f us; %s",
			len(runs), runs.quantile(0.9), dos.median(), dos.quantile(0.9), common)))
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
	overlap *cgotorch.Overlap
	group   *distributed.Group // the ranks that the gradients are reduced over
	plain   bool               // LibTorch's kernels, and none of this library
	adam    bool               // Adam in place of SGD
	sharded bool               // the optimizer's state is spread over the ranks
	reduced bool               // the gradients of a sharded optimizer are reduced during the backward
	synced  bool               // the norms use the batches of all ranks
}

// newGraphStep makes a step and warms it up.
func newGraphStep(c *config, t trainCase, form stepForm) (*graphStep, error) {
	if err := c.device.ReleaseCachedMemory(); err != nil {
		return nil, err
	}
	before, err := c.device.Memory()
	if err != nil {
		return nil, err
	}
	if err := c.device.ResetPeakMemory(); err != nil {
		return nil, err
	}
	l, err := newLearner(c, t.model, vision.Options{}, 1, optim.SGDOptions{LR: 0.1, Momentum: momentum, WeightDecay: 1e-4}, optim.Constant())
	if err != nil {
		return nil, err
	}
	if c.device.IsCUDA() && t.precision == "bf16" {
		l.autocast = cgotorch.BFloat16
	}
	l.overlap = form.overlap
	g := &graphStep{learner: l, c: c}
	o := cgotorch.CapturedOptions{InPlace: true, Log: c.tell}
	if form.group != nil {
		o.Agree = form.group.Agree
	}
	if err := l.spread(form); err != nil {
		g.close()
		return nil, err
	}
	if !form.eager {
		g.captured = cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			return []*cgotorch.Tensor{l.step(x, in[0], in[1])}
		}, o)
	}
	err = l.stream.Do(func(x *cgotorch.Exec) error {
		g.images, g.labels = randomBatch(x, t.batch, 224, 1000)
		return nil
	})
	if err == nil {
		warm := 6
		if form.overlap != nil {
			warm = 40 // the choices of an Overlap take about 24 steps
		}
		_, err = g.block(c.or(1, warm))
	}
	if err == nil {
		var m cgotorch.Memory
		m, err = c.device.Memory()
		g.peak, g.reserved = float64(m.PeakAllocated-before.Allocated), float64(m.Reserved-before.Reserved)
	}
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// spread gives the learner the kernels and the optimizer of the form, and the group's Gradients.
func (l *learner) spread(form stepForm) error {
	if form.plain {
		nn.SetFused(l.model, false)
	}
	if form.synced {
		distributed.SyncBatchNorm(form.group, l.model)
	}
	return l.stream.Do(func(x *cgotorch.Exec) (err error) {
		if form.adam {
			adam := func(groups ...optim.Group) (*optim.Optimizer, error) {
				return optim.NewAdam(optim.AdamOptions{LR: 1e-4}, groups...)
			}
			in := optim.Group{Params: nn.Parameters(l.model)}
			if err := l.opt.Close(); err != nil {
				return err
			}
			if form.sharded {
				l.opt, err = distributed.NewSharded(x, form.group, distributed.ShardedOptions{Reduced: form.reduced}, adam, in)
			} else {
				l.opt, err = adam(in)
			}
		}
		if err == nil && form.group != nil && (!form.sharded || form.reduced) {
			l.reduced, err = distributed.NewGradients(x, form.group, l.model, distributed.GradientsOptions{})
		}
		return err
	})
}

func (g *graphStep) run(x *cgotorch.Exec) error {
	if g.captured == nil {
		g.step(x, g.images, g.labels)
	} else {
		g.captured.Run(x, g.images, g.labels)
	}
	return nil
}

// block runs the given number of steps and returns milliseconds per step. The measured time ends
// when the last step has ended on the device.
func (g *graphStep) block(steps int) (float64, error) {
	seconds, err := g.c.secondsEach(steps, func() error { return g.stream.Do(g.run) })
	return seconds * 1e3, err
}

// launches returns the microseconds that each of several runs takes on the host. `runs` holds the
// times of Run alone, and `dos` holds the times of the whole Do. Each time, the device is still
// busy with an earlier run.
func (g *graphStep) launches(count int) (runs, dos sample, err error) {
	for range count {
		if err := g.c.device.Synchronize(); err != nil {
			return nil, nil, err
		}
		if err := g.stream.Do(g.run); err != nil {
			return nil, nil, err
		}
		began := time.Now()
		err := g.stream.Do(func(x *cgotorch.Exec) error {
			began := time.Now()
			err := g.run(x)
			runs = append(runs, float64(time.Since(began).Nanoseconds())/1e3)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		dos = append(dos, float64(time.Since(began).Nanoseconds())/1e3)
	}
	return runs, dos, nil
}

func (g *graphStep) close() {
	g.captured.Close()
	g.images.Close()
	g.labels.Close()
	g.learner.close()
}

// benchGraphInference returns a benchmark of captured calls of a model in evaluation mode. The
// calls run one after another on one stream. A second measurement has calls from many goroutines.
func benchGraphInference(model string) func(c *config, emit func(row)) error {
	return withGraphPeers(func(c *config, s switches, peers graphPeers, emit func(row)) error {
		for _, batch := range []int{1, 8} {
			if err := graphInferenceRows(c, s, peers, model, batch, emit); err != nil {
				return err
			}
		}
		return servingRow(c, s, model, emit)
	})
}

func graphInferenceRows(c *config, s switches, peers graphPeers, model string, batch int, emit func(row)) error {
	m, err := peers.served(c, model, batch)
	if err != nil {
		return err
	}
	defer m.close()
	calls := c.or(1, 300)
	stream := cgotorch.DefaultStream(c.device)
	fused, err := m.fuse()
	if err != nil {
		return err
	}
	defer nn.Close(fused)
	var sides []side
	for _, of := range []struct {
		model   nn.Module
		inPlace bool
	}{{m.model, true}, {m.model, false}, {fused, true}} {
		w, err := newCapturedWork(c, inference(of.model), cgotorch.CapturedOptions{InPlace: of.inPlace}, 5, m.input)
		defer w.close()
		if err != nil {
			return err
		}
		sides = append(sides, w.side(calls))
	}
	sides = append(sides, func() (float64, error) {
		return microseconds(c, calls, func() error {
			return stream.Do(func(x *cgotorch.Exec) error { m.model.Forward(x.NoGrad(), m.input); return nil })
		})
	})
	names := []string{"ours", "ours, copying", "ours, fused", "ours, eager"}
	for _, mode := range peerModes {
		if peers[mode] != nil {
			names = append(names, mode)
			sides = append(sides, peers[mode].value("microseconds", "inference_block", "calls", calls, "copy", false))
		}
	}
	if peers["graph"] != nil {
		names = append(names, "graph, copying")
		sides = append(sides, peers["graph"].value("microseconds", "inference_block", "calls", calls, "copy", true))
	}
	values, err := interleave(c.roundsOr(7), sides...)
	if err != nil {
		return err
	}
	report := func(name, our, peer string) {
		i, k := slices.Index(names, our), slices.Index(names, peer)
		if k < 0 {
			return
		}
		emit(inTurns(fmt.Sprintf("graph/inference/%s/%d/%s", model, batch, name), values[i], "us", "PyTorch "+peer, values[k], lower,
			fmt.Sprintf("%s; blocks of %d calls back to back, in turns; bfloat16 weights and images, evaluation, channels last, input on the device; ours %v; peer %v; %s; %v; %s",
				our, calls, values[i], values[k], c.settings(), s, peers.versions())))
	}
	report("captured", "ours", "graph")
	report("captured-and-copy", "ours, copying", "graph, copying")
	report("eager", "ours, eager", "eager")
	report("captured-against-compile", "ours", "compile")
	report("fused-against-compile", "ours, fused", "compile")
	return nil
}

// served is a model in evaluation mode with an input for it. On a GPU both are bfloat16.
type served struct {
	model nn.Module
	input *cgotorch.Tensor
}

func newServed(c *config, model string, batch int64) (*served, error) {
	m := &served{}
	if err := cgotorch.Seed(1); err != nil {
		return nil, err
	}
	dtype := c.dtype()
	err := cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
		var err error
		if m.model, err = vision.New(x, model, vision.Options{}); err != nil {
			return err
		}
		nn.SetTraining(m.model, false)
		nn.To(x, m.model, nn.ToOptions{DType: dtype, ChannelsLast: true})
		size := int64(224)
		if model == "inception_v3" {
			size = 299
		}
		m.input = x.Keep(x.Contiguous(x.To(x.Randn(cgotorch.Float32, batch, 3, size, size), dtype), cgotorch.ChannelsLast))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, c.device.Synchronize()
}

// served returns the result of newServed. It also makes the peers ready for inference of the model.
func (p graphPeers) served(c *config, model string, batch int) (*served, error) {
	if err := p.prepare(c, "prepare_inference", "model", model, "batch", batch); err != nil {
		return nil, err
	}
	return newServed(c, model, int64(batch))
}

// fuse returns the model with fused operators. The caller closes the fused model.
func (m *served) fuse() (fused nn.Module, err error) {
	err = cgotorch.DefaultStream(m.input.Device()).Do(func(x *cgotorch.Exec) error {
		fused = nn.Fuse(x, m.model, nn.FuseOptions{})
		return nil
	})
	return fused, err
}

func (m *served) close() {
	m.input.Close()
	nn.Close(m.model)
}

// servingRow compares two numbers of goroutines: 16 goroutines, which share 8 streams, and one
// goroutine. Each call copies its input from the host and reads the answer back. The answer must
// equal that of an eager call up to rounding.
func servingRow(c *config, s switches, model string, emit func(row)) error {
	const goroutines, streams, images = 16, 8, 32
	m, err := newServed(c, model, images)
	if err != nil {
		return err
	}
	defer m.close()
	var pixels []byte
	var want []float32
	err = cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
		pixels = cgotorch.ToBytes(x, x.Contiguous(m.input, cgotorch.Contiguous))
		for i := range images {
			want = append(want, cgotorch.ToSlice[float32](x, x.To(m.model.Forward(x.NoGrad(), x.Narrow(m.input, 0, i, 1)), cgotorch.Float32))...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	infer, err := cgotorch.NewInference(c.device, m.model.Forward, cgotorch.InferenceOptions{Streams: streams, BatchSizes: []int{1}})
	if err != nil {
		return err
	}
	defer infer.Close()
	dtype := m.input.DType()
	image := func(x *cgotorch.Exec, i int) *cgotorch.Tensor {
		size := len(pixels) / images
		return x.Contiguous(cgotorch.FromBytes(x, pixels[i*size:(i+1)*size], dtype, []int64{1, 3, 224, 224}), cgotorch.ChannelsLast)
	}
	if err := infer.Prepare(context.Background(), func(x *cgotorch.Exec) *cgotorch.Tensor { return image(x, 0) }); err != nil {
		return err
	}
	calls := c.or(2, 2000)
	run := func(n int) (float64, error) {
		began := time.Now()
		var done sync.WaitGroup
		errs := make([]error, n)
		for g := range n {
			done.Add(1)
			go func() {
				defer done.Done()
				for k := range calls / n {
					i := (g + k) % images
					var scores []float32
					err := infer.Do(context.Background(), func(x *cgotorch.Exec, forward func(*cgotorch.Tensor) *cgotorch.Tensor) error {
						scores = cgotorch.ToSlice[float32](x, x.To(forward(image(x, i)), cgotorch.Float32))
						return nil
					})
					if err == nil && !near(scores, want[i*len(scores):(i+1)*len(scores)]) {
						err = fmt.Errorf("goroutine %d, call %d: a wrong answer", g, k)
					}
					if err != nil {
						errs[g] = err
						return
					}
				}
			}()
		}
		done.Wait()
		for _, err := range errs {
			if err != nil {
				return 0, err
			}
		}
		return float64(calls/n*n) / time.Since(began).Seconds(), nil
	}
	values, err := interleave(c.roundsOr(7), func() (float64, error) { return run(min(goroutines, calls)) }, func() (float64, error) { return run(1) })
	if err != nil {
		return err
	}
	emit(inTurns("graph/serving/"+model+"/1", values[0], "calls/s", "ours, one goroutine", values[1], higher,
		fmt.Sprintf("%d goroutines over %d streams, batch 1, bfloat16, input from the host and answer read back and compared; ours %v; peer %v; %s; %v; %v",
			goroutines, streams, values[0], values[1], c.settings(), s, strings.TrimSpace(infer.Stats().Why))))
	return nil
}

// near reports whether `got` equals `want` up to rounding in bfloat16. Two algorithms may add in
// different orders.
func near(got, want []float32) bool {
	if len(got) != len(want) {
		return false
	}
	top := float32(0)
	for _, v := range want {
		top = max(top, v, -v)
	}
	for i := range got {
		if d := got[i] - want[i]; !(max(d, -d) <= 0.05*top) {
			return false
		}
	}
	return true
}
