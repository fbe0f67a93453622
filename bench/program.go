package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
)

// programModels are the models of the rows program/MODEL. All but bert are torchvision's.
var programModels = []string{"resnet50", "efficientnet_b0", "convnext_tiny", "vit_b_16", "swin_t", "bert"}

func programBenchmarks() []benchmark {
	all := []benchmark{{"program/make", true, benchProgramMake}}
	for _, model := range programModels {
		all = append(all, benchmark{"program/" + model, true, benchProgram(model)})
	}
	return append(all, benchmark{"program/eager/swin_t", true, benchProgramEager})
}

// programRun is a run of the rows of one model.
type programRun struct {
	*programFiles
	model string
	emit  func(row)
	peers programPeers
}

// programPeers holds the process of PyTorch for each mode that is measured.
type programPeers map[string]*peer

// benchProgram returns a benchmark of the inference of a model that PyTorch has exported. Our sides
// are the program as it was exported and fused, both captured, and the package of AOTInductor. The
// peers are PyTorch's graph, torch.compile, and the package in Python.
func benchProgram(model string) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		files, err := c.newProgramFiles()
		if err != nil {
			return err
		}
		defer files.close()
		if err := files.make([]string{model}, c.kindsOfFiles()); err != nil {
			return err
		}
		modes := []string{"graph"}
		switch {
		case !c.device.IsCUDA():
			modes = []string{"eager"} // a CPU has no graphs
		case model == "vit_b_16":
			modes = append(modes, "module graph") // eager attention is another operator than an exported one
		}
		if c.compile {
			modes = append(modes, "compile")
		}
		if len(c.packageBatches()) > 0 {
			modes = append(modes, "aoti")
		}
		r := &programRun{programFiles: files, model: model, emit: emit}
		if r.peers, err = files.startPeers(modes); err != nil {
			return err
		}
		defer r.peers.close()
		return r.all()
	}
}

// startPeers starts a process for each mode, all at the same time.
func (f *programFiles) startPeers(modes []string) (programPeers, error) {
	var wait sync.WaitGroup
	started, errs := make([]*peer, len(modes)), make([]error, len(modes))
	for i := range modes {
		wait.Add(1)
		go func() {
			defer wait.Done()
			started[i], errs[i] = f.c.startPeer("program.py", f.s)
		}()
	}
	wait.Wait()
	peers := programPeers{}
	for i, mode := range modes {
		if started[i] != nil {
			peers[mode] = started[i]
		}
	}
	if err := errors.Join(errs...); err != nil {
		peers.close()
		return nil, err
	}
	return peers, nil
}

// drop ends the process of a mode that has failed. The other modes are measured without it.
func (p programPeers) drop(c *config, mode string, why error) {
	c.tell(fmt.Sprintf("PyTorch %s is left out: %v", mode, why))
	p[mode].close()
	delete(p, mode)
}

func (p programPeers) close() {
	for _, peer := range p {
		peer.close()
	}
}

// all makes the rows of each batch.
func (r *programRun) all() error {
	plain, err := r.load(r.model, pt2.Options{})
	if err != nil {
		return err
	}
	defer plain.Close()
	fused, failed := r.load(r.model, pt2.Options{Fuse: true})
	if failed != nil {
		r.c.tell("the fused program is left out: " + failed.Error())
	}
	defer fused.Close()
	for _, batch := range r.c.programBatches() {
		if err := r.rows(plain, fused, batch); err != nil {
			failed = errors.Join(failed, fmt.Errorf("batch %d: %w", batch, err))
		}
	}
	if batches := r.c.packageBatches(); len(batches) > 0 {
		failed = errors.Join(failed, r.lanes(batches[0]))
	}
	return failed
}

// load loads an exported program.
func (f *programFiles) load(model string, o pt2.Options) (p *pt2.Program, err error) {
	err = cgotorch.DefaultStream(f.c.device).Do(func(x *cgotorch.Exec) (err error) {
		p, err = pt2.Load(x, f.program(model), o)
		return err
	})
	return p, err
}

// sidesByName are the sides of one batch, with what they have measured.
type sidesByName struct {
	names  []string
	sides  []side
	values map[string]sample
	how    map[string]string // what a note says of a side
}

func (s *sidesByName) add(name string, run side, how string) {
	s.names, s.sides = append(s.names, name), append(s.sides, run)
	s.how[name] = how
}

func (s *sidesByName) measure(rounds int) error {
	values, err := interleave(rounds, s.sides...)
	s.values = map[string]sample{}
	for i, v := range values {
		s.values[s.names[i]] = v
	}
	return err
}

