package data

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
	"github.com/streamtorch/streamtorch/internal/ring"
)

// Loader makes batches of a data set. One goroutine at a time may loop over it. Pin, Restore and
// Close may be called from any goroutine.
type Loader struct {
	options Options
	set     Dataset // nil for a Stream
	stream  Stream  // nil for a Dataset
	ring    *buffers
	outputs []output
	direct  []int // without Map: for each field of the batches, its place in the data's fields

	mu      sync.Mutex
	next    State
	place   State                   // after the last batch that a loop got
	pinned  bool                    // a Pinner has the batches' memory
	beyond  bool                    // place is perhaps beyond the last batch of a prefetcher's loop
	running context.CancelCauseFunc // ends the running epoch; nil while no epoch runs
	closed  bool

	toldHeld atomic.Bool // the log has told that the consumer holds all batches
}

// NewLoader returns a loader over a Dataset. The caller closes the loader. NewLoader fails with
// [ErrInvalidOptions], also if an epoch would have no batches. It fails if there is no memory for
// the batches.
func NewLoader(set Dataset, o Options) (*Loader, error) {
	if set == nil {
		return nil, fmt.Errorf("data: NewLoader: the data set is nil; give a Table, Files or a Dataset of your own: %w", ErrInvalidOptions)
	}
	if n := set.Len(); n < 0 || n > math.MaxInt32 {
		return nil, fmt.Errorf("data: a data set of %d samples is out of range: %w", n, ErrInvalidOptions)
	}
	l := &Loader{set: set, options: o}
	l.next = State{Seed: o.Seed, Samples: int64(set.Len())}
	l.place = l.next
	return l.open(set.Fields())
}

// NewStreamLoader returns a loader over a Stream. The caller closes the loader. NewStreamLoader
// fails with [ErrInvalidOptions], or if there is no memory for the batches.
func NewStreamLoader(stream Stream, o Options) (*Loader, error) {
	if stream == nil {
		return nil, fmt.Errorf("data: NewStreamLoader: the stream is nil; look at the error of the function that opened it: %w", ErrInvalidOptions)
	}
	l := &Loader{stream: stream, options: o}
	l.next = State{Seed: o.Seed}
	l.place = l.next
	return l.open(stream.Fields())
}

func (l *Loader) open(fields []Field) (*Loader, error) {
	var err error
	if l.options, err = l.options.complete(fields); err != nil {
		return nil, err
	}
	if l.set != nil {
		share := l.options.share(l.set.Len())
		if share == 0 && !(l.options.EachOnce && l.set.Len() > 0) || l.options.DropLast && share < l.options.BatchSize {
			return nil, l.options.empty("the data set", int64(share))
		}
	}
	if l.options.Map == nil {
		for _, f := range l.options.Fields {
			l.direct = append(l.direct, fieldIndex(fields, f.Name))
		}
	}
	bytes, err := l.layOut()
	if err != nil {
		return nil, err
	}
	if l.ring, err = newBuffers(l.options.Buffers, bytes); err != nil {
		return nil, err
	}
	return l, nil
}

// Fields returns the fields of the batches' arrays, without texts. Lengths of padded fields are
// fields too. The first dimension of a padded field is its greatest length, see [Pad].
func (l *Loader) Fields() []Field {
	var fields []Field
	for _, out := range l.outputs {
		if out.field.Text {
			continue
		}
		f := out.field
		if out.pad != nil {
			f.Shape = append([]int64{int64(out.pad.Length)}, f.Shape[1:]...)
		}
		fields = append(fields, f)
		if out.pad != nil {
			fields = append(fields, lengthsOf(f))
		}
	}
	return fields
}

// BatchSize returns the number of samples of the largest batch.
func (l *Loader) BatchSize() int { return l.options.BatchSize }

// Batches returns the number of batches of a whole epoch, of this rank. For a Stream it returns
// -1, because nobody knows how many samples a Stream has before its end.
func (l *Loader) Batches() int {
	if l.set == nil {
		return -1
	}
	o := &l.options
	samples := (&window{n: l.set.Len()}).share(*o)
	if o.DropLast {
		return samples / o.BatchSize
	}
	return (samples + o.BatchSize - 1) / o.BatchSize
}

// Pin gives the memory of the batches to p. It is called before the first Epoch. If it fails, the
// memory is not pinned. Close takes the memory from p.
func (l *Loader) Pin(p Pinner) error {
	err := l.ring.Pin(p)
	if errors.Is(err, ring.ErrClosed) {
		return fmt.Errorf("data: Pin: %w", cgotorch.ErrClosed)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pinned = err == nil && p != nil
	return err
}

// Restore makes the next epoch start at the state s, with the seed of s. It does not change an
// epoch that is being read. It fails with [ErrInvalidState] if s is from other data. Options.World
// may be different, see [State].
func (l *Loader) Restore(s State) error {
	samples := int64(0)
	if l.set != nil {
		samples = int64(l.set.Len())
	}
	s, err := s.startFor(l.options, samples)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next, l.place, l.beyond = s, s, false
	return nil
}

// Epoch yields the batches of one epoch. Each call is for the next epoch. The first epoch is 0, or
// that of Restore. While Options.Buffers batches are unreleased, the loop waits for a release, for
// ctx, or for Close. The last user of a batch must release it.
//
// A loop that is left early stops all goroutines. The rest of its epoch is lost, unless Restore
// goes back to it. The sequence can be used once. It ends with its first error:
//   - the cause of ctx
//   - [cgotorch.ErrClosed] after Close
//   - [ErrBusy] while another epoch is being read
//   - an [*Error], or the error of the data set or of Options.Map
//   - [ErrInvalidOptions] if the epoch of a Stream has no batches
//
// If a function of the program panics on a goroutine of the loader, the loop raises the panic
// again. The text of the new panic has the stack of the first one.
func (l *Loader) Epoch(ctx context.Context) iter.Seq2[*Batch, error] {
	var used atomic.Bool
	return func(yield func(*Batch, error) bool) {
		if used.Swap(true) {
			yield(nil, fmt.Errorf("data: this sequence of batches was used already; call Epoch for each epoch: %w", ErrBusy))
			return
		}
		e, err := l.begin(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		defer e.end()
		for {
			batch, err := e.next()
			if err != nil {
				panics.Raise(err)
				yield(nil, err)
				return
			}
			if batch == nil {
				e.whole = true
				return
			}
			l.reach(batch.State)
			if !yield(batch, nil) {
				return
			}
		}
	}
}

func (l *Loader) begin(ctx context.Context) (*epoch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, fmt.Errorf("data: Epoch: %w; close the loader after its last epoch", cgotorch.ErrClosed)
	case l.running != nil:
		return nil, fmt.Errorf("data: Epoch: %w; end its loop first", ErrBusy)
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	l.next.Ranks = l.options.World
	l.place, l.beyond = l.next, false
	e := l.start(ctx, l.next)
	l.next, l.running = l.next.NextEpoch(), e.cancel
	return e, nil
}

// Close frees the memory of the batches. Batches that are not released keep theirs until then. A
// running epoch ends with [cgotorch.ErrClosed]. Close does not wait for its loop. A second Close,
// or that of nil, does nothing.
func (l *Loader) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.running != nil {
		l.running(fmt.Errorf("data: %w", cgotorch.ErrClosed))
		return nil // the end of the loop frees the memory
	}
	return l.ring.Close()
}
