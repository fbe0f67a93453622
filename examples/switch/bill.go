package main

import (
	"fmt"
	"io"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// bill measures what answers cost: time, copies and memory.
type bill struct {
	m      *model
	began  time.Time
	tokens int // number of generated tokens
}

// newBill waits for the device and starts the clock.
func newBill(m *model) (*bill, error) {
	if err := m.device.Synchronize(); err != nil {
		return nil, err
	}
	return &bill{m: m, began: time.Now()}, nil
}

// print writes the bill. It waits for the device.
func (b *bill) print(w io.Writer) error {
	m := b.m
	seconds := time.Since(b.began).Seconds()
	if err := m.device.Synchronize(); err != nil {
		return err
	}
	memory, err := m.device.Memory()
	if err != nil {
		return err
	}
	var experts weights.TableStats
	if err := m.stream.Do(func(x *cgotorch.Exec) error { experts = m.net.ExpertStats(x); return nil }); err != nil {
		return err
	}
	pinned := int64(cgotorch.LiveHandles()["pinned bytes"])
	fmt.Fprintf(w, "%d tokens in %.2f s: %.1f tokens/s\n", b.tokens, seconds, float64(b.tokens)/seconds)
	fmt.Fprintf(w, "experts: %d uses, %.1f %% of them in a slot; %s of the others came over the bus, %d experts by the copy engine\n",
		experts.Hits+experts.Misses, 100*float64(experts.Hits)/float64(max(1, experts.Hits+experts.Misses)), megabytes(experts.BusBytes), experts.Fetched)
	fmt.Fprintf(w, "memory: %s of experts on the host, %s page-locked; at most %s on %v, where the whole model would take %s\n",
		megabytes(experts.HostBytes), megabytes(pinned), megabytes(memory.PeakAllocated), m.device, megabytes(b.whole()))
	return nil
}

// whole returns the size of all weights in bytes.
func (b *bill) whole() (bytes int64) {
	counted := map[*cgotorch.Tensor]bool{} // a tied embedding has several names but counts once
	for _, n := range nn.State(b.m.net) {
		if !counted[n.Tensor] {
			counted[n.Tensor] = true
			bytes += n.Tensor.Numel() * int64(n.Tensor.DType().Size())
		}
	}
	return bytes
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
