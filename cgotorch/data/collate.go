package data

import (
	"context"
	"fmt"
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// output is one field of the batches, and its place in a buffer.
type output struct {
	field   Field
	pad     *Pad   // nil if all samples have one shape
	padding []byte // one element
	at      int    // offset of the elements
	lengths int    // offset of the lengths, if pad is not nil
}

const alignBytes = 64 // alignment of each array in a buffer

func lengthsOf(f Field) Field { return Field{Name: f.Name + "_length", DType: cgotorch.Int64} }

// layOut says where the arrays of a batch lie. It returns the number of bytes of a buffer.
func (l *Loader) layOut() (bytes int, err error) {
	const most = 1 << 40
	n := l.options.BatchSize
	for _, f := range l.options.Fields {
		out := output{field: f, at: bytes}
		switch {
		case f.Text:
		case f.variable():
			pad := l.options.pad(f.Name)
			out.pad = &pad
			out.padding, _ = padding(f.DType, pad.Value)
			out.lengths = roundUp(bytes+n*pad.Length*f.unit(), alignBytes)
			bytes = roundUp(out.lengths+8*n, alignBytes)
			if fieldIndex(l.options.Fields, lengthsOf(f).Name) >= 0 {
				return 0, fmt.Errorf("data: the field %q has the name of the lengths of %q: %w", lengthsOf(f).Name, f.Name, ErrInvalidOptions)
			}
		default:
			bytes = roundUp(bytes+n*f.unit(), alignBytes)
		}
		if bytes > most || bytes < 0 {
			return 0, fmt.Errorf("data: batches of %d samples of %s exceed any memory; lower BatchSize or Pad.Length: %w", n, f, ErrInvalidOptions)
		}
		l.outputs = append(l.outputs, out)
	}
	return bytes, nil
}

// padding returns the element with the given value. ok is false if the dtype has no such element.
func padding(dtype cgotorch.DType, value float64) (element []byte, ok bool) {
	element = make([]byte, dtype.Size())
	switch dtype {
	case cgotorch.Float32:
		put(element, float32(value))
	case cgotorch.Float64:
		put(element, value)
	case cgotorch.Float16:
		put(element, cgotorch.ToFloat16(float32(value)))
	case cgotorch.BFloat16:
		put(element, cgotorch.ToBFloat16(float32(value)))
	case cgotorch.Bool:
		element[0] = byte(int64(value) & 1)
		return element, value == 0 || value == 1
	case cgotorch.Complex64, cgotorch.Complex128:
		return element, value == 0
	default:
		return element, value == float64(int64(value)) && putInt(dtype, element, int64(value))
	}
	return element, true
}

// collator makes batches on one goroutine.
type collator struct {
	loader *Loader
	mapped *Rows   // the samples of a batch that are not copied directly
	places []int32 // room for the numbers of samples
	pieces []piece
}

// piece is some samples of a batch: the given places of `rows`, or the places `from` to `to`.
type piece struct {
	rows     *Rows
	places   []int32 // nil for from to to
	from, to int
}

func newCollator(l *Loader) *collator {
	return &collator{loader: l, mapped: newRows(l.options.Fields, 0)}
}

// batch makes the batch of a job in the job's buffer.
func (c *collator) batch(j *job, e *epoch) (*Batch, error) {
	direct, err := c.gather(e.ctx, j)
	if err != nil {
		return nil, err
	}
	l := c.loader
	b := &Batch{N: j.n, Columns: make([]Column, 0, len(l.outputs)+1), Epoch: e.from.Epoch, Index: j.index, State: j.state, ring: l.ring, buffer: j.buffer}
	for i := range l.outputs {
		place := i
		if direct {
			place = l.direct[i]
		}
		if err := c.collate(b, &l.outputs[i], place); err != nil {
			return nil, err
		}
	}
	b.lost = runtime.AddCleanup(b, (*buffers).Lose, l.ring)
	return b, nil
}

// gather finds the samples of a job. It reads and maps them if they do not lie in memory as they
// are. It returns whether the pieces have the data's fields.
func (c *collator) gather(ctx context.Context, j *job) (direct bool, err error) {
	o := &c.loader.options
	c.pieces = c.pieces[:0]
	if o.Map == nil && j.parts[0].window.rows != nil {
		c.places = c.places[:0]
		for _, p := range j.parts {
			if p.window.order == nil && o.World == 1 {
				c.pieces = append(c.pieces, piece{rows: p.window.rows, from: p.window.from + p.from, to: p.window.from + p.to})
				continue
			}
			var places []int32
			if o.World == 1 {
				places = p.window.order[p.window.from:][p.from:p.to]
			} else {
				at := len(c.places)
				c.places = p.window.appendSamples(*o, p.from, p.to, c.places)
				places = c.places[at:]
			}
			c.pieces = append(c.pieces, piece{rows: p.window.rows, places: places})
		}
		return true, nil
	}
	c.mapped.reset()
	for _, p := range j.parts {
		if err := c.read(ctx, p); err != nil {
			return false, err
		}
	}
	c.pieces = append(c.pieces, piece{rows: c.mapped, to: c.mapped.n})
	return false, nil
}

// read reads and maps the samples of a part.
func (c *collator) read(ctx context.Context, p part) error {
	w := p.window
	get := func(i int) (Sample, error) { return w.set.Sample(i) }
	if w.rows != nil {
		get = func(i int) (Sample, error) { return w.rows.Sample(i), nil }
	}
	places := w.appendSamples(c.loader.options, p.from, p.to, nil)
	if q, ok := w.set.(*query); ok {
		rows := make([]int, len(places))
		for k, i := range places {
			rows[k] = int(i)
		}
		samples, err := q.read(ctx, rows)
		if err != nil {
			return err
		}
		get = func(int) (s Sample, _ error) {
			s, samples = samples[0], samples[1:]
			return s, nil
		}
	}
	for _, i := range places {
		s, err := get(int(i))
		if err == nil && c.loader.options.Map != nil {
			s, err = c.loader.options.Map(s)
		}
		if err == nil {
			err = c.mapped.add(s)
		}
		if err != nil {
			return fmt.Errorf("data: sample %d: %w", w.row+int64(i), err)
		}
	}
	return nil
}

// collate copies one field of the samples into the batch.
func (c *collator) collate(b *Batch, out *output, place int) error {
	switch {
	case out.field.Text:
		col := Column{Field: out.field, N: b.N}
		for sample := range c.samples(place) {
			col.Data = append(col.Data, sample...)
			col.ends = append(col.ends, len(col.Data))
		}
		b.Columns = append(b.Columns, col)
		return nil
	case out.pad != nil:
		return c.pad(b, out, place)
	}
	unit := out.field.unit()
	to := b.buffer.Memory[out.at : out.at+b.N*unit : out.at+b.N*unit]
	b.Columns = append(b.Columns, Column{Field: out.field, N: b.N, Data: to})
	for _, p := range c.pieces {
		from := p.rows.columns[place].Data
		if p.places == nil {
			to = to[copy(to, from[p.from*unit:p.to*unit]):]
			continue
		}
		to = pick(to, from, p.places, unit)
	}
	return nil
}

// pick copies samples of `unit` bytes from the given places. It returns the rest of `to`.
func pick(to, from []byte, places []int32, unit int) []byte {
	switch unit {
	case 4:
		pickElements(view[uint32](to), view[uint32](from), places)
	case 8:
		pickElements(view[uint64](to), view[uint64](from), places)
	case 1:
		pickElements(to, from, places)
	default:
		rest := to
		for _, i := range places {
			rest = rest[copy(rest[:unit], from[int(i)*unit:]):]
		}
	}
	return to[len(places)*unit:]
}

func pickElements[T any](to, from []T, places []int32) {
	to = to[:len(places)]
	for k, i := range places {
		to[k] = from[i]
	}
}

// samples yields the memory of each sample of the batch, in one field.
func (c *collator) samples(place int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for _, p := range c.pieces {
			col := &p.rows.columns[place]
			for _, i := range p.places {
				if !yield(col.sample(int(i))) {
					return
				}
			}
			for i := p.from; i < p.to; i++ {
				if !yield(col.sample(i)) {
					return
				}
			}
		}
	}
}