// rows makes the rows of a batch. It leaves out a side that fails. `failed` is the failure of a
// side of ours.
func (r *programRun) rows(plain, fused *pt2.Program, batch int) (failed error) {
	c := r.c
	in, want, err := r.stored(r.model, batch)
	if err != nil {
		return err
	}
	defer in.Close()
	all := &sidesByName{how: map[string]string{}}
	calls := 1
	for _, of := range []struct {
		name    string
		program *pt2.Program
	}{{"ours", plain}, {"ours, fused", fused}} {
		if of.program == nil {
			continue
		}
		w, err := newCapturedWork(c, inference(of.program), cgotorch.CapturedOptions{InPlace: true, Log: c.tell}, 5, in)
		defer w.close()
		var far float64
		if err == nil {
			far, err = w.difference(want)
		}
		if err != nil {
			c.tell(fmt.Sprintf("%s: left out: %v", of.name, err))
			failed = errors.Join(failed, fmt.Errorf("%s: %w", of.name, err))
			continue
		}
		if calls == 1 {
			if calls, err = c.callsOf(w.run); err != nil {
				return err
			}
		}
		how := fmt.Sprintf("captured, differs by %.2g", far)
		if done := of.program.Report(); done != "" {
			how += "; " + done
		} else {
			how += fmt.Sprintf("; %d nodes", len(of.program.Nodes()))
		}
		all.add(of.name, w.side(calls), how)
	}
	packaged := slices.Contains(c.packageBatches(), batch)
	if made, _ := r.result(making{"package", r.model, batch}); packaged && made.Error == "" {
		done, err := r.packageSides(all, batch, calls, in, want)
		defer done()
		if err != nil {
			c.tell("our package is left out: " + err.Error())
			failed = errors.Join(failed, fmt.Errorf("our package: %w", err))
		}
	}
	for _, mode := range slices.Sorted(maps.Keys(r.peers)) {
		if mode == "aoti" && !packaged {
			continue
		}
		how, err := r.prepare(mode, batch)
		if err != nil {
			r.peers.drop(c, mode, err)
			continue
		}
		all.add(mode, r.peers[mode].value("microseconds", "block", "calls", calls), how)
	}
	if err := all.measure(c.roundsOr(7)); err != nil {
		return err
	}
	r.report(all, batch, calls)
	return failed
}

// report makes the rows of the sides that were measured.
func (r *programRun) report(all *sidesByName, batch, calls int) {
	report := func(name, our, peer string) {
		ours, theirs := all.values[our], all.values[peer]
		if ours == nil || theirs == nil {
			return
		}
		r.emit(inTurns(fmt.Sprintf("program/%s/%d/%s", r.model, batch, name), ours, "us", "PyTorch "+peer, theirs, lower,
			fmt.Sprintf("%s %v (%s); %s %v (%s); blocks of %d calls back to back, in turns; %s, evaluation, input on the device; %s; %v; %s",
				our, ours, all.how[our], peer, theirs, all.how[peer], calls, r.form(batch), r.c.settings(), r.s, r.peers[peer].versions)))
	}
	for _, peer := range []string{"graph", "module graph", "eager", "compile", "aoti"} {
		report("captured-against-"+strings.ReplaceAll(peer, " ", "-"), "ours", peer)
		report("fused-against-"+strings.ReplaceAll(peer, " ", "-"), "ours, fused", peer)
	}
	report("package", "package", "aoti")
	report("package-captured", "package, captured", "aoti")
}

// prepare makes the process of a mode ready. It returns what a note says of it.
func (r *programRun) prepare(mode string, batch int) (how string, err error) {
	if kind := whatFor[mode]; kind != "" {
		of, _ := r.result(making{kind, r.model, batch})
		if of.Error != "" {
			return "", errors.New(of.Error)
		}
		how = fmt.Sprintf("compiled in %.0f s with %d at a time, ", of.Seconds, of.Beside)
	}
	began := time.Now()
	var reply struct {
		Difference *float64
		Cached     int
	}
	err = r.peers[mode].do(&reply, "prepare", "folder", r.folder, "model", r.model, "batch", batch,
		"device", r.c.device.String(), "small", r.c.brief, "mode", mode)
	if err != nil {
		return "", err
	}
	how += fmt.Sprintf("ready after %.0f s", time.Since(began).Seconds())
	r.c.tell(fmt.Sprintf("PyTorch %s: %s", mode, how))
	if reply.Cached > 0 {
		how += " from its cache"
	}
	if reply.Difference != nil {
		how += fmt.Sprintf(", differs by %.2g", *reply.Difference)
	}
	return how, nil
}

