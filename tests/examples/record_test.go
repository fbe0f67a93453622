package examples

import (
	"encoding/json"
	"strings"
	"testing"
)

// recordArgs returns the flags of a short run on the CPU.
func recordArgs(data string, more ...string) []string {
	return append([]string{"-data", data, "-device", "cpu", "-epochs", "1", "-batch", "32", "-widths", "8,8,8", "-tta", "1"}, more...)
}

// lastLine decodes the last line of an output.
func lastLine(t *testing.T, stdout string, into any) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), into); err != nil {
		t.Fatalf("the last line of\n%s: %v", stdout, err)
	}
}

// Each seed has a process of its own and a table of its phases. Equal seeds have equal losses.
func TestRecord(t *testing.T) {
	data := part(t, 200, 50, nil)
	stdout := mustRun(t, "record-cifar", recordArgs(data, "-seeds", "2", "-seed", "4")...)
	for _, want := range []string{"seed 4: ", "seed 5: ", "of 50 images", "\n  reading and decoding, training ", "\n  whitening ", "\n  evaluation ", "\nfloor: ", "\n  mean "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the output has no %q:\n%s", want, stdout)
		}
	}
	var all struct {
		Seeds    int
		Accuracy float64 `json:"mean_accuracy"`
		Slowest  float64 `json:"slowest_seconds"`
		Floor    float64 `json:"floor_seconds"`
	}
	lastLine(t, stdout, &all)
	if all.Seeds != 2 || all.Accuracy < 0 || all.Accuracy > 1 || all.Floor <= 0 || all.Slowest <= all.Floor {
		t.Errorf("the summary is %+v", all)
	}

	type result struct {
		Seed, Steps         int
		Loss, Open, Seconds float64
		Clock               string
	}
	var first result
	for line := range strings.Lines(stdout) {
		if strings.HasPrefix(line, `{"seed":4,`) {
			if err := json.Unmarshal([]byte(line), &first); err != nil {
				t.Fatal(err)
			}
		}
	}
	var again result
	lastLine(t, mustRun(t, "record-cifar", recordArgs(data, "-seed", "4")...), &again)
	if again.Steps != 6 || again.Loss != first.Loss || again.Loss <= 0 {
		t.Errorf("6 steps of seed 4 end with a loss of %v, and again with %v after %d steps", first.Loss, again.Loss, again.Steps)
	}
	if again.Clock != "/proc/self/stat" || again.Open <= 0 || again.Seconds <= again.Open {
		t.Errorf("the clock is %+v", again)
	}

	var limited result
	lastLine(t, mustRun(t, "record-cifar", recordArgs(data, "-limit", "64", "-dtype", "bfloat16")...), &limited)
	if limited.Steps != 2 {
		t.Errorf("%d steps of 64 images, want 2", limited.Steps)
	}
}

func TestRecord_Refuses(t *testing.T) {
	data := part(t, 40, 20, nil)
	for name, c := range map[string]struct {
		args []string
		want string // in standard error
	}{
		"missing archive":   {recordArgs("no/such.tgz"), "no/such.tgz"},
		"empty folder":      {recordArgs(t.TempDir()), "cifar10-train.tgz"},
		"no test images":    {recordArgs(part(t, 40, 0, nil)), "test"},
		"large batch":       {recordArgs(data, "-batch", "41"), "-batch 41"},
		"absent device":     {recordArgs(data, "-device", "cuda:63"), "cuda"},
		"unknown dtype":     {recordArgs(data, "-dtype", "int8"), "-dtype int8"},
		"two widths":        {recordArgs(data, "-widths", "8,8"), "-widths 8,8"},
		"no seeds":          {recordArgs(data, "-seeds", "0"), "-seeds 0"},
		"a seed that fails": {recordArgs("no/such.tgz", "-seeds", "2"), "seed 1"},
		"stray argument":    {recordArgs(data, "epochs=3"), "epochs=3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, stderr, status := run(t, "record-cifar", c.args...)
			if status != 1 || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "goroutine ") {
				t.Errorf("status %d, want 1; standard error must name %q:\n%s", status, c.want, stderr)
			}
		})
	}
}
