package modules_test

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/must"
)

// The maps `schedules` and `plateaus` have the schedulers of SCHEDULES in make.py.
var schedules = map[string]optim.Schedule{
	"exponential":        optim.StepDecay(1, 0.8),
	"linear":             optim.Linear(6, 0.25, 0.75),
	"linear_default":     optim.Linear(5, 1.0/3, 1),
	"polynomial":         optim.Polynomial(9, 2),
	"restarts":           optim.CosineRestarts(3, 2, 0.1),
	"cyclic":             optim.Cyclic(optim.CyclicOptions{Floor: 0.1, Up: 4}),
	"cyclic_halved":      optim.Cyclic(optim.CyclicOptions{Floor: 0.1, Up: 3, Down: 2, Halve: true}),
	"cyclic_exponential": optim.Cyclic(optim.CyclicOptions{Floor: 0.1, Up: 3, Down: 2, Gamma: 0.9}),
	"one_cycle_three":    optim.OneCycle(23, optim.OneCycleOptions{ThreePhases: true}),
	"sequential": optim.Sequential([]int{3, 9}, func(int) float64 { return 0.1 }, optim.StepDecay(1, 0.8),
		optim.StepDecay(2, 0.5)),
	"chained": optim.Product(optim.StepDecay(1, 0.9), optim.StepDecay(5, 0.5)),
}

var plateaus = map[string]optim.PlateauOptions{
	"plateau": {Patience: cgotorch.Set(2)},
	"plateau_options": {Max: true, Factor: 0.3, Patience: cgotorch.Set(1), Threshold: 0.01, Absolute: true,
		Cooldown: 2, Floor: 0.02},
	"plateau_max": {Max: true, Factor: 0.5, Patience: cgotorch.Set(0)},
	"plateau_abs": {Factor: 0.5, Patience: cgotorch.Set(1), Threshold: 0.02, Absolute: true, Eps: 0.2},
}

func TestSchedules_EqualPyTorch(t *testing.T) {
	var fixtures map[string][]float64
	read(t, "schedules", &fixtures)
	metrics := fixtures["metrics"]
	delete(fixtures, "metrics")
	have := append(slices.Collect(maps.Keys(schedules)), slices.Collect(maps.Keys(plateaus))...)
	slices.Sort(have)
	if want := slices.Sorted(maps.Keys(fixtures)); !slices.Equal(have, want) {
		t.Fatalf("the schedules here are\n%v\nand in the fixture\n%v", have, want)
	}
	for name, want := range fixtures {
		var got []float64
		if s, ok := schedules[name]; ok {
			for step := range want {
				got = append(got, s(step))
			}
		} else {
			got = plateau(t, plateaus[name], metrics)
		}
		for step, w := range want {
			if !(math.Abs(got[step]-w) <= 1e-12) {
				t.Errorf("%s: step %d: %v, want %v", name, step, got[step], w)
			}
		}
	}
}

// plateau returns the scales before each Update. In the middle the state goes through JSON.
func plateau(t *testing.T, o optim.PlateauOptions, metrics []float64) []float64 {
	t.Helper()
	p := must.Get(optim.NewPlateau(o))(t)
	scales := []float64{1}
	for i, metric := range metrics {
		if i == len(metrics)/2 {
			text, err := json.Marshal(p)
			if err == nil {
				p, err = optim.NewPlateau(o)
			}
			if err == nil {
				err = json.Unmarshal(text, p)
			}
			must.Do(t, err)
		}
		scales = append(scales, p.Update(metric))
	}
	return scales[:len(metrics)]
}
