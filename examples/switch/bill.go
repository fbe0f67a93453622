package main

import (
	"fmt"
	"io"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
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
	experts, store := m.units.Stats(), m.store.Stats()
	encoder, decoder := m.encoder.Stats(), m.decoder.Stats()
	pinned := int64(cgotorch.LiveHandles()["pinned bytes"])
	fmt.Fprintf(w, "%d tokens in %.2f s: %.1f tokens/s\n", b.tokens, seconds, float64(b.tokens)/seconds)
	fmt.Fprintf(w, "experts: %d uses, %.1f %% of them without a copy; %d copies begun before the use, %d by it, %d for nothing\n",
		experts.Uses(), 100*experts.HitRate(), experts.Ahead, experts.Misses, experts.Unused)
	if decoder.Guesses > 0 {
		fmt.Fprintf(w, "guesses: %d experts, %d of them right\n", decoder.Guesses, decoder.Right)
	}
	hidden := ""
	if m.device.IsCUDA() && experts.Copy > 0 {
		hidden = fmt.Sprintf(" in %s, %.1f %% of that hidden", ms(experts.Copy), 100*experts.Hidden())
	}
	fmt.Fprintf(w, "copied: %s%s; streams stood %s, the host waited %s for slots and %s for routes\n",
		megabytes(experts.Bytes), hidden, ms(experts.Stall), ms(experts.HostWait), ms(encoder.Wait+decoder.Wait))
	fmt.Fprintf(w, "memory: %s of experts on the host, %s page-locked; at most %s on %v, where the whole model would take %s\n",
		megabytes(store.Memory), megabytes(pinned), megabytes(memory.PeakAllocated), m.device, megabytes(b.whole()))
	return nil
}

// whole returns the size of all weights in bytes.
func (b *bill) whole() int64 {
	bytes := b.m.store.Stats().Bytes
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

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", 1e3*d.Seconds()) }
