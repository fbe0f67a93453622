package prefetcher

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// moduleSlot is device memory for one module; see Note [Life of a module's slot]. The lock is that of its Modules.
type moduleSlot[M any] struct {
	index  int
	memory *cgotorch.Tensor // uint8
	bound  map[*layout]*binding[M]

	holds  *module[M] // whose copy was enqueued last, or nil
	stays  bool       // it is never given up
	wanted bool       // it was prefetched, and is not to be given up before its use
	fresh  bool       // it has not been used since it was filled

	changing bool // by its use

	filling  *filling[M]                          // whose copy is not known to be enqueued, or nil
	ready    *mark                                // behind the copy
	awaited  map[*cgotorch.Stream]bool            // streams that wait for it
	uses     int                                  // not released
	users    map[*cgotorch.Stream]int             // of these, by the stream of their Do
	released map[*cgotorch.Stream]*cgotorch.Event // behind the last use on each stream
}

func newModuleSlot[M any](index int) *moduleSlot[M] {
	return &moduleSlot[M]{index: index, bound: map[*layout]*binding[M]{}, awaited: map[*cgotorch.Stream]bool{},
		users: map[*cgotorch.Stream]int{}, released: map[*cgotorch.Stream]*cgotorch.Event{}}
}

// binding is a module whose tensors lie in a slot.
type binding[M any] struct {
	module M
	state  []*cgotorch.Tensor // in the layout's order
	whole  *cgotorch.Tensor   // uint8: all of it
}

// bind makes a module and gives it the slot's memory.
func bind[M any](x *cgotorch.Exec, s *moduleSlot[M], l *layout, name string, build func(x *cgotorch.Exec, name string) (M, error), bound map[*cgotorch.Tensor]bool) (*binding[M], error) {
	module, err := build(x, name)
	if err != nil {
		return nil, err
	}
	if v := reflect.ValueOf(module); v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("build has returned nil, and no error: %w", ErrInvalidOptions)
	}
	for _, n := range nn.State(module) {
		if bound[n.Tensor] {
			return nil, fmt.Errorf("build has returned a %T that lies in a slot already: it must make one at each call: %w", module, ErrInvalidOptions)
		}
	}
	keep := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.Keep(t) }
	b := &binding[M]{module: module, whole: keep(x.Narrow(s.memory, 0, 0, int(l.bytes)))}
	if err = fits(module, l); err != nil {
		return nil, errors.Join(err, nn.Close(module), b.whole.Close())
	}
	index := map[string]int{}
	for i, t := range l.tensors {
		index[t.Name] = i
		bytes := x.Narrow(s.memory, 0, int(l.begin[i]), int(l.size[i]))
		typed := x.Call("aten::view.dtype", bytes, t.DType)[0].(*cgotorch.Tensor)
		b.state = append(b.state, keep(x.View(typed, t.Shape...)))
		bound[b.state[i]] = true
	}
	if err = nn.Replace(module, func(n nn.Named) *cgotorch.Tensor { return b.state[index[n.Name]] }); err != nil {
		return nil, errors.Join(err, nn.Close(module), b.close())
	}
	return b, nil
}

// fits compares a module with what the store has for it.
func fits(module any, l *layout) error {
	dtypes := map[string]cgotorch.DType{}
	var entries []nn.Entry
	for _, t := range l.tensors {
		dtypes[t.Name] = t.DType
		entries = append(entries, nn.Entry{Name: t.Name, Shape: t.Shape, Text: t.String()})
	}
	matched, err := nn.Match(module, entries, nn.LoadOptions{})
	if err != nil {
		return fmt.Errorf("its tensors in the store are not those of the %T that was built for it: %w", module, err)
	}
	for _, n := range nn.State(module) {
		if _, ok := dtypes[n.Name]; !ok { // Match lets some be missing
			return fmt.Errorf("the store has no %s of the %T that was built for it: %w", n.Name, module, ErrInvalidOptions)
		}
	}
	for _, n := range matched {
		if of := n.Tensor.DType(); of != dtypes[n.Name] {
			return fmt.Errorf("tensor %s is %v in the store and %v in the %T that was built for it: %w", n.Name, dtypes[n.Name], of, module, ErrInvalidOptions)
		}
	}
	return nil
}

func (b *binding[M]) close() error {
	errs := []error{b.whole.Close()}
	for _, t := range b.state {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// copyBack enqueues the copy of what the slot holds to the store, behind the event, and returns one behind the copy, for which the next copy into
// the slot waits too, and the next change.
func (s *moduleSlot[M]) copyBack(backs *cgotorch.Stream, changed *cgotorch.Event) (*cgotorch.Event, error) {
	if err := backs.Wait(changed); err != nil { //edge:module-back-behind-change TestUse_ReleaseChanged checked
		return nil, err
	}
	b := s.bound[s.holds.layout]
	if err := backs.CopyTo(b.whole, s.holds.whole); err != nil {
		return nil, errors.Join(err, backs.Synchronize())
	}
	if err := s.releasedOn(backs); err != nil { //edge:module-refill-behind-back TestUse_ReleaseChanged checked
		return nil, err
	}
	return backs.Record()
}

// releasedOn notes that the stream's work so far is to be done before the slot is filled anew.
func (s *moduleSlot[M]) releasedOn(stream *cgotorch.Stream) error {
	e, err := stream.Record()
	if err == nil {
		s.releasedBehind(stream, e)
	}
	return err
}

// releasedBehind is releasedOn for an event of the stream.
func (s *moduleSlot[M]) releasedBehind(stream *cgotorch.Stream, e *cgotorch.Event) {
	if before := s.released[stream]; before != nil {
		before.Close()
	}
	if len(s.released) >= manyStreams { // as a slot has that is not filled anew
		for other, e := range s.released {
			if done, err := e.Poll(); err != nil || done {
				e.Close()
				delete(s.released, other)
			}
		}
	}
	s.released[stream] = e //edge:module-release-of-each-stream TestModules_Reuse_SeveralStreams checked
}

// takeUses returns the events behind every use of what the slot held, for the caller to close, and forgets them.
func (s *moduleSlot[M]) takeUses() []*cgotorch.Event {
	events := slices.Collect(maps.Values(s.released))
	clear(s.released)
	s.ready.Close()
	s.ready = nil
	return events
}

func closeAll(events []*cgotorch.Event) {
	for _, e := range events {
		e.Close()
	}
}

// close frees the slot behind its uses, and waits for the copy into it.
func (s *moduleSlot[M]) close(copies *cgotorch.Stream) error {
	var errs []error
	if s.ready != nil {
		//edge:module-close-waits-for-copies TestModules_Close_WaitsForCopies checked
		errs = append(errs, s.ready.Synchronize())
	}
	uses := s.takeUses()
	for _, e := range uses {
		_ = copies.Wait(e) // it fails on a lost device, whose memory is gone already
	}
	closeAll(uses)
	for _, b := range s.bound {
		errs = append(errs, nn.Close(b.module), b.close())
	}
	if s.memory != nil {
		errs = append(errs, s.memory.Close())
	}
	return errors.Join(errs...)
}
