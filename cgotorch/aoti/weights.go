package aoti

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// Note [Weights while calls run]
//
// All lanes read one set of weights. Update makes a second set, waits until it is filled, and gives
// it to the lanes one by one, each while no call uses it. So each call reads one set. Work of
// earlier calls may still read the first set on the device, so Update waits for the device before
// it frees that set. A graph holds addresses of weights. If a call that reads the first set was
// captured, this set stays until Close.

// Weights returns the names of the weights that the compiled model reads, sorted. AOTInductor
// leaves out weights that it has put into other constants.
func (p *Package) Weights() []string { return slices.Clone(p.names) }

// Update replaces weights while other goroutines call Forward. A call of Forward reads either all
// old or all new weights. Calls that begin after Update has returned read the new weights. Weights
// that are not in the map keep their values. The package copies the tensors, so the caller may
// close them.
//
// Update waits for the device, and on the host for calls that run. A graph that holds a Forward
// keeps the weights of its capture: capture it again. Weights that a graph has captured stay in
// memory until Close.
//
// Update calls each lane with zeros, as Load does. A package that draws random numbers draws them
// there too.
//
// Update fails and changes nothing if a name, dtype, shape or device does not fit. It fails with
// [ErrUnsupported] for a package with packed weights or weights on two devices, and with
// [cgotorch.ErrClosed] after Close.
//
// AOTInductor computes constants of the weights when it compiles, such as the factors of a batch
// norm. It can only update what it has kept as a weight. Weights lists these names. To keep all,
// compile with aot_inductor.use_runtime_constant_folding.
func (p *Package) Update(x *cgotorch.Exec, weights map[string]*cgotorch.Tensor) error {
	const op = "aoti.Package.Update"
	p.update.Lock()
	defer p.update.Unlock()
	if p.closed {
		return fmt.Errorf("aoti: %s: %w", p.file, cgotorch.ErrClosed)
	}
	if x.Device() != p.device {
		return fmt.Errorf("aoti: %s: it is on %v, and the Exec is on %v: %w", p.file, p.device, x.Device(), cgotorch.ErrInvalidArgument)
	}
	if !p.shares {
		return fmt.Errorf("aoti: %s: %w: its weights are packed or on two devices, and cannot be replaced", p.file, ErrUnsupported)
	}
	for name, t := range weights {
		i, ok := slices.BinarySearch(p.names, name)
		if !ok {
			return fmt.Errorf("aoti: %s: it has no weight %.100q; Weights lists the names: %w", p.file, name, cgotorch.ErrInvalidArgument)
		}
		if t == nil || t.Closed() {
			return fmt.Errorf("aoti: %s: the weight %.100q is nil or closed: %w", p.file, name, cgotorch.ErrInvalidArgument)
		}
		if old := p.weights[i]; t.DType() != old.DType() || !slices.Equal(t.Shape(), old.Shape()) || t.Device() != p.device {
			return fmt.Errorf("aoti: %s: the weight %.100q is %s on %v, want %s on %v: %w", p.file, name, t.String(), t.Device(), old.String(), p.device, cgotorch.ErrInvalidArgument)
		}
	}
	x = x.NoGrad().NoAutocast()
	inside.Core.Prepare(x, op, nil) // a Do that has failed fails here, and not with a lane in hand
	next, err := p.prepare(x, op, weights)
	if err != nil {
		closeAll(next)
		return err
	}
	return p.exchange(x, op, next, weights)
}

// prepare copies the weights, with a lane that it gives back also if an operator fails.
func (p *Package) prepare(x *cgotorch.Exec, op string, weights map[string]*cgotorch.Tensor) ([]*cgotorch.Tensor, error) {
	taken := <-p.free // only Close closes the channel, and waits for Update
	defer func() { p.free <- taken }()
	next, err := p.copyWeights(x, op, taken, weights)
	if err == nil {
		err = p.device.Synchronize()
	}
	return next, err
}

// exchange gives the weights to all lanes. `given` are the values that Update was given. See Note
// [Weights while calls run].
func (p *Package) exchange(x *cgotorch.Exec, op string, next []*cgotorch.Tensor, given map[string]*cgotorch.Tensor) error {
	var failed error
	captured := false
	var done []*lane
	for len(done) < len(p.all) {
		l := <-p.free
		if slices.Contains(done, l) {
			defer func() { p.free <- l }() // given back at the end, so that another lane comes
			continue
		}
		func() {
			defer func() { p.free <- l }() // also if an operator fails and unwinds
			if err := p.setWeights(x, op, l, next); err != nil {
				failed = err
			} else if err := p.rehearse(x, l); err != nil {
				failed = err
			} else if err := p.restore(x, next, given); err != nil {
				failed = err
			}
			if err := p.device.Synchronize(); err != nil {
				failed = err
			}
			captured, l.captured = captured || l.captured, false
		}()
		done = append(done, l)
	}
	if err := p.device.Synchronize(); err != nil {
		failed = err
	}
	if captured || failed != nil {
		p.old = append(p.old, p.weights...)
	} else {
		closeAll(p.weights)
	}
	p.weights = next
	return failed
}

// restore puts back what a rehearsal has changed in the weights `next`. The package then has one
// lane, which the caller has taken.
func (p *Package) restore(x *cgotorch.Exec, next []*cgotorch.Tensor, given map[string]*cgotorch.Tensor) error {
	if len(p.written) == 0 {
		return nil
	}
	if err := p.device.Synchronize(); err != nil { // earlier calls may still change the old weights
		return err
	}
	for _, i := range p.written {
		value := given[p.names[i]]
		if value == nil {
			value = p.weights[i]
		}
		x.CopyInPlace(next[i], value)
	}
	return nil
}

// copyWeights copies the weights of a lane, or the values that are given for them. The copies are
// kept.
func (p *Package) copyWeights(x *cgotorch.Exec, op string, l *lane, values map[string]*cgotorch.Tensor) (kept []*cgotorch.Tensor, err error) {
	for i, name := range p.names {
		var given []*cgotorch.Tensor
		if t := values[name]; t != nil {
			given = append(given, t)
		}
		exec, handles := inside.Core.Prepare(x, op, given)
		var value, h *ct.Tensor
		if len(handles) > 0 {
			value = handles[0]
		}
		status := ct.CompiledWeight(exec, l.model, int32(i), value, &h)
		runtime.KeepAlive(given)
		if err := inside.Core.Check(op, status); err != nil {
			return kept, err
		}
		kept = append(kept, x.Keep(inside.Core.Own(x, h)))
	}
	return kept, nil
}

// setWeights makes a lane read the weights.
func (p *Package) setWeights(x *cgotorch.Exec, op string, l *lane, weights []*cgotorch.Tensor) error {
	exec, handles := inside.Core.Prepare(x, op, weights)
	handles = append(handles, nil) // never empty
	status := ct.CompiledSetWeights(exec, l.model, &handles[0], int32(len(weights)))
	runtime.KeepAlive(weights)
	return inside.Core.Check(op, status)
}

func closeAll(ts []*cgotorch.Tensor) {
	for _, t := range ts {
		t.Close()
	}
}
