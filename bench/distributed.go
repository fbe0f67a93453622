package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
)

// rankRequest says what a process of ours trains, as one rank of several or alone.
type rankRequest struct {
	Model     string
	Batch     int // of this rank
	CPU       bool
	Brief     bool
	Benchmark bool
	Threads   int // of the loader

	Overlap, Plain, Adam, Sharded, Reduced, Synced bool

	// If Archive is set, the batches come from this file of so many members in folders by class.
	Archive string
	Classes []string
	Members int
}

// ranked is a training step of one rank.
type ranked struct {
	c      *config
	group  *distributed.Group
	step   *graphStep
	feeder *feeder // nil if no batches come from a file
}

// open joins the other ranks and prepares a captured step.
func (r *ranked) open(q rankRequest) (map[string]any, error) {
	var err error
	if r.group, err = distributed.Join(context.Background(), distributed.Options{OnCPU: q.CPU}); err != nil {
		return nil, err
	}
	r.c = &config{device: r.group.Device(), threads: max(q.Threads, 1), brief: q.Brief}
	if err := (switches{benchmark: q.Benchmark}).set(); err != nil {
		return nil, err
	}
	if q.Archive != "" {
		return r.openFed(q)
	}
	var overlap *cgotorch.Overlap
	if q.Overlap {
		if overlap, err = cgotorch.NewOverlap(cgotorch.OverlapOptions{}); err != nil {
			return nil, err
		}
	}
	r.step, err = newGraphStep(r.c, trainCase{q.Model, q.Batch, "bf16"}, stepForm{
		eager: q.CPU, overlap: overlap, group: r.group, plain: q.Plain, adam: q.Adam, sharded: q.Sharded, reduced: q.Reduced, synced: q.Synced})
	if err != nil {
		return nil, err
	}
	reply := map[string]any{"captured": r.step.captured != nil && r.step.captured.Stats().Graphs == 1}
	if r.step.reduced != nil {
		s := r.step.reduced.Stats()
		reply["collectives"], reply["early"], reply["bytes"] = s.Collectives, s.Early, s.Bytes
	}
	if sharded, ok := r.step.opt.(*distributed.Sharded); ok {
		s := sharded.Stats()
		reply["state"], reply["whole"] = s.StateBytes, s.WholeBytes
	}
	return reply, nil
}

// openFed prepares a captured step that a loader of this rank's share feeds.
func (r *ranked) openFed(q rankRequest) (map[string]any, error) {
	recipe := imagenet
	if q.CPU {
		recipe = recipe.onCPU(r.c)
	}
	recipe.batch, recipe.classes = q.Batch, len(q.Classes)
	f := &fed{c: r.c, batches: q.Members / r.group.World() / q.Batch, group: r.group}
	r.feeder = &feeder{fed: f}
	if err := f.open(recipe); err != nil {
		return nil, err
	}
	if _, err := f.resident(f.copied); err != nil {
		return nil, err
	}
	began := time.Now() // Open waits for the index of the file
	err := r.feeder.open(recipe, q.Classes, q.Archive, false)
	return map[string]any{"opened": time.Since(began).Seconds() * 1e3 / float64(f.batches)}, err
}

// fed returns milliseconds per step, of the resident batch or of an epoch from the file. With an
// epoch it returns the cores that were busy and the peak of host memory.
func (r *ranked) fed(resident bool) (map[string]any, error) {
	rate := func() (float64, error) { return r.feeder.epoch(r.feeder.copied) }
	if resident {
		rate = func() (float64, error) { return r.feeder.resident(r.feeder.copied) }
	}
	perSecond, err := rate()
	if err != nil {
		return nil, err
	}
	reply := map[string]any{"milliseconds": float64(r.feeder.images.Shape()[0]) * 1e3 / perSecond}
	if !resident {
		reply["cores"] = r.feeder.cores[len(r.feeder.cores)-1]
		reply["memory"], err = processMiB("VmHWM:")
	}
	return reply, err
}

func (r *ranked) block(steps int) (map[string]any, error) {
	ms, err := r.step.block(steps)
	return map[string]any{"milliseconds": ms}, err
}

