package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
)

// rankRequest says what a process of ours trains, as one rank of several or alone.
type rankRequest struct {
	Model      string
	Batch      int // of this rank
	CPU, Brief bool
	Overlap    bool

	// If Archive is set, batches come from this file too, by a loader with so many Threads.
	Archive string
	Classes []string
	Threads int
}

// rank is a training step of one rank.
type rank struct {
	c     *config
	group *distributed.Group
	step  *graphStep
	fed   *fed // nil if no batches come from a file
}

// open joins the other ranks and prepares a captured step. It returns the milliseconds that Open
// has taken, which makes the index of an archive or waits for it.
func (r *rank) open(q rankRequest) (reply map[string]any, err error) {
	o := distributed.Options{Device: "cuda"}
	if q.CPU {
		o.Device = "cpu"
	}
	if r.group, err = distributed.Join(context.Background(), o); err != nil {
		return nil, err
	}
	r.c = &config{device: r.group.Device(), threads: max(q.Threads, 1), brief: q.Brief}
	if err := (switches{benchmark: !q.CPU}).set(); err != nil {
		return nil, err
	}
	form := stepForm{eager: q.CPU, group: r.group}
	if q.Overlap {
		if form.overlap, err = cgotorch.NewOverlap(cgotorch.OverlapOptions{}); err != nil {
			return nil, err
		}
	}
	if q.Archive == "" {
		r.step, err = newGraphStep(r.c, resident(q.Model, q.Batch), form)
		return map[string]any{}, err
	}
	recipe := r.c.fromFiles(q.Batch)
	recipe.classes = len(q.Classes)
	if r.fed, err = newFed(r.c, recipe, form, q.Archive, q.Classes); err != nil {
		return nil, err
	}
	r.step = r.fed.graphStep
	r.fed.options.Ranks.World, r.fed.options.Ranks.Rank = r.group.World(), r.group.Rank()
	began := time.Now()
	err = r.fed.open()
	return map[string]any{"milliseconds": time.Since(began).Seconds() * 1e3}, err
}

// epoch trains on an epoch from the file. It returns milliseconds per step, the cores that were
// busy, and the peak of host memory.
func (r *rank) epoch() (map[string]any, error) {
	rate, cores, err := r.fed.epochs(1)
	if err != nil {
		return nil, err
	}
	return map[string]any{"milliseconds": float64(r.fed.options.BatchSize) * 1e3 / rate, "cores": cores, "memory": peakMiB()}, nil
}

// reduce returns the microseconds of an all-reduce of so many bytes.
func (r *rank) reduce(bytes, count int) (map[string]any, error) {
	var us float64
	err := r.step.stream.Do(func(x *cgotorch.Exec) (err error) {
		t := x.Zeros(cgotorch.Float32, int64(bytes/4))
		reduce := func() error { r.group.AllReduce(x, t, distributed.Sum); return nil }
		for range 5 {
			_ = reduce()
		}
		us, err = r.c.microseconds(count, reduce)
		return err
	})
	return map[string]any{"microseconds": us}, err
}

func (r *rank) close() {
	if r.fed != nil {
		r.fed.close()
	} else if r.step != nil {
		r.step.close()
	}
	r.group.Close()
}

// ranks are processes that form a group, of ours or of PyTorch.
type ranks []*peer

// startRanks starts the processes of a group. `start` starts one of them with these variables.
func startRanks(world int, start func(env ...string) (*peer, error)) (all ranks, err error) {
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
		if p, err = start(env...); err == nil {
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
		return largest(name, replies), err
	}
}

// largest returns the largest value of this name in the replies.
func largest(name string, replies []map[string]any) (most float64) {
	for _, reply := range replies {
		v, _ := reply[name].(float64)
		most = max(most, v)
	}
	return most
}

func (r ranks) close() {
	var all sync.WaitGroup
	for _, p := range r {
		all.Add(1)
		go func() { defer all.Done(); p.close() }()
	}
	all.Wait()
}

