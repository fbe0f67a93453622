package data

import (
	"fmt"
	"slices"
	"sort"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Rows are some samples of a [Stream], column by column. A reader of a file makes them with
// [NewRows], and the Append methods.
type Rows struct {
	n       int
	columns []Column
}

// NewRows returns rows without samples. It makes room for `room` samples.
func NewRows(fields []Field, room int) *Rows {
	r := &Rows{columns: make([]Column, len(fields))}
	for i, f := range fields {
		c := &r.columns[i]
		c.Field = f
		if f.variable() {
			c.ends = make([]int, 0, room)
		} else {
			c.Data = aligned(room * f.unit())
		}
	}
	return r
}

// Len returns the number of samples.
func (r *Rows) Len() int { return r.n }

// Grow adds n samples to a field of fixed shape, and returns their elements for the caller to
// set. The caller grows all fields by the same number and then calls [Rows.Grown]. Another dtype
// than T's is a mistake of the program: Grow panics.
func Grow[T cgotorch.Element](r *Rows, field, n int) []T {
	c := &r.columns[field]
	if c.Text || c.variable() || c.DType != cgotorch.DTypeOf[T]() {
		panic(fmt.Sprintf("data: Grow: the field is %s, asked for as %v", c.Field, cgotorch.DTypeOf[T]()))
	}
	from := len(c.Data)
	c.grow(n * c.unit())
	return view[T](c.Data[from:])
}

// AppendBytes adds one sample of raw elements, or of text, to one field.
func (r *Rows) AppendBytes(field int, sample []byte) {
	c := &r.columns[field]
	from := len(c.Data)
	c.grow(len(sample))
	copy(c.Data[from:], sample)
	if c.variable() {
		c.ends = append(c.ends, len(c.Data))
	}
}

// Grown says that each field has n more samples. It fails with [ErrBadRow] if one has not.
func (r *Rows) Grown(n int) error {
	for i := range r.columns {
		c := &r.columns[i]
		c.N = r.n + n
		if err := c.check(); err != nil {
			return fmt.Errorf("data: %d rows: %w: %w", c.N, err, ErrBadRow)
		}
	}
	r.n += n
	return nil
}

// grow makes Data longer by n bytes. The memory stays aligned.
func (c *Column) grow(n int) {
	need := len(c.Data) + n
	if need > cap(c.Data) {
		larger := aligned(max(need, 2*cap(c.Data)))
		c.Data = append(larger, c.Data...)
	}
	c.Data = c.Data[:need]
}

// take appends the samples `from` to `to` of other rows with the same fields.
func (r *Rows) take(other *Rows, from, to int) {
	for i := range r.columns {
		c, o := &r.columns[i], &other.columns[i]
		first, last := o.span(from, to)
		at := len(c.Data)
		c.grow(last - first)
		copy(c.Data[at:], o.Data[first:last])
		if c.variable() {
			for _, end := range o.ends[from:to] {
				c.ends = append(c.ends, end-first+at)
			}
		}
		c.N += to - from
	}
	r.n += to - from
}

// span returns the place in Data of the samples `from` to `to`.
func (c *Column) span(from, to int) (first, last int) {
	if c.ends == nil {
		unit := c.unit()
		return from * unit, to * unit
	}
	if from > 0 {
		first = c.ends[from-1]
	}
	last = first
	if to > from {
		last = c.ends[to-1]
	}
	return first, last
}

// bytes returns the memory of the samples `from` to `to`.
func (r *Rows) bytes(from, to int) int {
	n := 0
	for i := range r.columns {
		c := &r.columns[i]
		first, last := c.span(from, to)
		n += last - first
		if c.ends != nil {
			n += 8 * (to - from)
		}
	}
	return n
}

// upTo returns the number of samples, from the sample `from` on, that end a window: at most
// `most` samples, and the fewest that have at least `bytes` bytes.
func (r *Rows) upTo(from, most, bytes int) int {
	n := max(0, min(most, r.n-from))
	return sort.Search(n, func(i int) bool { return r.bytes(from, from+i) >= bytes })
}

// reset takes all samples out and keeps the memory.
func (r *Rows) reset() {
	r.n = 0
	for i := range r.columns {
		c := &r.columns[i]
		c.N, c.Data, c.ends = 0, c.Data[:0], c.ends[:0]
	}
}

// cut takes samples out of fields that have more than r.n, after a sample that failed.
func (r *Rows) cut() {
	for i := range r.columns {
		c := &r.columns[i]
		if c.variable() {
			c.ends = c.ends[:r.n]
		}
		_, last := c.span(0, r.n)
		c.Data = c.Data[:last]
	}
}

// AppendSample adds one sample. It fails with [ErrBadRow] if a value is missing, has another type
// than its field, or has another length. The rows are then as before.
func (r *Rows) AppendSample(s Sample) error {
	for i := range r.columns {
		if err := r.columns[i].appendValue(s); err != nil {
			r.cut()
			return err
		}
	}
	for i := range r.columns {
		r.columns[i].N++
	}
	r.n++
	return nil
}

// Sample returns sample i as values of Go. It copies them.
func (r *Rows) Sample(i int) Sample {
	s := make(Sample, len(r.columns))
	for k := range r.columns {
		c := &r.columns[k]
		s[c.Name] = c.value(i)
	}
	return s
}

func fieldsOf(columns []Column) []Field {
	fields := make([]Field, len(columns))
	for i, c := range columns {
		fields[i] = c.Field
		fields[i].Shape = slices.Clone(c.Shape)
	}
	return fields
}
