package distributed

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// RunName returns the name of the run that a launcher has started, or "". A launcher that starts
// the ranks again after a failure gives them equal flags and an equal name. So a program that saves
// the name with its checkpoints knows its own checkpoint, and goes on from it.
//
// torchrun names a run with --standalone or --rdzv-id. Without these the process of torchrun on
// this rank's machine stands for the run. The variable TRAIN_RUN_ID comes first, for other
// launchers.
func RunName() string {
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

// Same fails if the ranks give different settings. `settings` is a struct or a map that JSON can
// hold. The error of a rank names the setting in which it differs from rank 0. Same waits until all
// ranks have called it, as [Exchange] does.
func (g *Group) Same(settings any) error {
	own, err := json.Marshal(settings)
	if err != nil {
		return fmt.Errorf("distributed: Same: %w", err)
	}
	texts, err := g.exchange("Same", string(own))
	if err != nil {
		return err
	}
	first := texts[0]
	switch other := slices.IndexFunc(texts, func(text string) bool { return text != first }); {
	case other < 0:
		return nil
	case string(own) == first:
		return fmt.Errorf("distributed: rank %d has other settings than rank 0: see its error", other)
	}
	var a, b map[string]any
	if err := errors.Join(json.Unmarshal([]byte(first), &a), json.Unmarshal(own, &b)); err != nil {
		return fmt.Errorf("distributed: Same: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if was, is := fmt.Sprint(a[name]), fmt.Sprint(b[name]); was != is {
			return fmt.Errorf("distributed: rank 0 and rank %d have different settings: %s is %.60s there and %.60s here; give all ranks the same", g.rank, name, was, is)
		}
	}
	return fmt.Errorf("distributed: rank 0 and rank %d have different settings; give all ranks the same", g.rank)
}

// stopDepth is the number of steps after which a rank looks. The values are there by then, so the
// host does not wait for the device.
const stopDepth = 4

// Stop reports whether all ranks stop after this step, because some rank has wished it a few steps
// ago. A signal reaches the ranks at different times, and a rank that stopped alone would leave the
// others in a collective. All ranks call Stop once in the Do of each step. Of one rank it returns
// `wish`. It waits for the device only if that is more than a few steps behind.
func (g *Group) Stop(x *cgotorch.Exec, wish bool) bool {
	if g.world == 1 {
		return wish
	}
	x.Tidy(func() *cgotorch.Tensor {
		t := x.NoGrad().Full(cgotorch.Float32, map[bool]float64{true: 1}[wish], 1)
		g.AllReduce(x, t, Max)
		g.stops = append(g.stops, x.ReadAsync(t))
		return nil
	})
	if len(g.stops) <= stopDepth {
		return false
	}
	first := g.stops[0]
	g.stops = g.stops[1:]
	defer first.Close()
	return cgotorch.Must(first.Item()) > 0
}