// trace traces some steps. It returns, for the second half of them, the microseconds of NCCL's
// kernels in a step, and how many of these had other kernels beside them: of all collectives, and
// without the last one of each step. In the first steps a rank waits for the other's trace.
func (r *ranked) trace(steps int) (map[string]any, error) {
	recording, err := trace.Start()
	if err != nil {
		return nil, err
	}
	_, err = r.step.block(steps)
	records, stopErr := recording.Stop()
	if err := errors.Join(err, stopErr); err != nil {
		return nil, err
	}
	var kernels []*trace.Record
	for i := range records.Work {
		if w := &records.Work[i]; w.Kind == trace.Kernel && strings.HasPrefix(w.Name, "nccl") {
			kernels = append(kernels, w)
		}
	}
	slices.SortFunc(kernels, func(a, b *trace.Record) int { return cmp.Compare(a.Start, b.Start) })
	each := r.step.reduced.Stats().Collectives
	if each == 0 || len(kernels) != steps*each {
		return nil, fmt.Errorf("the trace has %d kernels of NCCL, not %d for each of %d steps", len(kernels), each, steps)
	}
	measure := func(counts func(i int) bool) map[string]float64 {
		chosen := map[*trace.Record]bool{}
		for i, w := range kernels {
			chosen[w] = i >= steps/2*each && counts(i)
		}
		share, hidden, total := records.Hidden(func(w *trace.Record) bool { return chosen[w] })
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(steps-steps/2) }
		return map[string]float64{"share": share, "hidden": us(hidden), "total": us(total)}
	}
	return map[string]any{
		"all":          measure(func(int) bool { return true }),
		"but the last": measure(func(i int) bool { return i%each != each-1 }),
	}, nil
}

// reduce returns the microseconds of an all-reduce of so many bytes.
func (r *ranked) reduce(bytes, count int) (map[string]any, error) {
	var us float64
	err := r.step.stream.Do(func(x *cgotorch.Exec) error {
		t := x.Keep(x.Zeros(cgotorch.Float32, int64(bytes/4)))
		defer t.Close()
		for range 5 {
			r.group.AllReduce(x, t, distributed.Sum)
		}
		var err error
		us, err = microseconds(r.c, count, func() error { r.group.AllReduce(x, t, distributed.Sum); return nil })
		return err
	})
	return map[string]any{"microseconds": us}, err
}

func (r *ranked) close() {
	if r.step != nil {
		r.step.close()
	}
	if r.feeder != nil {
		r.feeder.close()
		r.feeder.fed.close()
	}
	r.group.Close()
}

// ranks are processes that form a group, of ours or of PyTorch.
type ranks []*peer

// startRanks starts the processes of a group. `start` starts one of them with these variables.
func startRanks(world int, start func(env []string) (*peer, error)) (all ranks, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	l.Close()
	for i := 0; i < world && err == nil; i++ {
		env := []string{fmt.Sprint("RANK=", i), fmt.Sprint("LOCAL_RANK=", i), fmt.Sprint("WORLD_SIZE=", world), "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}
		if world == 1 {
			env = nil
		}
		var p *peer
		if p, err = start(env); err == nil {
			all = append(all, p)
		}
	}
	if err != nil {
		all.close()
	}
	return all, err
}

// do sends a request to all processes and waits for all replies. It returns them by rank.
func (r ranks) do(what string, arguments ...any) ([]map[string]any, error) {
	replies, errs := make([]map[string]any, len(r)), make([]error, len(r))
	var all sync.WaitGroup
	for i, p := range r {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = p.do(&replies[i], what, arguments...)
		}()
	}
	all.Wait()
	return replies, errors.Join(errs...)
}

// side returns a side of a comparison: the largest value of the ranks.
func (r ranks) side(name, what string, arguments ...any) side {
	return func() (float64, error) {
		replies, err := r.do(what, arguments...)
		most := 0.0
		for _, reply := range replies {
			v, _ := reply[name].(float64)
			most = max(most, v)
		}
		return most, err
	}
}

func (r ranks) close() {
	var all sync.WaitGroup
	for _, p := range r {
		all.Add(1)
		go func() { defer all.Done(); p.close() }()
	}
	all.Wait()
}