// several is a benchmark of a step on all GPUs of the machine. On the CPU two ranks train a
// ResNet-18.
type several struct {
	c     *config
	world int
	model string
	batch int
	steps int
	emit  func(row)
}

func newSeveral(c *config, batch int, emit func(row)) (d several, err error) {
	d = several{c, 2, "resnet18", c.or(2, batch), c.or(1, max(20, 4000/batch)), emit}
	if c.device.IsCUDA() {
		d.model = "resnet50"
		if d.world, err = cgotorch.CUDACount(); err == nil && d.world < 2 {
			err = fmt.Errorf("this machine has %d GPUs, and the benchmark needs two", d.world)
		}
	}
	return d, err
}

func (d several) prefix() string {
	return fmt.Sprintf("distributed/%s/%d/%d-gpus/", d.model, d.batch, d.world)
}

func (d several) common() string {
	return fmt.Sprintf("blocks of %d steps in turns; %s, batch %d a rank, resident, bf16, channels last, ours captured, fused SGD; %d ranks; %s",
		d.steps, d.model, d.batch, d.world, d.c.settings())
}

// benchDistributed returns a benchmark of a ResNet-50's step on all GPUs of the machine, beside one
// GPU and beside DistributedDataParallel. Our sides alternate, and then PyTorch's do, because the
// memory of a GPU does not hold all.
func benchDistributed(batch int) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		d, err := newSeveral(c, batch, emit)
		if err != nil {
			return err
		}
		ours, err := d.ours()
		if err != nil {
			return err
		}
		return d.theirs(ours)
	}
}

// start starts processes of ours, which prepare what is asked.
func (d several) start(world int, q rankRequest) (ranks, []map[string]any, error) {
	q.Model, q.Batch, q.CPU, q.Brief = d.model, d.batch, !d.c.device.IsCUDA(), d.c.brief
	group, err := startRanks(world, d.c.startOwn)
	if err != nil {
		return nil, nil, err
	}
	replies, err := group.do("rank", "rank", q)
	if err != nil {
		group.close()
	}
	return group, replies, err
}

// ours measures our step on one GPU and on all, with an Overlap too if the batch is small. It
// returns the times on all GPUs.
func (d several) ours() (sample, error) {
	one, _, err := d.start(1, rankRequest{})
	if err != nil {
		return nil, err
	}
	defer one.close()
	group, _, err := d.start(d.world, rankRequest{})
	if err != nil {
		return nil, err
	}
	defer group.close()
	names, sides := []string{"", "scaling"}, []side{one.side("milliseconds", "steps", "count", d.steps), group.side("milliseconds", "steps", "count", d.steps)}
	if d.batch <= 32 && d.c.device.IsCUDA() {
		overlapped, _, err := d.start(d.world, rankRequest{Overlap: true})
		if err != nil {
			return nil, err
		}
		defer overlapped.close()
		names, sides = append(names, "scaling-overlapped"), append(sides, overlapped.side("milliseconds", "steps", "count", d.steps))
	}
	values, err := interleave(d.c.roundsOr(7), sides...)
	if err != nil {
		return nil, err
	}
	for i := range names[1:] {
		d.emit(inTurns(d.prefix()+names[1+i], values[1+i], "ms", "ours, one GPU", values[0], lower, fmt.Sprintf("all %v; one %v; %s", values[1+i], values[0], d.common())))
	}
	for _, megabytes := range []int{1, 25, 50, 100} {
		us, err := group.side("microseconds", "reduce", "bytes", megabytes<<20, "count", d.c.or(2, 50))()
		if err != nil {
			return nil, err
		}
		d.emit(alone(fmt.Sprintf("%sall-reduce/%dMiB", d.prefix(), megabytes), us, "us", "one after another, nothing beside; "+d.common()))
	}
	return values[1], nil
}

