package weights

import (
	"fmt"
	"slices"

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

// ByEngine reports whether [Table.Fetch] should bring the missing experts of the next step. It does
// not wait. It is true if recent steps have missed more than 45 MB a layer. A program calls it once
// for each step, before the step's work. At times it enqueues a read of the counts on x's stream.
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

// Fetch copies a token's missing experts into their slots, by the copy engine. It waits for the
// picks, and so for the earlier work of x's stream, but not for the copies. picks is Int32
// [top, 4], from token_route. Fetch sets its column 1, the missing expert, to -1. A program calls
// it between token_route and the work that reads the slots, and not within a pass.
//
// next is Int32 [n], experts that the next layer will probably pick, or nil. Numbers out of range
// are passed over. Fetch copies at most TableOptions.Ahead of those that are in no slot, while the
// device computes this layer. The Fetch of the next layer takes them. If fewer than 97 % of 128 or
// more are picked, the next 4,096 calls that have a next copy none. No other stream may write
// experts before the next Fetch, Forget or the end of the Do.
//
// Fetch fails with [cgotorch.ErrInvalidArgument] for a layer or a pick out of range, for other
// shapes and dtypes of picks and next, and without slots.
func (t *Table) Fetch(x *cgotorch.Exec, layer int, picks, next *cgotorch.Tensor) {
	const op = "Table.Fetch"
	t.hasSlots(x, op)
	if shape := picks.Shape(); layer < 0 || layer >= t.o.Layers || len(shape) != 2 || shape[1] != 4 || picks.DType() != cgotorch.Int32 {
		x.Fail(op, fmt.Errorf("weights: picks of layer %d are %v %v, want Int32 [top, 4] of a layer from 0 to %d: %w", layer, picks.DType(), shape, t.o.Layers-1, cgotorch.ErrInvalidArgument))
	}
	if next != nil && (len(next.Shape()) != 1 || next.DType() != cgotorch.Int32) {
		x.Fail(op, fmt.Errorf("weights: next is %v %v, want Int32 [n]: %w", next.DType(), next.Shape(), cgotorch.ErrInvalidArgument))
	}
	x.Tidy(func() *cgotorch.Tensor {
		read, of := picks, 4*picks.Shape()[0]
		predicts := next != nil && t.o.Ahead > 0 && layer+1 < t.o.Layers && t.ahead.shouldCopy()
		if predicts {
			// One read, so that the host waits once.
			read = x.Cat([]*cgotorch.Tensor{x.Reshape(picks, -1), next, x.Narrow(t.layers[layer+1].Places, 0, 0, t.o.Experts)}, 0)
		}
		all := cgotorch.ToSlice[int32](x, read)
		t.fetch(x, layer, all[:of])
		x.FillInPlace(x.Select(picks, 1, 1), -1)
		if predicts {
			places := len(all) - t.o.Experts
			t.copyAhead(x, layer+1, all[of:places], all[places:])
		}
		return nil
	})
}

// fetch enqueues the copies of a layer's missing experts. Those that came ahead are in rooms.
func (t *Table) fetch(x *cgotorch.Exec, layer int, picks []int32) {
	l, a := &t.layers[layer], &t.ahead
	var fromRooms [][2]int // slots and rooms
	for ; len(picks) > 0; picks = picks[4:] {
		slot, expert := int(picks[0]), int(picks[1])
		if slot < 0 || slot >= t.o.Slots || expert >= t.o.Experts {
			x.Fail("Table.Fetch", fmt.Errorf("weights: a pick has slot %d and expert %d, and the table has %d slots and %d experts: %w", slot, expert, t.o.Slots, t.o.Experts, cgotorch.ErrInvalidArgument))
		}
		if expert < 0 {
			continue
		}
		t.fetched++
		if room := slices.Index(a.experts, int32(expert)); room >= 0 && a.layer == layer {
			fromRooms = append(fromRooms, [2]int{slot, room})
			continue
		}
		copyExpert(x, l.Slots, slot, l.Experts, expert)
	}
	a.settle(x)
	for _, pair := range fromRooms {
		copyExpert(x, l.Slots, pair[0], a.rooms, pair[1])
	}
	a.used += int64(len(fromRooms))
}
