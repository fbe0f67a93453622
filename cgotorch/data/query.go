package data

import (
	"context"
	"fmt"
	"math"
)

// query is a [Dataset] whose samples a program reads many at a time.
type query struct {
	name    string
	n       int
	fields  []Field
	samples func(ctx context.Context, rows []int) ([]Sample, error)
}

// NewQuery returns a data set of n samples that a program reads many at a time, such as all rows of
// a batch by one query of a database. For each batch a loader calls `samples` once, with the
// numbers of its samples in their order, each from 0 to n-1. `samples` returns them in that order.
// Several goroutines call it at a time, each for a batch of its own. ctx ends with the epoch.
// `name` names the data set in errors. NewQuery fails with [ErrInvalidOptions] for fields that are
// not valid, for n out of range, and for nil `samples`.
func NewQuery(name string, n int, fields []Field, samples func(ctx context.Context, rows []int) ([]Sample, error)) (Dataset, error) {
	if err := checkFields(fields); err != nil {
		return nil, err
	}
	if n < 0 || n > math.MaxInt32 {
		return nil, fmt.Errorf("data: a data set of %d samples is out of range: %w", n, ErrInvalidOptions)
	}
	if samples == nil {
		return nil, fmt.Errorf("data: %s: the function `samples` is nil: %w", name, ErrInvalidOptions)
	}
	return &query{name, n, fields, samples}, nil
}

func (q *query) Fields() []Field { return q.fields }

func (q *query) Len() int { return q.n }

// Sample returns sample i, by a call of the program's function for it alone.
func (q *query) Sample(i int) (Sample, error) {
	samples, err := q.read(context.Background(), []int{i})
	if err != nil {
		return nil, err
	}
	return samples[0], nil
}

// read returns the samples of the given numbers, in their order.
func (q *query) read(ctx context.Context, rows []int) ([]Sample, error) {
	samples, err := q.samples(ctx, rows)
	if err != nil {
		return nil, fmt.Errorf("data: %s: row %d: %w", q.name, rows[0]+1, err)
	}
	if len(samples) != len(rows) {
		return nil, fmt.Errorf("data: %s: the function `samples` was asked for %d rows and returned %d; give one for each, in their order: %w", q.name, len(rows), len(samples), ErrBadRow)
	}
	return samples, nil
}
