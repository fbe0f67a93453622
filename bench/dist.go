package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/dist"
)

// rankRequest says what a process of ours trains, as one rank of several or alone.
type rankRequest struct {
	Model     string
	Batch     int // of this rank
	CPU       bool
	Brief     bool
	Overlap   bool
	Benchmark bool
}

// ranked is a training step of one rank.
type ranked struct {
	c     *config
	group *dist.Group
	step  *graphStep
}

// open joins the other ranks and prepares a captured step.
func (r *ranked) open(q rankRequest) (map[string]any, error) {
	var err error
	if r.group, err = dist.Join(context.Background(), dist.Options{OnCPU: q.CPU}); err != nil {
		return nil, err
	}
	r.c = &config{device: r.group.Device(), threads: 1, brief: q.Brief}
	if err := (switches{benchmark: q.Benchmark}).set(); err != nil {
		return nil, err
	}
	var overlap *cgotorch.Overlap
	if q.Overlap {
		if overlap, err = cgotorch.NewOverlap(cgotorch.OverlapOptions{}); err != nil {
			return nil, err
		}
	}
	r.step, err = newGraphStep(r.c, trainCase{q.Model, q.Batch, "bf16"}, stepForm{q.CPU, overlap, r.group})
	if err != nil {
		return nil, err
	}
	reply := map[string]any{"captured": r.step.captured != nil && r.step.captured.Stats().Graphs == 1}
	if r.step.reduced != nil {
		s := r.step.reduced.Stats()
		reply["collectives"], reply["early"], reply["bytes"] = s.Collectives, s.Early, s.Bytes
	}
	return reply, nil
}

func (r *ranked) block(steps int) (map[string]any, error) {
	ms, err := r.step.block(steps)
	return map[string]any{"milliseconds": ms}, err
}

// reduce returns the microseconds of an all-reduce of so many bytes.
func (r *ranked) reduce(bytes, count int) (map[string]any, error) {
	var us float64
	err := r.step.stream.Do(func(x *cgotorch.Exec) error {
		t := x.Keep(x.Zeros(cgotorch.Float32, int64(bytes/4)))
		defer t.Close()
		for range 5 {
			r.group.AllReduce(x, t, dist.Sum)
		}
		var err error
		us, err = microseconds(r.c, count, func() error { r.group.AllReduce(x, t, dist.Sum); return nil })
		return err
	})
	return map[string]any{"microseconds": us}, err
}

