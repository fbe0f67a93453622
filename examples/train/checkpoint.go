package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/distributed"
	"github.com/streamtorch/streamtorch/imageloader"
)

// saved holds the fields that this program adds to a checkpoint. examples/predict and
// examples/serve read Config and Classes too.
type saved struct {
	*Config  `json:"config"`
	Classes  []string `json:"classes"`
	Progress Progress `json:"progress,omitzero"`
	Launch   string   `json:"launch,omitempty"` // see distributed.RunName
}

// Progress says how far a run has come.
type Progress struct {
	Epoch  int               `json:"epoch"`  // number of finished epochs
	Step   int               `json:"step"`   // number of finished steps in all epochs
	Loader imageloader.State `json:"loader"` // not t.train.ahead: a run that a signal stops in its test tests again, in the same epoch
	Train  Tally             `json:"train"`  // of the epoch that is running
	Last   Result            `json:"last"`   // of the last finished epoch
	Log    int64             `json:"log"`    // size of the log, in bytes
}

func (t *trainer) checkpointPath() string { return filepath.Join(t.Out, "checkpoint.safetensors") }

// save writes the checkpoint, on the first rank alone: since joinModels all ranks have the same
// state. It waits for the device. If a rank has failed, the state may be wrong, and save fails.
func (t *trainer) save() error {
	p := &t.Progress
	if t.SkipRate > 0 && p.Loader.Batch > 0 { // ranks that pass over images may be at different places
		states, err := distributed.Exchange(t.group, p.Loader)
		if err != nil {
			return err
		}
		if p.Loader, err = imageloader.JoinStates(states); err != nil {
			return err
		}
	}
	return t.stream.Do(func(x *cgotorch.Exec) error {
		t.group.Check(x)
		if !t.first() {
			return nil
		}
		p.Log = cgotorch.Must(t.log.Seek(0, io.SeekEnd))
		return checkpoint.Save(x, t.checkpointPath(), checkpoint.Checkpoint{
			Model: t.model, Optimizer: t.opt, Scaler: t.scaler, Epoch: p.Epoch, Step: p.Step, Loader: p.Loader, Config: t.saved,
		})
	})
}

// findRun adopts the run in -out. Without -resume it does so only if the launcher has started that
// run again, after a failure. Rank 0 decides this, by the name in its checkpoint.
func (t *trainer) findRun() error {
	name := distributed.RunName()
	path := t.checkpointPath()
	info, err := checkpoint.Inspect(path)
	var run saved
	ours := err == nil && json.Unmarshal(info.Config, &run) == nil && run.Classes != nil
	if !t.Resume {
		t.Resume = t.group.Agree(!t.first() || ours && name != "" && run.Launch == name)
	}
	switch {
	case t.group.Err() != nil:
		return t.group.Err()
	case !t.Resume:
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("-resume: there is no %s; start a run without -resume, or name its folder with -out", path)
	case err != nil:
		return err
	case !ours:
		return fmt.Errorf("-resume: %s was not saved by this program", path)
	default:
		err = t.adopt(info)
	}
	if t.Launch = name; t.Epochs < t.Progress.Epoch {
		return fmt.Errorf("-resume: the run in %s has had %d epochs, and -epochs is %d; raise -epochs to go on", t.Out, t.Progress.Epoch, t.Epochs)
	}
	return nil
}

// adopt takes settings and progress from a checkpoint. The flags on the command line come first.
func (t *trainer) adopt(info checkpoint.Info) error {
	err := json.Unmarshal(info.Config, &t.saved)
	flag.Parse()
	return err
}
