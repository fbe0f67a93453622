package data

import (
	"context"
	"fmt"
	"iter"
	"strings"
)

// sequence is a [Stream] of samples that a program makes.
type sequence struct {
	name    string
	fields  []Field
	samples func(ctx context.Context) iter.Seq2[Sample, error]
}

// NewSequence returns a stream of samples. `samples` is called once for each epoch, and must give
// equal samples each time. `name` names the sequence in errors. NewSequence fails with
// [ErrInvalidOptions] for fields that are not valid, and for nil `samples`. A sample that does not
// fit the fields is an [*Error] of Read.
func NewSequence(name string, fields []Field, samples func(ctx context.Context) iter.Seq2[Sample, error]) (Stream, error) {
	if err := checkFields(fields); err != nil {
		return nil, err
	}
	if samples == nil {
		return nil, fmt.Errorf("data: %s: the function `samples` is nil: %w", name, ErrInvalidOptions)
	}
	return &sequence{name, fields, samples}, nil
}

func (s *sequence) source() string { return s.name }

// Fields returns the fields of a sample.
func (s *sequence) Fields() []Field { return s.fields }

const (
	sequenceRows  = 256     // samples that are handed on at a time
	sequenceBytes = 1 << 20 // and about the most bytes of them
)

// Read yields the samples from number `from` on. If a sample does not fit the fields, Read yields
// an [*Error].
func (s *sequence) Read(ctx context.Context, from int64) iter.Seq2[*Rows, error] {
	return func(yield func(*Rows, error) bool) {
		rows, row := newRows(s.fields, 0), int64(0)
		for sample, err := range s.samples(ctx) {
			if err == nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				if rows.n == 0 || yield(rows, nil) {
					yield(nil, fmt.Errorf("data: %s: row %d: %w", s.name, row+1, err))
				}
				return
			}
			if row++; row <= from {
				continue
			}
			if err := rows.add(sample); err != nil {
				if rows.n == 0 || yield(rows, nil) {
					yield(nil, &Error{Source: s.name, Row: row, Reason: strings.TrimPrefix(err.Error(), "data: "), Kind: ErrBadRow, Cause: err})
				}
				return
			}
			if rows.n >= sequenceRows || rows.bytes(0, rows.n) >= sequenceBytes {
				if !yield(rows, nil) {
					return
				}
				rows = newRows(s.fields, sequenceRows)
			}
		}
		if rows.n > 0 {
			yield(rows, nil)
		}
	}
}
