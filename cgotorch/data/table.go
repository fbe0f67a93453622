package data

import (
	"fmt"
	"math"
	"slices"
)

// Dataset is a data set that gives any sample at any time. [Table], [Files] and that of [NewQuery]
// are Datasets. A program may write its own.
type Dataset interface {
	// Fields returns the fields of a sample. They never change.
	Fields() []Field
	// Len returns the number of samples. It never changes.
	Len() int
	// Sample returns sample i, 0 to Len()-1. Several goroutines call it at a time.
	Sample(i int) (Sample, error)
}

// Table is a [Dataset] in memory: columns of equal length. It never changes, so any number of
// goroutines and loaders may use it.
type Table struct{ rows Rows }

// NewTable returns a table of columns. It uses their memory. It fails with [ErrInvalidOptions] if
// the columns differ in length, or if two have one name.
func NewTable(columns ...Column) (*Table, error) {
	if err := checkFields(fieldsOf(columns)); err != nil {
		return nil, err
	}
	t := &Table{Rows{n: columns[0].N, columns: columns}}
	for i := range columns {
		c := &columns[i]
		if err := c.check(); err != nil {
			return nil, err
		}
		if c.N != t.rows.n {
			return nil, fmt.Errorf("data: column %s has %d samples, and %s has %d; give all columns equally many, and Of the shape of one sample: %w", c.Field, c.N, columns[0].Field, t.rows.n, ErrInvalidOptions)
		}
	}
	if t.rows.n > math.MaxInt32 {
		return nil, fmt.Errorf("data: a table of %d samples is too long: %w", t.rows.n, ErrInvalidOptions)
	}
	return t, nil
}

// Slice returns the samples `from` to `to`-1 as a table that uses the same memory. It fails with
// [ErrInvalidOptions] for samples that t does not have.
func (t *Table) Slice(from, to int) (*Table, error) {
	if from < 0 || to < from || to > t.rows.n {
		return nil, fmt.Errorf("data: Slice: samples %d to %d of a table of %d: want 0 <= from <= to <= %[3]d: %w", from, to, t.rows.n, ErrInvalidOptions)
	}
	part := &Table{Rows{n: to - from, columns: slices.Clone(t.rows.columns)}}
	for i := range part.rows.columns {
		c := &part.rows.columns[i]
		first, last := c.span(from, to)
		c.N, c.Data = to-from, c.Data[first:last:last]
		if c.ends != nil {
			c.ends = slices.Clone(c.ends[from:to])
			for k := range c.ends {
				c.ends[k] -= first
			}
		}
	}
	return part, nil
}

// Fields returns the fields of a sample.
func (t *Table) Fields() []Field { return fieldsOf(t.rows.columns) }

// Len returns the number of samples.
func (t *Table) Len() int { return t.rows.n }

// Sample returns sample i. It copies the values.
func (t *Table) Sample(i int) (Sample, error) { return t.rows.Sample(i), nil }

// Column returns the column of that name. The zero Column has no samples.
func (t *Table) Column(name string) Column { return columnOf(t.rows.columns, name) }

func columnOf(columns []Column, name string) Column {
	for _, c := range columns {
		if c.Name == name {
			return c
		}
	}
	return Column{}
}
