package weights

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// TablePass brings the experts of a [Table] to the device, layer by layer, for a pass of many
// tokens. Such a pass needs most experts of each layer, and slots would only be in its way. The
// copy engine is then faster than kernels that read the bus. While the device computes a layer, it
// copies the experts of the next one, into memory that all passes share. Experts that are in a slot
// come from there.
type TablePass struct {
	t      *Table
	places [][]int32 // of each layer: the slot of each expert, or -1
	copies int       // layers whose copies are enqueued
	at     int       // the layer that is next, or is used
	used   bool      // Experts has given its matrices
}

// stage has the experts of one layer while a pass runs through that layer.
type stage struct {
	matrices []*cgotorch.Tensor // [experts, rows, columns]
	copied   *cgotorch.Event
	used     *cgotorch.Event // by the layer that it held before, also one of an earlier pass
}

// layersInPass is how many layers have their experts on the device during a pass.
const layersInPass = 2

// Pass begins a pass, and enqueues the copies of the first layers. It waits for the work of x's
// stream, because the device alone knows what is in the slots. Earlier work that uses the table is
// on that stream, or has ended. Until the pass has ended, nothing else enqueues a token or writes
// experts. A pass ends with its Do, or with the Done of the last layer.
//
// Pass fails with [ErrInvalidOptions] for a table without TableOptions.Passes, and with [ErrBusy]
// while another pass runs.
func (t *Table) Pass(x *cgotorch.Exec) *TablePass {
	const op = "Table.Pass"
	t.hasSlots(x, op)
	switch {
	case !t.o.Passes:
		x.Fail(op, fmt.Errorf("weights: the table has no memory for passes: make it with TableOptions.Passes: %w", ErrInvalidOptions))
	case !t.passing.CompareAndSwap(false, true):
		x.Fail(op, fmt.Errorf("weights: %w: another pass runs through the table: wait for its end, or make a table for each", ErrBusy))
	}
	p := &TablePass{t: t}
	x.AtEnd(func() { p.end(x) })
	all, n := cgotorch.ToSlice[int32](x, t.places), t.o.places()
	for i := range t.o.Layers {
		p.places = append(p.places, all[i*n:][:t.o.Experts])
	}
	for range layersInPass {
		p.copy(x)
	}
	return p
}

// end ends a pass whose last layer was not done. Later work of x's stream, and later copies, come
// behind all that the pass has enqueued.
func (p *TablePass) end(x *cgotorch.Exec) {
	if p.at == p.t.o.Layers {
		return
	}
	for i := range p.t.stages {
		s := &p.t.stages[i]
		x.Wait(s.copied)
		s.used.Close()
		s.used = x.Record()
	}
	p.at = p.t.o.Layers
	p.t.passing.Store(false)
}

// copy enqueues the copies of the next layer's experts, if there is one.
func (p *TablePass) copy(x *cgotorch.Exec) {
	if p.copies == p.t.o.Layers {
		return
	}
	s, places, layer := &p.t.stages[p.copies%layersInPass], p.places[p.copies], p.t.layers[p.copies]
	p.copies++
	y := x.On(p.t.stream)
	y.Wait(s.used) //edge:stage-used TestTablePass checked
	y.Tidy(func() *cgotorch.Tensor {
		for at := 0; at < len(places); {
			n := 0 // adjacent experts in host memory are one copy
			for at+n < len(places) && places[at+n] < 0 {
				n++
			}
			for i, to := range s.matrices {
				if n > 0 {
					y.CopyInPlace(y.Narrow(to, 0, at, n), y.Narrow(layer.Experts[i], 0, at, n))
				}
			}
			at += n + 1 // the next one is in a slot
		}
		return nil
	})
	s.copied.Close()
	s.copied = y.Record()
}

// fromSlots enqueues the copies of a layer's experts that are in slots. The bus does not wait for
// them, because the stream is that of the computation.
func (p *TablePass) fromSlots(x *cgotorch.Exec, s *stage, layer int) {
	x.Tidy(func() *cgotorch.Tensor {
		for expert, slot := range p.places[layer] {
			if slot < 0 {
				continue
			}
			for i, to := range s.matrices {
				x.CopyInPlace(x.Narrow(to, 0, expert, 1), x.Narrow(p.t.layers[layer].Slots[i], 0, int(slot), 1))
			}
		}
		return nil
	})
}

// Experts returns the matrices of a layer's experts, [experts, rows, columns], on the device. x's
// stream, which is that of the pass, waits until they are there. The table owns them. Layers come
// in their order, and each ends with Done: else Experts fails with [cgotorch.ErrInvalidArgument].
func (p *TablePass) Experts(x *cgotorch.Exec, layer int) []*cgotorch.Tensor {
	const op = "TablePass.Experts"
	switch {
	case p.used:
		x.Fail(op, fmt.Errorf("weights: layer %d of a pass is in use: call Done first: %w", p.at, cgotorch.ErrInvalidArgument))
	case layer != p.at || p.at == p.t.o.Layers:
		x.Fail(op, fmt.Errorf("weights: layer %d of a pass that is at layer %d of %d: layers come in their order: %w", layer, p.at, p.t.o.Layers, cgotorch.ErrInvalidArgument))
	}
	p.used = true
	s := &p.t.stages[layer%layersInPass]
	x.Wait(s.copied) //edge:stage-copied TestTablePass checked
	p.fromSlots(x, s, layer)
	return s.matrices
}

// Done says that the work which uses the layer's experts is enqueued. It enqueues the copies of the
// layer after the next. It fails with [cgotorch.ErrInvalidArgument] if no layer is in use.
func (p *TablePass) Done(x *cgotorch.Exec) {
	if !p.used {
		x.Fail("TablePass.Done", fmt.Errorf("weights: no layer of the pass is in use: call Experts(x, %d) first: %w", p.at, cgotorch.ErrInvalidArgument))
	}
	s := &p.t.stages[p.at%layersInPass]
	s.used.Close()
	s.used = x.Record()
	p.copy(x)
	p.used = false
	if p.at++; p.at == p.t.o.Layers {
		p.t.passing.Store(false)
	}
}

// addStages makes the memory of passes.
func (t *Table) addStages(x *cgotorch.Exec) (err error) {
	if t.stream, err = cgotorch.NewStream(x.Device(), cgotorch.StreamOptions{Name: "experts of a pass"}); err != nil {
		return err
	}
	for i := range t.stages {
		s := &t.stages[i]
		for _, m := range t.o.Matrices {
			s.matrices = append(s.matrices, x.Keep(x.Empty(t.o.DType, int64(t.o.Experts), m[0], m[1])))
		}
		s.used = x.Record() // the memory may have been another tensor's
	}
	return nil
}

// closeStages waits for the copies, and frees the memory.
func (t *Table) closeStages() error {
	if t.stream == nil {
		return nil
	}
	errs := []error{t.stream.Synchronize()}
	for i := range t.stages {
		s := &t.stages[i]
		errs = append(errs, s.copied.Close(), s.used.Close())
		for _, m := range s.matrices {
			errs = append(errs, m.Close())
		}
		*s = stage{}
	}
	errs = append(errs, t.stream.Close())
	t.stream = nil
	return errors.Join(errs...)
}
