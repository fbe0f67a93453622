package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// saved holds the fields that this program adds to a checkpoint. examples/predict and
// examples/serve read them too.
type saved struct {
	Config   Config   `json:"config"`
	Classes  []string `json:"classes"`
	Progress Progress `json:"progress"`
	Launch   string   `json:"launch,omitempty"` // see Note [Started again]
}

func (t *trainer) checkpointPath() string { return filepath.Join(t.Out, "checkpoint.safetensors") }

// save writes the checkpoint, on the first rank alone: since joinModels all ranks have the same
// state. It waits for the device. If a rank has failed, the state may be wrong, and save fails.
func (t *trainer) save() error {
	if err := t.joinStates(); err != nil {
		return err
	}
	return t.stream.Do(func(x *cgotorch.Exec) error {
		t.group.Check(x)
		if !t.first() {
			return nil
		}
		return checkpoint.Save(x, t.checkpointPath(), checkpoint.Checkpoint{
			Model: t.model, Optimizer: t.opt, Scaler: t.scaler,
			Epoch: t.progress.Epoch, Step: t.progress.Step, Loader: t.progress.Loader,
			Config: saved{t.Config, t.train.loader.Classes(), t.progress, t.launch},
		})
	})
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

// startedAgain reports whether the launcher has started this run again, and its checkpoint is
// there. It waits for rank 0.
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

// keepInterrupted keeps the checkpoint of an interrupted run that a new run would replace, under
// another name.
func (t *trainer) keepInterrupted() error {
	var s saved
	path := t.checkpointPath()
	info, err := checkpoint.Inspect(path)
	if err != nil || json.Unmarshal(info.Config, &s) != nil || s.Progress.Epoch >= s.Config.Epochs {
		return nil
	}
	kept := path + ".interrupted"
	fmt.Fprintf(os.Stderr, "a run was interrupted here in epoch %d of %d: its checkpoint is %s now; to go on with it, move it back and take -resume\n", s.Progress.Epoch+1, s.Config.Epochs, kept)
	return os.Rename(path, kept)
}

// readSaved reads the fields that -resume needs before the model is made. It takes the settings
// from the saved run, except for settings that a resumed run may change. `again` says that a
// launcher has started the run again, with the flags of its first start.
func (t *trainer) readSaved(again bool) (*saved, error) {
	path := t.checkpointPath()
	info, err := checkpoint.Inspect(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("-resume: there is no %s; start a run without -resume, or name its folder with -out", path)
	}
	if err != nil {
		return nil, err
	}
	var s saved
	if err := json.Unmarshal(info.Config, &s); err != nil || s.Config.Model == "" {
		return nil, fmt.Errorf("-resume: %s was not saved by this program", path)
	}
	given := t.Config
	t.Config = s.Config
	t.Workers, t.Engines, t.Out, t.Resume, t.StepLog, t.Trace, t.Graph, t.Timeout = given.Workers, given.Engines, given.Out, true, given.StepLog, given.Trace, given.Graph, given.Timeout
	var fixed []string
	flag.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "data":
			t.Data = given.Data
		case "test-data":
			t.TestData = given.TestData
		case "epochs":
			t.Epochs = given.Epochs
		case "device":
			t.Device = given.Device
		case "resume", "out", "workers", "jpeg-engines", "log-steps", "trace", "graph", "timeout":
		default:
			fixed = append(fixed, "-"+f.Name)
		}
	})
	if again {
		return &s, nil
	}
	if len(fixed) > 0 {
		return nil, fmt.Errorf("-resume goes on with the settings saved in %s: leave out %s, or begin anew without -resume", t.Out, strings.Join(fixed, ", "))
	}
	if t.Epochs < s.Progress.Epoch {
		return nil, fmt.Errorf("-resume: the run in %s has had %d epochs, and -epochs is %d; raise -epochs to go on", t.Out, s.Progress.Epoch, t.Epochs)
	}
	return &s, nil
}

// restore makes the model, the optimizer, the random generators, the scaler and the loader
// continue from the checkpoint.
func (s *saved) restore(x *cgotorch.Exec, t *trainer) error {
	if now := t.train.loader.Classes(); !slices.Equal(s.Classes, now) {
		return fmt.Errorf("-resume: %s has other classes than the run in %s was trained on: %d, not %d, or other names", t.Data, t.Out, len(now), len(s.Classes))
	}
	t.progress = s.Progress
	run := checkpoint.Checkpoint{Model: t.model, Optimizer: t.opt, Scaler: t.scaler, Loader: t.train.ahead}
	return checkpoint.Resume(x, t.checkpointPath(), &run)
}

// loadWeights begins a run with the weights of another file of the same model. If that file was
// made for another number of classes, the classifier keeps its new weights. The classifier is the
// model's last layer.
func (t *trainer) loadWeights(x *cgotorch.Exec) error {
	err := checkpoint.LoadModel(x, t.Weights, t.model, nn.LoadOptions{})
	var misfit *nn.LoadError
	if errors.As(err, &misfit) && len(misfit.Misshapen) > 0 {
		state := nn.State(t.model)
		last := state[len(state)-1].Name
		classifier := last[:strings.LastIndexByte(last, '.')+1]
		skip := func(name string) bool { return strings.HasPrefix(name, classifier) }
		if checkpoint.LoadModel(x, t.Weights, t.model, nn.LoadOptions{Skip: skip}) == nil {
			fmt.Fprintf(os.Stderr, "%s has other classes: all but %s* comes from it\n", t.Weights, classifier)
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("-weights: %w", err)
	}
	return nil
}