// benchDist returns a benchmark of a ResNet-50's step on all GPUs of the machine, beside one GPU.
// Our sides alternate, and then PyTorch's do. On the CPU two ranks train a ResNet-18 for a step.
func benchDist(batch int) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		d, err := newDistCase(c, batch)
		if err != nil {
			return err
		}
		ours, err := d.ours(emit)
		if err != nil {
			return err
		}
		return d.theirs(ours, emit)
	}
}

func newDistCase(c *config, batch int) (d distCase, err error) {
	world, model := 2, "resnet18"
	if c.device.IsCUDA() {
		if world, err = severalGPUs(cgotorch.CUDACount()); err != nil {
			return d, err
		}
		model = "resnet50"
	}
	return distCase{c, world, model, c.or(2, batch), c.or(1, max(20, 4000/batch))}, nil
}

// severalGPUs takes the results of CUDACount and fails if there are fewer than two GPUs.
func severalGPUs(count int, err error) (int, error) {
	if err == nil && count < 2 {
		err = fmt.Errorf("this machine has %d GPUs, and the benchmark needs two", count)
	}
	return count, err
}

type distCase struct {
	c     *config
	world int
	model string
	batch int
	steps int
}

// start starts a process of ours for each GPU, which prepare what is asked. They are a group, or
// know nothing of each other.
func (d distCase) start(name string, apart bool, q rankRequest) (ranks, []map[string]any, error) {
	q.Model, q.Batch, q.CPU, q.Brief, q.Benchmark = d.model, d.batch, !d.c.device.IsCUDA(), d.c.brief, d.c.device.IsCUDA()
	group, err := startRanks(d.world, func(env []string) (*peer, error) {
		if apart {
			env = []string{"CUDA_VISIBLE_DEVICES=" + visible(strings.TrimPrefix(env[0], "RANK="))}
		}
		return d.c.startOwn(env...)
	})
	if err != nil {
		return nil, nil, err
	}
	replies, err := group.do("rank", "rank", q)
	if err != nil {
		group.close()
		return nil, nil, err
	}
	d.c.tell(fmt.Sprintf("ours, %s: %v", name, replies))
	return group, replies, nil
}

// visible returns the name of the GPU with this number among those that this process sees.
func visible(number string) string {
	i, err := strconv.Atoi(number)
	if all := strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ","); err == nil && i < len(all) && all[i] != "" {
		return all[i]
	}
	return number
}

// A distForm is a form of our step. Its processes are a group, or each trains apart.
type distForm struct {
	name  string
	apart bool
	q     rankRequest
}

// ours measures our step in several forms on one GPU and on all, and emits their rows. Forms that
// are compared take turns, and the other ones come after them, because the memory of a GPU does not
// hold all. It returns the times of the step with the library's kernels on all GPUs.
func (d distCase) ours(emit func(row)) (all sample, err error) {
	step := []distForm{{"apart", true, rankRequest{}}, {"all", false, rankRequest{}}}
	sharded := distForm{"sharded", false, rankRequest{Adam: true, Sharded: true}}
	phases := [][]distForm{step, {sharded}}
	if d.c.device.IsCUDA() {
		if d.batch <= 32 {
			step = append(step, distForm{"overlapped", false, rankRequest{Overlap: true}})
		}
		step = append(step, distForm{"synced", false, rankRequest{Synced: true}})
		plain := []distForm{{"plain apart", true, rankRequest{Plain: true}}, {"plain", false, rankRequest{Plain: true}}}
		adam := []distForm{{"adam", false, rankRequest{Adam: true}}, sharded, {"sharded reduced", false, rankRequest{Adam: true, Sharded: true, Reduced: true}}}
		phases = [][]distForm{step, plain, adam}
	}
	for _, forms := range phases {
		values, err := d.phase(forms, emit)
		if err != nil {
			return nil, err
		}
		if values["all"] != nil {
			all = values["all"]
		}
	}
	return all, nil
}

