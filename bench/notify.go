package main

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// benchNotify measures how soon goroutines that wait for events are awake, and how many OS threads that takes: 10,000 of them on
// 200 events of one stream, while one more asks the device without a pause when each event is done.
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
	marks := make([]*cgotorch.Event, events)
	err = stream.Do(func(x *cgotorch.Exec) error {
		x.Sleep(300 * time.Millisecond) // until all wait
		for i := range marks {
			x.Sleep(time.Millisecond)
			marks[i] = x.Record()
		}
		return nil
	})
	if err != nil {
		return err
	}
	before := processStatus()["Threads"]
	woken := make([]time.Time, goroutines)
	var waiting, all sync.WaitGroup
	for i := range woken {
		waiting.Add(1)
		all.Add(1)
		go func() {
			defer all.Done()
			done := marks[i%events].Done()
			waiting.Done()
			<-done
			woken[i] = time.Now()
		}()
	}
	waiting.Wait()
	threads := processStatus()["Threads"]
	seen := make([]time.Time, events)
	for i, mark := range marks {
		for {
			done, err := mark.Query()
			if err != nil {
				return err
			}
			if done {
				seen[i] = time.Now()
				break
			}
		}
	}
	all.Wait()
	var late sample
	for i, at := range woken {
		late = append(late, float64(at.Sub(seen[i%events]).Nanoseconds())/1e3)
	}
	for _, mark := range marks {
		mark.Close()
	}
	note := fmt.Sprintf("%d goroutines on %d events of one stream, 1 ms apart; GOMAXPROCS %d; %s", goroutines, events, runtime.GOMAXPROCS(0), c.settings())
	emit(alone("notify/wake-up/p50", late.median(), "us", fmt.Sprintf("%v; %s", late, note)))
	emit(alone("notify/os-threads", float64(threads), "os-threads", fmt.Sprintf("%d before; %s", before, note)))
	return nil
}
