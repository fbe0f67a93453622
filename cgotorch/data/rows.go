package data

import (
	"fmt"
	"slices"
	"sort"
)

// Rows are some samples of a [Stream], column by column.
type Rows struct {
	n       int
	columns []Column
}

// RowsOf returns the samples of columns of equal length, in the order of the stream's fields. It
// uses the memory of the columns. It fails with [ErrBadRow] if a column has another length, or is
// not whole.
func RowsOf(columns ...Column) (*Rows, error) {
	r := &Rows{columns: columns}
	if len(columns) > 0 {
		r.n = columns[0].N
	}
	for i := range columns {
		c := &columns[i]
		if c.N != r.n {
			return nil, fmt.Errorf("data: column %s has %d samples, and the first column %d: %w", c.Field, c.N, r.n, ErrBadRow)
		}
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("data: %d rows: %w: %w", r.n, err, ErrBadRow)
		}
	}
	return r, nil
}

// fit fails with [ErrBadRow] if the rows are not of these fields.
func (r *Rows) fit(fields []Field) error {
	if !slices.EqualFunc(r.columns, fields, func(c Column, f Field) bool { return c.equal(f) }) {
		return fmt.Errorf("data: rows of the fields %v, and the stream has %v: %w", fieldsOf(r.columns), fields, ErrBadRow)
	}
	return nil
}

// newRows returns rows without samples. It makes room for `room` samples.
func newRows(fields []Field, room int) *Rows {
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

// add adds one sample. It fails with [ErrBadRow] if a value is missing, has another type than its
// field, or has another length. The rows are then as before.
func (r *Rows) add(s Sample) error {
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