// phase measures forms in turns, and emits the rows that compare two of them.
func (d distCase) phase(forms []distForm, emit func(row)) (of map[string]sample, err error) {
	var sides []side
	var names []string
	groups, replies := map[string]ranks{}, map[string][]map[string]any{}
	for _, f := range forms {
		group, reply, err := d.start(f.name, f.apart, f.q)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		defer group.close()
		groups[f.name], replies[f.name] = group, reply
		if f.apart {
			names, sides = append(names, strings.TrimSuffix(f.name, "apart")+"one"), append(sides, group[:1].side("milliseconds", "steps", "count", d.steps))
		}
		names, sides = append(names, f.name), append(sides, group.side("milliseconds", "steps", "count", d.steps))
	}
	values, err := interleave(d.c.roundsOr(7), sides...)
	if err != nil {
		return nil, err
	}
	of = map[string]sample{}
	for i, name := range names {
		of[name] = values[i]
	}
	pair := func(name, all, peer, one string) {
		if of[all] != nil && of[one] != nil {
			emit(inTurns(d.prefix()+name, of[all], "ms", peer, of[one], lower, fmt.Sprintf("all %v; peer %v; %s", of[all], of[one], d.common())))
		}
	}
	const apart = "ours, each GPU for itself, the slowest"
	pair("scaling", "all", "ours, one GPU", "one")
	pair("scaling-apart", "all", apart, "apart")
	pair("scaling-overlapped", "overlapped", "ours, one GPU", "one")
	pair("scaling-plain", "plain", "ours, one GPU, LibTorch's kernels", "plain one")
	pair("scaling-plain-apart", "plain", apart+", LibTorch's kernels", "plain apart")
	pair("synced-norms", "synced", "ours, each rank with its own statistics", "all")
	pair("sharded", "sharded", "ours, Adam on each rank", "adam")
	pair("sharded-reduced", "sharded reduced", "ours, Adam on each rank", "adam")
	if r := replies["sharded"]; r != nil {
		emit(against(d.prefix()+"sharded/state", numberIn(r[0]["state"])/(1<<20), "MiB", "ours, Adam on each rank", numberIn(r[0]["whole"])/(1<<20), lower,
			"bytes of the optimizer's state on rank 0; "+d.common()))
	}
	if group := groups["all"]; group != nil {
		return of, d.reductions(group, replies["all"][0]["collectives"], emit)
	}
	return of, nil
}

// reductions emits how long the reductions take.
func (d distCase) reductions(group ranks, collectives any, emit func(row)) error {
	for _, megabytes := range []int{1, 25, 50, 100} {
		us, err := group.side("microseconds", "reduce", "bytes", megabytes<<20, "count", d.c.or(2, 50))()
		if err != nil {
			return err
		}
		emit(alone(fmt.Sprintf("%sall-reduce/%dMiB", d.prefix(), megabytes), us, "us", "one after another, nothing beside; "+d.common()))
	}
	if !d.c.device.IsCUDA() {
		return nil
	}
	traces, err := group.do("trace", "count", d.steps)
	if err != nil {
		d.c.tell("the trace is left out: " + err.Error())
		return nil
	}
	for rank, t := range traces {
		for _, which := range []string{"all", "but the last"} {
			of, _ := t[which].(map[string]any)
			emit(alone(fmt.Sprintf("%shidden/rank%d/%s", d.prefix(), rank, strings.ReplaceAll(which, " ", "-")), numberIn(of["share"]), "share of the reduction's time",
				fmt.Sprintf("by the driver's trace, collectives of a step: %s, of %.0f; kernels of NCCL for %.0f us of a step, %.0f us beside other kernels; %s",
					which, numberIn(collectives), numberIn(of["total"]), numberIn(of["hidden"]), d.common())))
		}
	}
	return nil
}

// numberIn returns the number in a reply, or 0.
func numberIn(v any) float64 {
	n, _ := v.(float64)
	return n
}

