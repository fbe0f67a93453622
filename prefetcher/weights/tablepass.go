package weights

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// TablePass brings the experts of a [Table] to the device, layer by layer, for a pass of many
// tokens. Such a pass needs most experts of each layer, and slots would only be in its way. The
// copy engine is then faster than kernels that read the bus. It copies the experts of two layers
// ahead, into memory that all passes share. Experts that are in a slot are taken from there.
type TablePass struct {
	t      *Table
	x      *cgotorch.Exec
	places [][]int32 // of each layer: the slot of each expert, or -1
	next   int       // the layer whose copy is enqueued next
}

// stage has the experts of one layer while a pass runs through that layer.
type stage struct {
	matrices []*cgotorch.Tensor // [experts, rows, columns]
	copied   *cgotorch.Event
	used     *cgotorch.Event // by the layer that it held before
}

// stages is how many layers have their experts on the device during a pass.
const stages = 2

// Pass begins a pass on x's stream. It enqueues the copies of the first layers. It waits for the
// work of x's stream, because the device alone knows what is in the slots. The table must have been
// made with TableOptions.Passes, and one pass runs at a time. A pass lives as long as the Do.
func (t *Table) Pass(x *cgotorch.Exec) *TablePass {
	p := &TablePass{t: t, x: x}
	all, n := cgotorch.ToSlice[int32](x, t.places), t.o.Experts+2*t.o.Slots+1
	for i := range t.o.Layers {
		p.places = append(p.places, all[i*n:][:t.o.Experts])
	}
	for i := range t.stages {
		t.stages[i].used.Close()
		t.stages[i].used = x.Record() // an earlier pass may have failed in its middle
	}
	for range t.stages {
		p.copy()
	}
	return p
}

// copy enqueues the copies of the next layer's experts, if there is one.
func (p *TablePass) copy() {
	if p.next == p.t.o.Layers {
		return
	}
	s, places, layer := &p.t.stages[p.next%stages], p.places[p.next], p.t.layers[p.next]
	p.next++
	y := p.x.On(p.t.stream)
	y.Wait(s.used) //edge:stage-used TestTablePass checked
	y.Tidy(func() *cgotorch.Tensor {
		for at := 0; at < len(places); {
			n := 1 // adjacent experts in host memory are one copy
			for places[at] < 0 && at+n < len(places) && places[at+n] < 0 {
				n++
			}
			for i, to := range s.matrices {
				from := y.Narrow(layer.Experts[i], 0, at, n)
				if places[at] >= 0 {
					from = y.Narrow(layer.Slots[i], 0, int(places[at]), 1)
				}
				y.CopyInPlace(y.Narrow(to, 0, at, n), from)
			}
			at += n
		}
		return nil
	})
	s.copied.Close()
	s.copied = y.Record()
}

// Experts returns the matrices of a layer's experts, [experts, rows, columns], on the device. x's
// stream waits until they are there. Layers come in their order, and each ends with Done. The table
// owns the matrices.
func (p *TablePass) Experts(layer int) []*cgotorch.Tensor {
	s := &p.t.stages[layer%stages]
	p.x.Wait(s.copied) //edge:stage-copied TestTablePass checked
	return s.matrices
}

// Done says that the work which uses a layer's experts is enqueued. It enqueues the copies of the
// layer after the next.
func (p *TablePass) Done(layer int) {
	s := &p.t.stages[layer%stages]
	s.used.Close()
	s.used = p.x.Record()
	p.copy()
}

// addStages makes the memory of passes.
func (t *Table) addStages(x *cgotorch.Exec) (err error) {
	if t.stream, err = cgotorch.NewStream(x.Device(), cgotorch.StreamOptions{Name: "experts of a pass"}); err != nil {
		return err
	}
	for i := range stages {
		for _, m := range t.o.Matrices {
			t.stages[i].matrices = append(t.stages[i].matrices, x.Keep(x.Empty(t.o.DType, int64(t.o.Experts), m[0], m[1])))
		}
	}
	return nil
}

// closeStages frees it.
func (t *Table) closeStages() (errs []error) {
	for _, s := range t.stages {
		errs = append(errs, s.copied.Close(), s.used.Close())
		for _, m := range s.matrices {
			errs = append(errs, m.Close())
		}
	}
	return slices.DeleteFunc(append(errs, t.stream.Close()), func(err error) bool { return err == nil })
}
