package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/imageloader"
)

// join makes this process one rank of those that the launcher has started.
func (t *trainer) join(ctx context.Context) (*distributed.Group, error) {
	o := distributed.Options{OnCPU: t.Device == "cpu", Timeout: t.Timeout}
	device, err := cgotorch.ParseDevice(t.Device)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(t.Device, "cuda:") { // plain "cuda" and "auto" mean the GPU of this rank
		o.Device = device
	}
	if t.Device == "cuda" {
		if err := cgotorch.CUDA(0).Check(); err != nil {
			return nil, err
		}
	}
	group, err := distributed.Join(ctx, o)
	if err != nil {
		return nil, err
	}
	if each := (t.BatchSize + group.World() - 1) / group.World(); each*group.World() != t.BatchSize && group.Rank() == 0 {
		fmt.Fprintf(os.Stderr, "-batch %d does not divide among %d ranks: each takes %d images, %d a step in all\n", t.BatchSize, group.World(), each, each*group.World())
	}
	return group, nil
}

// fromFirst returns the text of rank 0. It waits for the other ranks.
func (t *trainer) fromFirst(text string) (string, error) {
	if !t.first() {
		text = ""
	}
	texts, err := t.group.Exchange(text)
	if err != nil {
		return "", err
	}
	return texts[0], nil
}

// sameRun fails if a rank has other settings than rank 0, or stands at another place of the run. It
// waits for the other ranks.
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
	texts, err := t.group.Exchange(string(own))
	if err != nil {
		return err
	}
	first := texts[0]
	switch other := slices.IndexFunc(texts, func(text string) bool { return text != first }); {
	case other < 0:
		return nil
	case string(own) == first:
		return fmt.Errorf("rank %d has other settings than rank 0: see its error", other)
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

// first reports whether this rank writes the log and the checkpoints.
func (t *trainer) first() bool { return t.group.Rank() == 0 }

// share returns how many images of a step this rank takes. -batch is for all ranks together, so the
// run does not depend on their number.
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

// joinModels makes the batch norms' running statistics those of rank 0, on all ranks. Each rank
// collects them from its own batches. It waits for the other ranks.
func (t *trainer) joinModels() error {
	if t.group.World() == 1 {
		return nil
	}
	return t.stream.Do(func(x *cgotorch.Exec) error {
		distributed.Broadcast(x, t.group, t.model)
		return nil
	})
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