// theirs measures PyTorch's captured step on one GPU, and DistributedDataParallel in three ways.
func (d distCase) theirs(ours sample, emit func(row)) error {
	modes := []string{"one", "eager", "graph", "compile"}
	if !d.c.device.IsCUDA() {
		modes = modes[:2]
	} else if !d.c.compile {
		modes = modes[:3]
	}
	s := switches{benchmark: d.c.device.IsCUDA()}
	var sides []side
	var names []string
	versions := ""
	for _, mode := range modes {
		world := d.world
		if mode == "one" {
			world = 1
		}
		group, err := startRanks(world, func(env []string) (*peer, error) { return d.c.startPeer("distributed.py", s, env...) })
		if err != nil {
			return err
		}
		defer group.close()
		versions = group[0].versions
		if _, err := group.do("prepare", "mode", mode, "model", d.model, "batch", d.batch, "cuda", d.c.device.IsCUDA()); err != nil {
			d.c.tell(fmt.Sprintf("PyTorch %s is left out: %v", mode, err))
			continue
		}
		d.c.tell("PyTorch " + mode + " is ready")
		names = append(names, mode)
		sides = append(sides, group.side("milliseconds", "block", "steps", d.steps))
	}
	values, err := interleave(d.c.roundsOr(7), sides...)
	if err != nil {
		return err
	}
	common := d.common() + "; " + versions
	for i, mode := range names {
		if mode == "one" {
			continue
		}
		if names[0] == "one" {
			emit(inTurns(d.prefix()+"scaling-ddp-"+mode, values[i], "ms", "PyTorch, one GPU", values[0], lower, fmt.Sprintf("all %v; peer %v; %s", values[i], values[0], common)))
		}
		emit(against(d.prefix()+"against-ddp-"+mode, ours.median(), "ms", "PyTorch DDP "+mode, values[i].median(), lower, "each of its own phase of one run; "+common))
	}
	return nil
}

func (d distCase) prefix() string {
	return fmt.Sprintf("distributed/%s/%d/%d-gpus/", d.model, d.batch, d.world)
}

func (d distCase) common() string {
	return fmt.Sprintf("blocks of %d steps in turns; %s, batch %d a rank of 3x224x224, resident, bf16, channels last, ours captured, fused SGD or Adam; %d ranks; %s",
		d.steps, d.model, d.batch, d.world, d.c.settings())
}

// benchDistFed trains on all GPUs of the machine from one .tgz, beside a resident batch.
func benchDistFed(c *config, emit func(row)) error {
	d, err := newDistCase(c, 256)
	if err != nil {
		return err
	}
	return c.withPhotographs(imagenet, func(all photographs, folder string) error {
		archive, members := filepath.Join(folder, "photographs.tgz"), c.or(8*d.world, c.members)
		if err := all.writeTgz(archive, members); err != nil {
			return err
		}
		threads := max(1, c.threads/d.world)
		group, opened, err := d.start("fed", false, rankRequest{Archive: archive, Classes: all.classes(), Members: members, Threads: threads})
		if err != nil {
			return err
		}
		defer group.close()
		epoch := group.side("milliseconds", "fed")
		first, err := epoch()
		if err != nil {
			return err
		}
		slowest := 0.0
		for _, reply := range opened {
			slowest = max(slowest, numberIn(reply["opened"]))
		}
		resident := group.side("milliseconds", "fed", "resident", true)
		values, err := interleave(c.roundsOr(5), resident, epoch)
		if err != nil {
			return err
		}
		replies, err := group.do("fed")
		if err != nil {
			return err
		}
		var cores, memory []string
		for _, reply := range replies {
			cores = append(cores, fmt.Sprintf("%.1f", numberIn(reply["cores"])))
			memory = append(memory, fmt.Sprintf("%.0f", numberIn(reply["memory"])))
		}
		note := fmt.Sprintf("one .tgz of %d photographs, %d threads a rank; resident %.2f ms a step, %v; by rank in one more epoch: %s cores busy, %s MiB of host memory at most; %s",
			members, threads, values[0].median(), values[0], strings.Join(cores, ", "), strings.Join(memory, ", "), d.common())
		emit(alone(d.prefix()+"fed", ratios(values[0], values[1]).median(), "share of the resident rate", fmt.Sprintf("%.2f ms a step, %v; %s", values[1].median(), values[1], note)))
		emit(alone(d.prefix()+"fed-first", values[0].median()/(first+slowest), "share of the resident rate",
			fmt.Sprintf("the first epoch, with Open, which makes the index: %.2f ms a step, of which Open %.2f; without Open %.3f of the resident rate; %s",
				first+slowest, slowest, values[0].median()/first, note)))
		return nil
	})
}