// pad copies samples of different lengths, and pads them to one length.
func (c *collator) pad(b *Batch, out *output, place int) error {
	unit, k, longest := out.field.unit(), 0, 1
	lengths := view[int64](b.buffer.Memory[out.lengths : out.lengths+8*b.N])
	for sample := range c.samples(place) {
		n := len(sample) / unit
		if n > out.pad.Length && !out.pad.Truncate {
			return &Error{Source: fmt.Sprintf("sample %d of the batch", k), Column: out.field.Name, Kind: ErrTooLarge,
				Reason: fmt.Sprintf("it has length %d, and Pad.Length is %d; set Pad.Length or Pad.Truncate", n, out.pad.Length)}
		}
		lengths[k] = int64(min(n, out.pad.Length))
		longest = max(longest, int(lengths[k]))
		k++
	}
	if out.pad.Whole {
		longest = out.pad.Length
	}
	row := longest * unit
	to := b.buffer.Memory[out.at : out.at+b.N*row : out.at+b.N*row]
	f := out.field
	f.Shape = append([]int64{int64(longest)}, f.Shape[1:]...)
	b.Columns = append(b.Columns, Column{Field: f, N: b.N, Data: to}, Column{Field: lengthsOf(f), N: b.N, Data: bytesOf(lengths)})
	for sample := range c.samples(place) {
		n := copy(to[:row], sample)
		repeat(to[n:row], out.padding)
		to = to[row:]
	}
	return nil
}

// repeat fills memory with copies of an element.
func repeat(memory, element []byte) {
	for n := copy(memory, element); n < len(memory); n *= 2 {
		copy(memory[n:], memory[:n])
	}
}
