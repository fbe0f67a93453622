package weights

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// A token's missing experts come by kernels, or by the copy engine. Kernels begin at once, and the
// host takes no part. The engine is some 7 % faster on the bus, but the host has to wait for the
// picks of each layer. So it pays where a layer misses many bytes.
const (
	engineBytes = 45e6 // that a layer misses for a token: then 7 % are the host's 60 us
	countsEvery = 16   // tokens between two looks at the counts
)

// way says how missing experts come. It looks at counts that a copy has brought to the host.
type way struct {
	engine         bool
	calls          int64 // of ByEngine
	read           *cgotorch.HostRead
	at             int64 // the call that enqueued read
	before, misses int64 // the call before that, and the misses until then
}

// ByEngine reports whether [Table.Fetch] should bring a token's missing experts, because the tokens
// of late have missed more than 45 MB a layer. A program calls it once for each token, before the
// token's work. It does not wait: it enqueues a copy of the counts at times, and looks at those
// that have come.
func (t *Table) ByEngine(x *cgotorch.Exec) bool {
	w := &t.way
	w.calls++
	if w.read == nil {
		if w.calls >= w.at+countsEvery {
			w.read, w.at = x.ReadAsync(t.counts), w.calls
		}
		return w.engine
	}
	select {
	case <-w.read.Done():
	default:
		return w.engine
	}
	counts, err := cgotorch.Elements[int64](w.read)
	w.read.Close()
	w.read = nil
	if err != nil {
		x.Fail("Table.ByEngine", err)
	}
	misses := int64(0)
	for i := 1; i < len(counts); i += 2 {
		misses += counts[i]
	}
	missed := float64(misses-w.misses) * float64(t.o.expert()) / float64((w.at-w.before)*int64(t.o.Layers))
	w.engine, w.before, w.misses = missed > engineBytes, w.at, misses
	return w.engine
}

// Fetch copies the experts that a token misses into their slots, by the copy engine, and changes
// picks, Int32 [top, 4], which token_route has made for the layer: all of them are in slots then.
// It runs on x's stream, between token_route and the work that reads the slots, and not within a
// pass. It waits for the picks, not for the copies. It fails with [cgotorch.ErrInvalidArgument] for
// a layer or a pick that the table has not.
func (t *Table) Fetch(x *cgotorch.Exec, layer int, picks *cgotorch.Tensor) {
	const op = "Table.Fetch"
	t.hasSlots(x, op)
	if shape := picks.Shape(); layer < 0 || layer >= t.o.Layers || len(shape) != 2 || shape[1] != 4 || picks.DType() != cgotorch.Int32 {
		x.Fail(op, fmt.Errorf("weights: picks of layer %d are %v %v, want Int32 [top, 4] of a layer from 0 to %d: %w", layer, picks.DType(), shape, t.o.Layers-1, cgotorch.ErrInvalidArgument))
	}
	x.Tidy(func() *cgotorch.Tensor {
		l, all := &t.layers[layer], cgotorch.ToSlice[int32](x, picks)
		for len(all) > 0 {
			slot, expert := int(all[0]), int(all[1])
			all = all[4:]
			if slot < 0 || slot >= t.o.Slots || expert >= t.o.Experts {
				x.Fail(op, fmt.Errorf("weights: a pick has slot %d and expert %d, and the table has %d slots and %d experts: %w", slot, expert, t.o.Slots, t.o.Experts, cgotorch.ErrInvalidArgument))
			}
			if expert < 0 {
				continue
			}
			for i, to := range l.Slots {
				x.CopyInPlace(x.Narrow(to, 0, slot, 1), x.Narrow(l.Experts[i], 0, expert, 1))
			}
			t.fetched++
		}
		x.FillInPlace(x.Select(picks, 1, 1), -1)
		return nil
	})
}
