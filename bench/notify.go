package main

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// benchNotify measures how soon goroutines that wait for events are awake, and how many OS threads that takes: 10,000 of them on
// 200 events of one stream, while one more asks the device without a pause when each event is done. Either 50 wait for each event, or
// one does and the others for the last.
func benchNotify(c *config, emit func(row)) error {
	if !c.device.IsCUDA() {
		return fmt.Errorf("events of the CPU are done when they are recorded: run with -device cuda")
	}
	const goroutines = 10_000
	events := c.or(10, 200) // the device takes some 1,000 launches before the host has to wait
	stream, err := cgotorch.NewStream(c.device, cgotorch.StreamOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	for _, layout := range []struct {
		name, text string
		measured   int // of the goroutines, the first so many
		event      func(i int) int
	}{
		{"one", "one goroutine for each event, the others for the last", events - 1, func(i int) int { return min(i, events-1) }},
		{"many", fmt.Sprintf("%d goroutines for each event", goroutines/events), goroutines, func(i int) int { return i % events }},
	} {
		before := processStatus()["Threads"]
		late, threads, err := wakeUps(stream, events, goroutines, layout.event)
		if err != nil {
			return err
		}
		late = late[:layout.measured]
		note := fmt.Sprintf("%d goroutines wait for %d events of one stream, 1 ms apart, %s; GOMAXPROCS %d; %s", goroutines, events, layout.text,
			runtime.GOMAXPROCS(0), c.settings())
		emit(alone("notify/wake-up/"+layout.name+"/p50", late.median(), "us", fmt.Sprintf("p90 %.0f, p99 %.0f; %s", late.quantile(0.9), late.quantile(0.99), note)))
		emit(alone("notify/os-threads/"+layout.name, float64(threads-before), "os-threads", fmt.Sprintf("more than before, %d, CUDA's own among them; %s", before, note)))
	}
	return nil
}

// wakeUps returns how many microseconds after its event each goroutine was awake, and the number of threads while all waited.
func wakeUps(stream *cgotorch.Stream, events, goroutines int, event func(i int) int) (late sample, threads int64, err error) {
	marks := make([]*cgotorch.Event, events)
	err = stream.Do(func(x *cgotorch.Exec) error {
		x.Call("streamtorch::sleep", int64(300*time.Millisecond), x.Device()) // until all wait
		for i := range marks {
			x.Call("streamtorch::sleep", int64(time.Millisecond), x.Device())
			marks[i] = x.Record()
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	woken := make([]time.Time, goroutines)
	var waiting, all sync.WaitGroup
	for i := range woken {
		waiting.Add(1)
		all.Add(1)
		go func() {
			defer all.Done()
			done := marks[event(i)].Done()
			waiting.Done()
			<-done
			woken[i] = time.Now()
		}()
	}
	waiting.Wait()
	threads = processStatus()["Threads"]
	seen := make([]time.Time, events)
	for i, mark := range marks {
		for {
			done, err := mark.Query()
			if err != nil {
				return nil, 0, err
			}
			if done {
				seen[i] = time.Now()
				break
			}
		}
	}
	all.Wait()
	for i, at := range woken {
		late = append(late, float64(at.Sub(seen[event(i)]).Nanoseconds())/1e3)
	}
	for _, mark := range marks {
		mark.Close()
	}
	return late, threads, nil
}
