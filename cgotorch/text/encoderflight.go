package text

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// encoderFlight is a batch that the device computes.
type encoderFlight struct {
	texts  []*encoderText
	rows   int                // a multiple of 64
	began  time.Time          // when it was enqueued
	host   *cgotorch.HostSlab // what the device reads
	copied *cgotorch.Event    // the device has read it
	read   *cgotorch.HostRead // of the results, a row of each text
	err    error              // nothing is computed
}

// done returns a channel that is closed when the results are there.
func (f *encoderFlight) done() <-chan struct{} {
	if f.err != nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	return f.read.Done()
}

// begin lets the device compute a batch. It does not wait for it.
func (e *encoding) begin(texts []*encoderText) *encoderFlight {
	gathered := time.Now()
	l := newEncoderLayout(texts)
	captured := l.fill(e.mostRows)
	f := e.launch(texts, l, captured)
	f.rows, f.began = roundRows(l.rows), time.Now()
	e.pace.Began(f.rows, gathered, f.began)
	return f
}

// launch is begin for texts that have a layout.
func (e *encoding) launch(texts []*encoderText, l *encoderLayout, captured bool) *encoderFlight {
	f, weighted := &encoderFlight{texts: texts}, e.head.weighted()
	if f.host, f.err = e.slabs.take(e.stream.Device(), roundUp(l.bytes(len(weighted)), 1<<40)); f.err != nil {
		return f
	}
	rows, ends, weights := l.write(f.host, e.net.places(l), weighted)
	f.err = e.stream.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		in := []*cgotorch.Tensor{copied(x, rows, l.rows), copied(x, ends, l.texts+1)}
		if len(weighted) > 0 {
			in = append(in, copied(x, weights, l.rows))
		}
		f.copied = x.Record()
		var out *cgotorch.Tensor
		if captured {
			longest := x.Empty(cgotorch.Uint8, int64(l.longest)/128) // its size tells it
			out = e.captured.Run(x, append([]*cgotorch.Tensor{longest}, in...)...)[0]
		} else {
			out = e.forward(x, newEncoderBatch(x, l.longest, l.groups, in))
		}
		f.read = x.ReadAsync(x.Narrow(out, 0, 0, len(texts)))
		return nil
	})
	return f
}

// prepare runs a batch of a size, before texts need it. The second one is captured. It waits for
// the device. Without memory for it, later batches of the size run eagerly.
func (e *encoding) prepare(size encoderSize) {
	text := &encoderText{tokens: make([]int64, 1)}
	if e.ranks && e.kinds > 0 {
		text.kinds = make([]int64, 1)
	}
	l := newEncoderLayout([]*encoderText{text})
	l.encoderSize = size
	_, _ = e.end(e.launch([]*encoderText{text}, l, true))
}

// copied returns a copy of numbers in page-locked memory, as rows of `width`.
func copied[T cgotorch.Element](x *cgotorch.Exec, numbers []T, width int) *cgotorch.Tensor {
	t := x.Empty(cgotorch.DTypeOf[T](), int64(len(numbers)/width), int64(width))
	cgotorch.CopyFrom(x, t, numbers)
	return t
}

// forward returns float32 [texts, n].
func (e *encoding) forward(x *cgotorch.Exec, b *encoderBatch) *cgotorch.Tensor {
	return e.head.forward(x, b, e.net.hidden(x, b))
}

// capturedOf runs a batch of a captured size. in[0] has an element for each 128 tokens of the
// longest text. A size is captured when it comes for the second time.
func (e *encoding) capturedOf(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	longest := 128 * int(in[0].Numel())
	return []*cgotorch.Tensor{x.Tidy(func() *cgotorch.Tensor { return e.forward(x, newEncoderBatch(x, longest, nil, in[1:])) })}
}

// checksFinite reports whether each operator's results are searched for NaN and Inf. Nothing is
// captured then, and the rows that fill a captured size up may have any numbers.
func checksFinite() bool { return strings.Contains(os.Getenv("CGOTORCH_CHECK"), "finite") }

// end waits for a batch, and returns the results of its texts.
func (e *encoding) end(f *encoderFlight) (rows [][]float32, err error) {
	numbers, err := f.numbers()
	if f.copied != nil {
		err = errors.Join(err, f.host.Await(f.copied))
	} else if f.host != nil {
		err = errors.Join(err, e.stream.Synchronize())
	}
	if f.host != nil {
		err = errors.Join(err, e.slabs.give(f.host))
	}
	if err = errors.Join(err, f.copied.Close(), f.read.Close()); err != nil {
		return nil, err
	}
	n := len(numbers) / len(f.texts)
	for i := range f.texts {
		rows = append(rows, numbers[i*n:(i+1)*n:(i+1)*n])
	}
	return rows, nil
}

func (f *encoderFlight) numbers() ([]float32, error) {
	if f.err != nil {
		return nil, f.err
	}
	return cgotorch.Elements[float32](f.read)
}
