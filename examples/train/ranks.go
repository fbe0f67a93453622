package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/dist"
	"github.com/streamtorch/streamtorch/imageloader"
)

// The method `join` makes this process one rank of those that the launcher has started.
func (t *trainer) join(ctx context.Context) (*dist.Group, error) {
	o := dist.Options{OnCPU: t.Device == "cpu"}
	if strings.HasPrefix(t.Device, "cuda:") { // plain "cuda" and "auto" mean the GPU of this rank
		device, err := cgotorch.ParseDevice(t.Device)
		if err != nil {
			return nil, err
		}
		o.Device = device
	}
	if _, err := cgotorch.ParseDevice(t.Device); err != nil {
		return nil, err
	}
	if t.Device == "cuda" {
		if err := cgotorch.CUDA(0).Check(); err != nil {
			return nil, err
		}
	}
	group, err := dist.Join(ctx, o)
	if err != nil {
		return nil, err
	}
	if each := (t.BatchSize + group.World() - 1) / group.World(); each*group.World() != t.BatchSize && group.Rank() == 0 {
		fmt.Printf("-batch %d does not divide among %d ranks: each takes %d images, %d a step in all\n", t.BatchSize, group.World(), each, each*group.World())
	}
	return group, nil
}

// Note [Started again]
//
// A launcher that starts the ranks again after a failure gives them the same flags, without
// -resume. The run then goes on from its checkpoint. The checkpoint must be of this run, and not
// of an earlier one in the same folder. So it has the name that the launcher gave its run.
// torchrun names a run with --standalone or --rdzv-id. Without these it names all runs "none", and
// the process of torchrun on the machine of rank 0 stands for the run. A launcher without a name
// for its run sets TRAIN_RUN_ID. Rank 0 decides, and the others follow.

// launchName returns the name of the run, which is equal in all starts of it, or "".
func launchName() string {
	if name := os.Getenv("TRAIN_RUN_ID"); name != "" {
		return name
	}
	name := os.Getenv("TORCHELASTIC_RUN_ID")
	if name != "none" {
		return name
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", os.Getppid()))
	if err != nil {
		return ""
	}
	_, fields, _ := strings.Cut(string(stat), ") ")
	if all := strings.Fields(fields); len(all) > 19 { // the 22nd field of the line is the time of the start
		host, _ := os.Hostname()
		return fmt.Sprint("process ", os.Getppid(), " of ", all[19], " on ", host)
	}
	return ""
}

// The method `startedAgain` reports whether the launcher has started this run again, and its
// checkpoint is there. It waits for rank 0.
func (t *trainer) startedAgain() (bool, error) {
	again := "no"
	if t.first() && t.launch != "" {
		info, err := checkpoint.Inspect(t.checkpointPath())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		var s saved
		if err == nil && json.Unmarshal(info.Config, &s) == nil && s.Launch == t.launch {
			again = "yes"
		}
	}
	var err error
	if again, err = t.fromFirst(again); err != nil {
		return false, err
	}
	return again == "yes", nil
}

// The method `fromFirst` returns the text of rank 0. It waits for rank 0.
func (t *trainer) fromFirst(text string) (string, error) {
	if t.group.World() == 1 {
		return text, nil
	}
	err := t.stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		length := cgotorch.FromSlice(x, []int64{int64(len(text))})
		t.group.Broadcast(x, length, 0)
		bytes := make([]byte, cgotorch.ToSlice[int64](x, length)[0])
		copy(bytes, text)
		letters := cgotorch.FromSlice(x, bytes)
		t.group.Broadcast(x, letters, 0)
		text = string(cgotorch.ToSlice[byte](x, letters))
		return nil
	})
	return text, err
}

// The method `sameRun` fails if a rank has other settings than rank 0, or stands at another place
// of the run. It waits for the other ranks.
func (t *trainer) sameRun() error {
	c := t.Config
	c.Data, c.TestData, c.Device = "", "", "" // these may differ between machines
	own, err := json.Marshal(struct {
		Config
		Resumed bool     `json:"resumed"`
		Step    int      `json:"step"`
		Steps   int      `json:"steps_per_epoch"`
		Classes []string `json:"classes"`
	}{c, t.Resume, t.progress.Step, t.stepsPerEpoch(), t.train.loader.Classes()})
	if err != nil {
		return err
	}
	first, err := t.fromFirst(string(own))
	if err != nil {
		return err
	}
	equal := first == string(own)
	switch {
	case t.group.Agree(equal):
		return nil
	case equal:
		return cmp.Or(t.group.Err(), errors.New("another rank has other settings than rank 0: see its error"))
	}
	var a, b map[string]any
	if err := errors.Join(json.Unmarshal([]byte(first), &a), json.Unmarshal(own, &b)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if was, is := fmt.Sprint(a[name]), fmt.Sprint(b[name]); was != is {
			return fmt.Errorf("rank 0 and rank %d have different settings: %s is %.60s there and %.60s here; give all ranks the same flags, data and -out", t.group.Rank(), name, was, is)
		}
	}
	return fmt.Errorf("rank 0 and rank %d have different settings", t.group.Rank())
}

// The method `first` reports whether this rank writes the log and the checkpoints.
func (t *trainer) first() bool { return t.group.Rank() == 0 }