func (r *ranked) close() {
	if r.step != nil {
		r.step.close()
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
// Our two sides alternate, and then PyTorch's do. On the CPU two ranks train a ResNet-18 for a
// step.
func benchDist(batch int) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		world, model := 2, "resnet18"
		if c.device.IsCUDA() {
			var err error
			if world, err = severalGPUs(cgotorch.CUDACount()); err != nil {
				return err
			}
			model = "resnet50"
		}
		d := distCase{c, world, model, c.or(2, batch), c.or(1, max(20, 4000/batch))}
		ours, reduce, err := d.ours()
		if err != nil {
			return err
		}
		d.rows(ours, nil, reduce, "", emit)
		theirs, versions, err := d.theirs()
		if err != nil {
			return err
		}
		d.rows(ours, theirs, reduce, "; "+versions, emit)
		return nil
	}
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

// ours measures our step on one GPU and on all, both plain and with an Overlap for small batches.
func (d distCase) ours() (values map[string]sample, reduce map[int]float64, err error) {
	names, worlds, overlaps := []string{"one", "all"}, []int{1, d.world}, []bool{false, false}
	if d.batch <= 32 && d.c.device.IsCUDA() {
		names, worlds, overlaps = append(names, "all overlapped"), append(worlds, d.world), append(overlaps, true)
	}
	var sides []side
	var whole ranks
	for i, world := range worlds {
		group, err := startRanks(world, func(env []string) (*peer, error) { return d.c.startOwn(env...) })
		if err != nil {
			return nil, nil, err
		}
		defer group.close()
		q := rankRequest{Model: d.model, Batch: d.batch, CPU: !d.c.device.IsCUDA(), Brief: d.c.brief, Benchmark: d.c.device.IsCUDA(), Overlap: overlaps[i]}
		replies, err := group.do("rank", "rank", q)
		if err != nil {
			return nil, nil, err
		}
		d.c.tell(fmt.Sprintf("ours, %s: %v", names[i], replies))
		sides = append(sides, group.side("milliseconds", "steps", "count", d.steps))
		if i == 1 {
			whole = group
		}
	}
	all, err := interleave(d.c.roundsOr(7), sides...)
	if err != nil {
		return nil, nil, err
	}
	values, reduce = map[string]sample{}, map[int]float64{}
	for i, name := range names {
		values[name] = all[i]
	}
	for _, megabytes := range []int{1, 25, 100} {
		if reduce[megabytes], err = whole.side("microseconds", "reduce", "bytes", megabytes<<20, "count", d.c.or(2, 50))(); err != nil {
			return nil, nil, err
		}
	}
	return values, reduce, nil
}

// theirs measures PyTorch's captured step on one GPU, and DistributedDataParallel in three ways.
func (d distCase) theirs() (values map[string]sample, versions string, err error) {
	values = map[string]sample{}
	modes := []string{"one", "eager", "graph", "compile"}
	if !d.c.device.IsCUDA() {
		modes = modes[:2]
	} else if !d.c.compile {
		modes = modes[:3]
	}
	s := switches{benchmark: d.c.device.IsCUDA()}
	var sides []side
	for _, mode := range modes {
		world := d.world
		if mode == "one" {
			world = 1
		}
		group, err := startRanks(world, func(env []string) (*peer, error) { return d.c.startPeer("dist.py", s, env...) })
		if err != nil {
			return nil, "", err
		}
		defer group.close()
		versions = group[0].versions
		if _, err := group.do("prepare", "mode", mode, "model", d.model, "batch", d.batch, "cuda", d.c.device.IsCUDA()); err != nil {
			d.c.tell(fmt.Sprintf("PyTorch %s is left out: %v", mode, err))
			continue
		}
		d.c.tell("PyTorch " + mode + " is ready")
		values[mode] = nil
		sides = append(sides, group.side("milliseconds", "block", "steps", d.steps))
	}
	all, err := interleave(d.c.roundsOr(7), sides...)
	if err != nil {
		return nil, "", err
	}
	i := 0
	for _, mode := range modes {
		if _, ready := values[mode]; ready {
			values[mode] = all[i]
			i++
		}
	}
	return values, versions, nil
}

// rows emits the rows of our sides, or those that have a side of PyTorch's.
func (d distCase) rows(ours, theirs map[string]sample, reduce map[int]float64, versions string, emit func(row)) {
	common := fmt.Sprintf("blocks of %d steps in turns; %s, batch %d a rank of 3x224x224, resident, bf16, channels last, fused SGD; %d ranks; all-reduce of 1, 25, 100 MiB alone %.0f, %.0f, %.0f us; %s%s",
		d.steps, d.model, d.batch, d.world, reduce[1], reduce[25], reduce[100], d.c.settings(), versions)
	prefix := fmt.Sprintf("dist/%s/%d/", d.model, d.batch)
	scaling := func(name string, one, all sample, who string) {
		if one == nil || all == nil {
			return
		}
		r := inTurns(prefix+name, all, "ms", who+", one GPU", one, lower, fmt.Sprintf("all %v; one %v; %s", all, one, common))
		emit(r)
	}
	if theirs == nil {
		scaling("scaling", ours["one"], ours["all"], "ours")
		scaling("scaling-overlapped", ours["one"], ours["all overlapped"], "ours")
		return
	}
	for _, mode := range []string{"eager", "graph", "compile"} {
		scaling("scaling-ddp-"+mode, theirs["one"], theirs[mode], "PyTorch")
		if v := theirs[mode]; v != nil {
			emit(against(prefix+"against-ddp-"+mode, ours["all"].median(), "ms", "PyTorch DDP "+strings.ToLower(mode), v.median(), lower, "each of its own phase of one run; "+common))
		}
	}
}
