package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// benchFlat trains over several epochs, for 1,000 batches on the CPU and for 10,000 on CUDA. It
// reports how much memory and threads grow after the first tenth of the batches.
func benchFlat(c *config, emit func(row)) error {
	every, size := c.or(2, 100), 32
	if c.device.IsCUDA() {
		every, size = c.or(2, 1000), cifar.batch
	}
	batches := 10 * every
	if err := (switches{benchmark: c.device.IsCUDA()}).set(); err != nil {
		return err
	}
	archive, err := c.find(cifar.archive)
	if err != nil {
		return err
	}
	loader, err := cifar.open(c, archive, 1, size)
	if err != nil {
		return err
	}
	defer loader.Close()
	ahead, err := prefetcher.New(loader, c.device, prefetcher.Options{})
	if err != nil {
		return err
	}
	defer ahead.Close()
	if _, err := c.device.Memory(); err != nil { // this call starts the counters
		return err
	}
	l, err := cifar.learner(c, 1, batches)
	if err != nil {
		return err
	}
	defer l.close()
	var usages []usage
	epochs := 0
	for ; l.done < batches; epochs++ {
		// The sample is taken during a step, so that the memory of a step is always part of it.
		_, err := l.epoch(ahead, batches-l.done, func(*cgotorch.Exec, *cgotorch.Tensor) {
			if l.done%every == 0 {
				usages = append(usages, measureUsage(c))
			}
		})
		if err != nil {
			return err
		}
	}
	first, last := usages[0], usages[len(usages)-1]
	for i, name := range usageNames {
		var values []string
		for _, u := range usages {
			values = append(values, strconv.FormatInt(u[i], 10))
		}
		unit := "bytes"
		if name == "os-threads" || name == "goroutines" || name == "handles" {
			unit = name
		}
		emit(alone(fmt.Sprintf("flat/%d-batches/%s/%s", batches, name, kind(c.device)), float64(last[i]-first[i]), unit,
			fmt.Sprintf("growth from batch %d to %d; every %d: %s; ResNet-20, batch %d, float32, %d epochs, from files to updated weights; %s",
				every, batches, every, strings.Join(values, " "), size, epochs, c.settings())))
	}
	return nil
}

var usageNames = []string{"resident", "slabs", "pinned", "device-allocated", "device-reserved", "os-threads", "goroutines", "handles"}

// usage holds the resources of the process, in the order of usageNames.
type usage [8]int64

func measureUsage(c *config) usage {
	status := processStatus()
	slabs, pinned := cgotorch.HostMemory()
	device, _ := c.device.Memory()
	handles := 0
	for _, n := range cgotorch.LiveHandles() {
		handles += n
	}
	return usage{status["VmRSS"] << 10, slabs, pinned, device.Allocated, device.Reserved, status["Threads"], int64(runtime.NumGoroutine()), int64(handles)}
}

// processStatus reads the numbers of /proc/self/status. Sizes are in KiB.
func processStatus() map[string]int64 {
	numbers := map[string]int64{}
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		value, _, _ = strings.Cut(strings.TrimSpace(value), " ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			numbers[name] = n
		}
	}
	return numbers
}
