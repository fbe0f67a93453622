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
	Config   *Config  `json:"config"`
	Classes  []string `json:"classes"`
	Progress Progress `json:"progress"`
	Launch   string   `json:"launch,omitempty"` // see distributed.RunName
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

// peek reads the fields of a checkpoint. It returns nil for a file that this program has not saved.
func peek(path string) (*saved, error) {
	info, err := checkpoint.Inspect(path)
	s := &saved{Config: &Config{}}
	if err != nil || json.Unmarshal(info.Config, s) != nil || s.Config.Model == "" {
		return nil, err
	}
	return s, nil
}

// adopt takes the settings of a saved run. Of the flags on the command line those in `may` stay,
// and those of this start alone. adopt returns the other ones.
func (s *saved) adopt(c *Config, may ...string) (refused []string, err error) {
	given := map[string]string{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = f.Value.String() })
	text, err := json.Marshal(s.Config)
	if err == nil {
		err = json.Unmarshal(text, c) // what has no JSON name stays as given
	}
	flag.VisitAll(func(f *flag.Flag) {
		value, ok := given[f.Name]
		switch {
		case !ok || slices.Contains([]string{"graph", "workers", "jpeg-engines", "out", "resume", "evaluate", "log-steps", "trace", "timeout"}, f.Name):
		case slices.Contains(may, f.Name):
			err = errors.Join(err, flag.Set(f.Name, value))
		default:
			refused = append(refused, "-"+f.Name)
		}
	})
	return refused, err
}

// findRun returns the run that this one goes on from, or nil. It takes that run's settings.
func (t *trainer) findRun() (*saved, error) {
	s, err := peek(t.checkpointPath())
	if !t.Resume {
		again, err := t.startedAgain(s, err)
		if !again || err != nil {
			return nil, err
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("-resume: there is no %s; start a run without -resume, or name its folder with -out", t.checkpointPath())
	case err != nil:
		return nil, err
	case s == nil:
		return nil, fmt.Errorf("-resume: %s was not saved by this program", t.checkpointPath())
	}
	refused, err := s.adopt(t.Config, "data", "test-data", "epochs", "device")
	switch {
	case err != nil:
		return nil, err
	case t.Resume && len(refused) > 0:
		return nil, fmt.Errorf("-resume goes on with the settings saved in %s: leave out %s, or begin anew without -resume", t.Out, strings.Join(refused, ", "))
	case t.Epochs < s.Progress.Epoch:
		return nil, fmt.Errorf("-resume: the run in %s has had %d epochs, and -epochs is %d; raise -epochs to go on", t.Out, s.Progress.Epoch, t.Epochs)
	}
	t.Resume = true
	return s, nil
}

// startedAgain reports whether the launcher has started this run again, and s is its checkpoint.
// Rank 0 decides. It waits for rank 0.
func (t *trainer) startedAgain(s *saved, err error) (bool, error) {
	if errors.Is(err, fs.ErrNotExist) || !t.first() {
		err = nil
	}
	texts, failed := t.group.Exchange(fmt.Sprint(s != nil && t.launch != "" && s.Launch == t.launch))
	return failed == nil && texts[0] == "true", errors.Join(err, failed)
}

// keepInterrupted keeps the checkpoint of an interrupted run that a new run would replace, under
// another name.
func (t *trainer) keepInterrupted() error {
	path := t.checkpointPath()
	s, err := peek(path)
	if err != nil || s == nil || s.Progress.Epoch >= s.Config.Epochs {
		return nil
	}
	kept := path + ".interrupted"
	fmt.Fprintf(os.Stderr, "a run was interrupted here in epoch %d of %d: its checkpoint is %s now; to go on with it, move it back and take -resume\n", s.Progress.Epoch+1, s.Config.Epochs, kept)
	return os.Rename(path, kept)
}

// restore makes the model, the optimizer, the random generators, the scaler and the loader continue
// from the checkpoint.
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
