package data

import (
	"context"
	"fmt"
	"iter"
)

// Stream is a data set that is read from its beginning. [OpenCSV], [OpenJSONLines] and
// [NewSequence] make Streams. A program may write its own, with the Rows of [RowsOf].
type Stream interface {
	// Fields returns the fields of a sample. They never change.
	Fields() []Field
	// Read yields the samples in their order, in Rows of any number. It leaves out the first `from`
	// samples. The receiver owns the Rows. Two Reads give equal samples. Read ends when ctx ends, and
	// it ends its goroutines before it returns.
	Read(ctx context.Context, from int64) iter.Seq2[*Rows, error]
}

// nameOf returns the name of a stream for an error.
func nameOf(stream Stream) string {
	if named, ok := stream.(interface{ source() string }); ok {
		return named.source()
	}
	return fmt.Sprintf("the %T", stream)
}

// readRows yields the rows of a stream. It fails with [ErrBadRow] for rows of other fields.
func readRows(ctx context.Context, stream Stream, from int64) iter.Seq2[*Rows, error] {
	return func(yield func(*Rows, error) bool) {
		fields := stream.Fields()
		for rows, err := range stream.Read(ctx, from) {
			if err == nil {
				err = rows.fit(fields)
			}
			if !yield(rows, err) || err != nil {
				return
			}
		}
	}
}

// ReadTable reads a whole stream into memory. `most` bounds the memory, in bytes. 0 means 4 GiB. It
// fails with [ErrTooLarge] if the stream needs more, and with the stream's error.
func ReadTable(ctx context.Context, stream Stream, most int) (*Table, error) {
	if most <= 0 {
		most = 4 << 30
	}
	fields := stream.Fields()
	if err := checkFields(fields); err != nil {
		return nil, err
	}
	all, bytes := newRows(fields, 0), 0
	for rows, err := range readRows(ctx, stream, 0) {
		if err != nil {
			return nil, err
		}
		if bytes += rows.bytes(0, rows.n); bytes > most {
			return nil, fmt.Errorf("data: the first %d samples take more than %d bytes: %w", all.n+rows.n, most, ErrTooLarge)
		}
		all.take(rows, 0, rows.n)
	}
	return NewTable(all.columns...)
}

// readWindows cuts a stream into windows. See Note [Order of samples].
func (e *epoch) readWindows(stream Stream, send func(*window) error) error {
	o := &e.loader.options
	size := max(o.ShuffleBuffer, o.BatchSize)
	size = roundUp(size, o.World)
	row := e.from.Row
	fields := stream.Fields()
	w := &window{row: row, rows: newRows(fields, 0)}
	bytes := 0
	old := 0 // samples of a window that was begun, perhaps by other ranks or with another BatchSize
	if e.from.begun(*o) {
		old = int(e.from.Window)
	}
	flush := func() error {
		w.n = w.rows.n
		if w.n == 0 {
			return nil
		}
		if o.Shuffle {
			w.order = permutation(w.n, e.from.Seed, e.from.Epoch, w.row)
		}
		err := send(w)
		w = &window{row: w.row + int64(w.n), rows: newRows(fields, min(size, w.n))}
		bytes = 0
		return err
	}
	for rows, err := range readRows(e.ctx, stream, row) {
		if err != nil {
			return err
		}
		if !o.Shuffle && o.World == 1 && old == 0 { // the rows are a window as they are
			w.rows = rows
			if err := flush(); err != nil {
				return err
			}
			continue
		}
		for from := 0; from < rows.n; {
			if old > 0 {
				to := min(rows.n, from+old-w.rows.n)
				w.rows.take(rows, from, to)
				if from = to; w.rows.n == old {
					old = 0
					if err := flush(); err != nil {
						return err
					}
				}
				continue
			}
			to := from + rows.upTo(from, size-w.rows.n, o.BufferBytes-bytes)
			for to < rows.n && (w.rows.n+to-from)%o.World != 0 {
				to++
			}
			bytes += rows.bytes(from, to)
			w.rows.take(rows, from, to)
			from = to
			if w.rows.n%o.World == 0 && (w.rows.n >= size || bytes >= o.BufferBytes) {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	if e.ctx.Err() != nil { // a stream may end without an error
		return context.Cause(e.ctx)
	}
	return flush()
}
