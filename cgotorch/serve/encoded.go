package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// ErrNotDecoded means that a Decoder has refused a file of a request.
var ErrNotDecoded = errors.New("not decoded")

// decoding decodes the files of one input, before their request waits for a batch. So the threads
// of the Decoder work while the device computes. A call of the Decoder holds an OS thread, so no
// more than two goroutines call it for each of its threads. The second one's file waits there when
// the thread becomes free: on a busy machine a goroutine may need as long as a file to come.
type decoding struct {
	spec Spec
	each int           // bytes of an entry
	turn chan struct{} // has a value for each call under way

	mu    sync.Mutex
	slabs []*cgotorch.HostSlab
	free  [][]byte // entries of the slabs, outside Go's heap
}

const entriesOfSlab = 16

func newDecoding(s Spec) *decoding {
	if s.Decoder == nil {
		return nil
	}
	return &decoding{spec: s, each: s.bytes(0), turn: make(chan struct{}, 2*s.Decoder.Workers())}
}

// decode returns the pixels of the files, each in memory that the caller gives back. It fails if a
// file cannot be decoded, or if ctx ends before the last file's turn. The caller gives back in
// this case too.
func (d *decoding) decode(ctx context.Context, files [][]byte) (pixels [][]byte, err error) {
	var all sync.WaitGroup
	errs := make([]error, len(files))
	for i := range files {
		select {
		case d.turn <- struct{}{}:
		case <-ctx.Done():
			all.Wait()
			return pixels, context.Cause(ctx)
		}
		entry, err := d.entry()
		if err != nil {
			<-d.turn
			all.Wait()
			return pixels, err
		}
		pixels = append(pixels, entry)
		one := func() {
			panics.Run("the Decoder of a Spec", func() error { return d.spec.Decoder.DecodeFiles(files[i:i+1], entry) }, func(err error) {
				errs[i] = err
				<-d.turn
			})
		}
		if len(files) == 1 {
			one()
			continue
		}
		all.Add(1)
		go func() {
			defer all.Done()
			one()
		}()
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			return pixels, fmt.Errorf("serve: input %q, file %d of %d: %w: %w", d.spec.Name, i, len(files), ErrNotDecoded, err)
		}
	}
	return pixels, nil
}

func (d *decoding) entry() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.free) == 0 {
		slab, err := cgotorch.NewHostSlab(cgotorch.CPU, entriesOfSlab*d.each)
		if err != nil {
			return nil, err
		}
		d.slabs = append(d.slabs, slab)
		for i := range entriesOfSlab {
			d.free = append(d.free, slab.Bytes()[i*d.each:(i+1)*d.each])
		}
	}
	last := len(d.free) - 1
	entry := d.free[last]
	d.free = d.free[:last]
	return entry, nil
}

func (d *decoding) give(pixels [][]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free = append(d.free, pixels...)
}

func (d *decoding) close() error {
	if d == nil {
		return nil
	}
	var errs []error
	for _, s := range d.slabs {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