// The method `share` returns how many images of a step this rank takes. -batch is for all ranks
// together, so the run does not depend on their number.
func (t *trainer) share() int { return (t.BatchSize + t.group.World() - 1) / t.group.World() }

// workers returns the number of decode threads. The ranks of a machine share its cores.
func (t *trainer) workers() int {
	if t.Workers > 0 || t.group.World() == 1 {
		return t.Workers
	}
	return max(1, runtime.NumCPU()/t.group.LocalWorld())
}

// drawApart makes each rank draw other random numbers, such as those of a dropout. It runs at the
// start of each epoch, so a run that goes on from there draws the same numbers.
func (t *trainer) drawApart() error {
	if t.group.World() == 1 {
		return nil
	}
	return cgotorch.Seed(t.Seed + uint64(t.progress.Step)<<20 + uint64(t.group.Rank())<<48)
}

// joinStates makes the loader's state that of all ranks. Ranks that pass over unreadable images may
// be at different places of the epoch.
func (t *trainer) joinStates() error {
	if t.group.World() == 1 || t.SkipRate == 0 {
		return nil
	}
	text, err := json.Marshal(t.progress.Loader)
	if err != nil {
		return err
	}
	texts, err := t.group.Exchange(string(text))
	if err != nil {
		return err
	}
	states := make([]imageloader.State, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal([]byte(text), &states[i]); err != nil {
			return err
		}
	}
	if t.progress.Loader.Batch == 0 {
		return nil // the epoch has not begun
	}
	t.progress.Loader, err = imageloader.JoinStates(states)
	return err
}

// tracePath returns the file of this rank's trace. Where there are several ranks, mergeTraces makes
// one file of theirs.
func (t *trainer) tracePath() string {
	if t.Trace == "" || t.first() {
		return t.Trace
	}
	return rankTrace(t.Trace, t.group.Rank())
}

func rankTrace(path string, rank int) string { return fmt.Sprintf("%s.rank%d", path, rank) }

// mergeTraces puts the traces of the other ranks into that of the first one. It waits for the other
// ranks. Traces that lie on other machines stay there.
func (t *trainer) mergeTraces() error {
	if t.Trace == "" || t.group.World() == 1 {
		return nil
	}
	if _, err := t.group.Exchange(""); err != nil || !t.first() {
		return err
	}
	type file struct {
		Unit   string           `json:"displayTimeUnit"`
		Events []map[string]any `json:"traceEvents"`
	}
	var all file
	for rank := range t.group.World() {
		path := t.Trace
		if rank > 0 {
			path = rankTrace(t.Trace, rank)
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var one file
		if err == nil {
			err = json.Unmarshal(text, &one)
		}
		if err != nil {
			return fmt.Errorf("-trace: %s: %w", path, err)
		}
		all.Unit = one.Unit
		for _, e := range one.Events {
			if process, ok := e["pid"].(float64); ok {
				e["pid"] = process + float64(1000*rank)
			}
			if arguments, ok := e["args"].(map[string]any); ok && e["name"] == "process_name" {
				arguments["name"] = fmt.Sprintf("rank %d: %v", rank, arguments["name"])
			}
			all.Events = append(all.Events, e)
		}
		if rank > 0 {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("-trace: %w", err)
			}
		}
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(t.Trace+".new", text, 0o666)
	}
	if err == nil {
		err = os.Rename(t.Trace+".new", t.Trace)
	}
	if err != nil {
		os.Remove(t.Trace + ".new")
		return fmt.Errorf("-trace: %w", err)
	}
	return nil
}

// The method `untilAll` returns the context of a training epoch. With several ranks a signal does
// not end it: the stopper does, on all ranks.
func (t *trainer) untilAll(ctx context.Context) context.Context {
	if t.group.World() == 1 {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// stopper makes all ranks stop after the same step. A signal reaches them at different times, and a
// rank that stopped alone would leave the others in a collective.
type stopper struct {
	group *dist.Group
	read  []*cgotorch.HostRead // of the last steps: 1 if a rank wants to stop
}

// stopDepth is the number of steps after which a rank looks. The values are there by then, so the
// host does not wait for the device.
const stopDepth = 4

// The method `add` tells the other ranks whether this one wants to stop.
func (s *stopper) add(x *cgotorch.Exec, stop bool) {
	if s.group.World() == 1 {
		return
	}
	wish := 0.0
	if stop {
		wish = 1
	}
	x.Tidy(func() *cgotorch.Tensor {
		t := x.NoGrad().Full(cgotorch.Float32, wish, 1)
		s.group.AllReduce(x, t, dist.Max)
		s.read = append(s.read, x.ReadAsync(t))
		return nil
	})
}

// The method `next` reports whether all ranks stop after this step.
func (s *stopper) next(ctx context.Context) (bool, error) {
	if s.group.World() == 1 {
		return ctx.Err() != nil, nil
	}
	if len(s.read) <= stopDepth {
		return false, nil
	}
	first := s.read[0]
	s.read = s.read[1:]
	defer first.Close()
	stop, err := first.Item()
	return stop > 0, err
}

func (s *stopper) close() error {
	for _, r := range s.read {
		r.Close()
	}
	s.read = nil
	return nil
}
