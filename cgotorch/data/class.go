package data

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Bounds of the texts of one field that are classes.
const (
	maxClasses    = 1 << 20
	maxClassBytes = 64 << 20
)

// ReadClasses reads a whole stream, and returns the different texts of one of its Text fields,
// sorted. They are a [Field]'s Classes for a second reader of the file. Keep them with the model:
// another file may have other texts. ReadClasses fails with [ErrInvalidOptions] if the stream has
// no such field, with [ErrTooLarge] above 1,048,576 texts or 64 MiB, and with the stream's error.
func ReadClasses(ctx context.Context, stream Stream, field string) ([]string, error) {
	i := fieldIndex(stream.Fields(), field)
	if i < 0 || !stream.Fields()[i].Text {
		return nil, fmt.Errorf("data: %q is no field of texts among %s: %w", field, names(stream.Fields()), ErrInvalidOptions)
	}
	found, bytes := map[string]bool{}, 0
	for rows, err := range readRows(ctx, stream, 0) {
		if err != nil {
			return nil, err
		}
		column := &rows.columns[i]
		for k := range rows.n {
			if text := column.sample(k); !found[string(text)] {
				found[string(text)] = true
				bytes += len(text)
			}
		}
		if len(found) > maxClasses || bytes > maxClassBytes {
			return nil, fmt.Errorf("data: field %q has more than %d different texts, or %d bytes of them: %w", field, maxClasses, maxClassBytes, ErrTooLarge)
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// classes is a map from the texts of a field to their numbers.
type classes map[string]int64

// classesOf returns nil for no texts.
func classesOf(texts []string) classes {
	if len(texts) == 0 {
		return nil
	}
	numbers := make(classes, len(texts))
	for i, text := range texts {
		numbers[text] = int64(i)
	}
	return numbers
}

// put writes the number of a text to memory. It returns the fault, or "".
func (c classes) put(dtype cgotorch.DType, memory, text []byte) (fault string) {
	n, ok := c[string(text)]
	if !ok {
		return fmt.Sprintf("%s is none of the %d Classes; ReadClasses finds all of a file", quoted(text), len(c))
	}
	putInt(dtype, memory, n)
	return ""
}
