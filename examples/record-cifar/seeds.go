package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// summary is the outcome of all seeds.
type summary struct {
	Seeds    int     `json:"seeds"`
	Accuracy float64 `json:"mean_accuracy"`
	Least    float64 `json:"least_accuracy"`
	Seconds  float64 `json:"mean_seconds"`
	Slowest  float64 `json:"slowest_seconds"`
	Floor    float64 `json:"floor_seconds"` // of a process that only opens the device
}

// runSeeds runs each seed in a process of its own, one after another. So the clock of each seed
// begins with a process, and no seed finds a device that another one has opened. The first process
// may find colder files than the others, and compiles kernels that the others find.
func runSeeds(ctx context.Context, first uint64, seeds int) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	again := func(flags ...string) (*result, float64, error) {
		cmd := exec.CommandContext(ctx, own, slices.Concat(os.Args[1:], []string{"-seeds=1"}, flags)...) // later flags win
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.Stderr = os.Stderr
		began := time.Now()
		r, err := runProcess(cmd)
		return r, time.Since(began).Seconds(), err
	}
	var results []*result
	var outside []float64 // seconds of each process, from its start to its end, measured here
	for seed := first; seed < first+uint64(seeds); seed++ {
		r, seconds, err := again(fmt.Sprintf("-seed=%d", seed))
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		results, outside = append(results, r), append(outside, seconds)
	}
	floor, _, err := again("-floor") // comes last, because it would warm files for the first seed
	if err != nil {
		return fmt.Errorf("-floor: %w", err)
	}
	s := summary{Seeds: seeds, Least: 1, Floor: floor.Seconds}
	fmt.Printf("\n%6s %10s %10s %14s %14s\n", "seed", "accuracy", "seconds", "device open", "process ended")
	for i, r := range results {
		fmt.Printf("%6d %8.2f %% %10.3f %14.3f %14.3f\n", r.Seed, 100*r.Accuracy, r.Seconds, r.Open, outside[i])
		s.Accuracy += r.Accuracy / float64(seeds)
		s.Seconds += r.Seconds / float64(seeds)
		s.Least, s.Slowest = min(s.Least, r.Accuracy), max(s.Slowest, r.Seconds)
	}
	fmt.Printf("%6s %8.2f %% %10.3f, of which the floor is %.3f\n", "mean", 100*s.Accuracy, s.Seconds, s.Floor)
	return printJSON(s)
}

// runProcess runs one seed and prints its output. The last line is the result.
func runProcess(cmd *exec.Cmd) (*result, error) {
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	last := ""
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		last = lines.Text()
		fmt.Println(last)
	}
	if err := cmd.Wait(); err != nil {
		return nil, err
	}
	r := new(result)
	if err := json.NewDecoder(strings.NewReader(last)).Decode(r); err != nil {
		return nil, fmt.Errorf("its last line is no result: %w", err)
	}
	return r, nil
}