// theirs measures PyTorch's captured step on one GPU, and DistributedDataParallel in three ways.
func (d several) theirs(ours sample) error {
	modes := []string{"one", "eager", "graph", "compile"}
	if !d.c.device.IsCUDA() {
		modes = modes[:2]
	} else if !d.c.compile {
		modes = modes[:3]
	}
	all, versions := &named{}, ""
	for _, mode := range modes {
		world := d.world
		if mode == "one" {
			world = 1
		}
		group, err := startRanks(world, func(env ...string) (*peer, error) {
			return d.c.startPeer("distributed.py", switches{benchmark: d.c.device.IsCUDA()}, env...)
		})
		if err != nil {
			return err
		}
		defer group.close()
		if _, err := group.do("prepare", "mode", mode, "model", d.model, "batch", d.batch, "cuda", d.c.device.IsCUDA()); err != nil {
			d.c.tell(fmt.Sprintf("PyTorch %s is left out: %v", mode, err))
			continue
		}
		d.c.tell("PyTorch " + mode + " is ready")
		versions = group[0].versions
		all.add(mode, group.side("milliseconds", "block", "steps", d.steps))
	}
	if err := all.measure(d.c.roundsOr(7)); err != nil {
		return err
	}
	one := all.values["one"]
	for _, mode := range modes[1:] {
		theirs := all.values[mode]
		if theirs == nil {
			continue
		}
		if one != nil {
			d.emit(inTurns(d.prefix()+"scaling-ddp-"+mode, theirs, "ms", "PyTorch, one GPU", one, lower, fmt.Sprintf("all %v; one %v; %s; %s", theirs, one, d.common(), versions)))
		}
		d.emit(against(d.prefix()+"against-ddp-"+mode, ours.median(), "ms", "PyTorch DDP "+mode, theirs.median(), lower, "each of its own phase of one run; "+d.common()+"; "+versions))
	}
	return nil
}

// benchDistributedFed trains on all GPUs of the machine from one .tgz, beside a resident batch.
func benchDistributedFed(c *config, emit func(row)) error {
	d, err := newSeveral(c, 256, emit)
	if err != nil {
		return err
	}
	return c.withPhotographs(c.fromFiles(d.batch), func(all photographs, folder string) error {
		archive, members := filepath.Join(folder, "photographs.tgz"), c.or(8*d.world, c.members)
		if err := all.writeTgz(archive, members); err != nil {
			return err
		}
		threads := max(1, c.threads/d.world)
		group, opened, err := d.start(d.world, rankRequest{Archive: archive, Classes: all.classes(), Threads: threads})
		if err != nil {
			return err
		}
		defer group.close()
		first, err := group.side("milliseconds", "epoch")()
		if err != nil {
			return err
		}
		values, err := interleave(c.roundsOr(5), group.side("milliseconds", "epoch"), group.side("milliseconds", "steps", "count", d.steps))
		if err != nil {
			return err
		}
		replies, err := group.do("epoch")
		if err != nil {
			return err
		}
		var each []string
		for _, reply := range replies {
			each = append(each, fmt.Sprintf("%.1f cores and %.0f MiB", reply["cores"], reply["memory"]))
		}
		note := fmt.Sprintf("one .tgz of %d photographs, %d threads a rank; by rank in one more epoch: %s busy, host memory at most; %s",
			members, threads, strings.Join(each, ", "), d.common())
		emit(inTurns(d.prefix()+"fed", values[0], "ms", "ours, resident batch", values[1], lower, fmt.Sprintf("%v; resident %v; %s", values[0], values[1], note)))
		steps := float64(members / d.world / d.batch)
		withOpen := first + largest("milliseconds", opened)/steps
		emit(against(d.prefix()+"fed-first", withOpen, "ms", "ours, resident batch", values[1].median(), lower,
			fmt.Sprintf("the first epoch, with Open, which makes the index; without Open %.2f ms a step; %s", first, note)))
		return nil
	})
}