// form returns the text of a note about the input.
func (r *programRun) form(batch int) string {
	if r.model == "bert" {
		return fmt.Sprintf("%v, %d texts of 128 tokens", r.c.dtype(), batch)
	}
	return fmt.Sprintf("%v, %d images, channels last", r.c.dtype(), batch)
}

// callsOf returns how many calls take about 60 ms.
func (c *config) callsOf(call func() error) (int, error) {
	if c.brief {
		return 1, nil
	}
	seconds, err := c.secondsEach(10, call)
	return max(5, min(500, int(0.06/seconds))), err
}

// difference runs the captured function, and returns how far the result is from `want`. See
// deviation.
func (w *capturedWork) difference(want []float32) (far float64, err error) {
	err = w.stream.Do(func(x *cgotorch.Exec) error {
		far, err = deviation(x, w.captured.Run(x, w.in...)[0], want)
		return err
	})
	if err == nil && w.c.device.IsCUDA() && !w.c.brief && w.captured.Stats().Graphs != 1 {
		err = fmt.Errorf("it was not captured: %s", w.captured.Stats().Why)
	}
	return far, err
}

// deviation returns the largest difference of an element, as a part of the largest element. It
// fails if the difference is no rounding in bfloat16.
func deviation(x *cgotorch.Exec, t *cgotorch.Tensor, want []float32) (float64, error) {
	got := cgotorch.ToSlice[float32](x, x.To(t, cgotorch.Float32))
	if len(got) != len(want) {
		return 0, fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	var top, far float32
	for i := range want {
		top, far = max(top, want[i], -want[i]), max(far, got[i]-want[i], want[i]-got[i])
	}
	if !near(got, want) {
		return 0, fmt.Errorf("a wrong result: an element differs by %g, and the largest one is %g", far, top)
	}
	return float64(far / top), nil
}

// benchProgramEager compares the host's time for a node. Each side runs the nodes of one program
// one by one, without a graph. PyTorch also runs the model as it was written.
func benchProgramEager(c *config, emit func(row)) error {
	const model, batch = "swin_t", 1
	files, err := c.newProgramFiles()
	if err != nil {
		return err
	}
	defer files.close()
	if err := files.make([]string{model}, map[string][]int{"export": {0}}); err != nil {
		return err
	}
	r := &programRun{programFiles: files, model: model, emit: emit}
	if r.peers, err = files.startPeers([]string{"module", "eager"}); err != nil {
		return err
	}
	defer r.peers.close()
	p, err := r.load(model, pt2.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	in, want, err := r.stored(model, batch)
	if err != nil {
		return err
	}
	defer in.Close()
	call := forward(c.device, p, in)
	var far float64
	err = cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
		far, err = deviation(x, p.Forward(x.NoGrad(), in), want)
		return err
	})
	if err != nil {
		return err
	}
	calls, err := c.callsOf(call)
	if err != nil {
		return err
	}
	all := &sidesByName{how: map[string]string{}}
	all.add("ours", func() (float64, error) { return microseconds(c, calls, call) }, fmt.Sprintf("differs by %.2g", far))
	for _, mode := range []string{"module", "eager"} {
		how, err := r.prepare(mode, batch)
		if err != nil {
			return err
		}
		all.add(mode, r.peers[mode].value("microseconds", "block", "calls", calls), how)
	}
	if err := all.measure(c.roundsOr(7)); err != nil {
		return err
	}
	nodes := float64(len(p.Nodes()))
	for _, mode := range []string{"module", "eager"} {
		ours, theirs := all.values["ours"], all.values[mode]
		emit(inTurns(fmt.Sprintf("program/eager/%s/%d/against-%s", model, batch, mode), ours, "us", "PyTorch "+mode, theirs, lower,
			fmt.Sprintf("%.0f nodes, %.2f us each, peer %.2f; ours %v (%s); peer %v (%s); blocks of %d calls; %s; %s; %v; %s", nodes, ours.median()/nodes,
				theirs.median()/nodes, ours, all.how["ours"], theirs, all.how[mode], calls, r.form(batch), c.settings(), r.s, r.peers[mode].versions)))
	}
	return nil
}

// forward returns a function that calls the model once, without a graph.
func forward(d cgotorch.Device, m nn.Module, in *cgotorch.Tensor) func() error {
	stream := cgotorch.DefaultStream(d)
	return func() error {
		return stream.Do(func(x *cgotorch.Exec) error { m.Forward(x.NoGrad(), in); return nil })
	}
}
