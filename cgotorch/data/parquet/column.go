package parquet

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	format "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
)

// column reads one column of a row group.
type column struct {
	cell
	chunk  file.ColumnChunkReader
	skip   int64 // rows that are left out before the next one
	nan    bool  // a null is NaN
	values any   // a slice of the column's type, the memory of decode
	levels []int16
}

// part is some rows of a column.
type part[T any] struct {
	done   int // rows of the read before the part
	n      int
	values []T // of the rows that are not null
	levels []int16
	most   int16 // the level of a row that is not null
}

func (p *part[T]) null(i int) bool { return p.most > 0 && p.levels[i] < p.most }

// fault is a value that does not fit its field. row counts from the first row of a part.
type fault struct {
	row    int64
	reason string
}

func (f *fault) Error() string { return f.reason }

// read reads n rows into the elements of a field, or appends them to a list of texts.
func (c *column) read(target any, n int) error {
	switch chunk := c.chunk.(type) {
	case *file.ByteArrayColumnChunkReader:
		return decode(c, chunk, n, func(p part[format.ByteArray]) error {
			for i := range p.n {
				if p.null(i) {
					return &fault{int64(i), "the text is null"}
				}
			}
			texts := target.(*[]string)
			*texts = append(*texts, copied(p.values)...)
			return nil
		})
	case *file.BooleanColumnChunkReader:
		return decode(c, chunk, n, func(p part[bool]) error {
			return store(c, target, mapped(p, func(on bool) uint8 {
				if on {
					return 1
				}
				return 0
			}))
		})
	case *file.Int32ColumnChunkReader:
		return decode(c, chunk, n, func(p part[int32]) error {
			if c.unsigned {
				return store(c, target, mapped(p, func(v int32) uint32 { return uint32(v) }))
			}
			return store(c, target, p)
		})
	case *file.Int64ColumnChunkReader:
		return decode(c, chunk, n, func(p part[int64]) error {
			if c.unsigned {
				return store(c, target, mapped(p, func(v int64) uint64 { return uint64(v) }))
			}
			return store(c, target, p)
		})
	case *file.Float32ColumnChunkReader:
		return decode(c, chunk, n, func(p part[float32]) error { return store(c, target, p) })
	case *file.Float64ColumnChunkReader:
		return decode(c, chunk, n, func(p part[float64]) error { return store(c, target, p) })
	case *file.FixedLenByteArrayColumnChunkReader:
		return decode(c, chunk, n, func(p part[format.FixedLenByteArray]) error {
			return store(c, target, mapped(p, func(v format.FixedLenByteArray) float32 {
				return (cgotorch.Float16Bits(v[0]) | cgotorch.Float16Bits(v[1])<<8).Float32()
			}))
		})
	}
	return fmt.Errorf("a page has the type %v", c.chunk.Type())
}

// copied returns texts of one allocation.
func copied(values []format.ByteArray) []string {
	var all strings.Builder
	for _, v := range values {
		all.Write(v)
	}
	texts, rest := make([]string, len(values)), all.String()
	for i, v := range values {
		texts[i], rest = rest[:len(v)], rest[len(v):]
	}
	return texts
}

// mapped returns the part with other values.
func mapped[S, T any](p part[S], to func(S) T) part[T] {
	values := make([]T, len(p.values))
	for i, v := range p.values {
		values[i] = to(v)
	}
	return part[T]{p.done, p.n, values, p.levels, p.most}
}

// decode skips c.skip rows, then reads n rows. It passes them to `take` in parts. The memory of a
// part is valid until `take` returns.
func decode[T any](c *column, chunk interface {
	ReadBatchInPage(batch int64, values []T, definition, repetition []int16) (int64, int, error)
}, n int, take func(part[T]) error) error {
	if c.values == nil { // the first read has the most rows
		c.values, c.levels = make([]T, n), make([]int16, n)
	}
	p := part[T]{levels: c.levels, most: c.chunk.Descriptor().MaxDefinitionLevel()}
	values := c.values.([]T)
	for p.done < n {
		want := int64(n - p.done)
		if c.skip > 0 {
			want = min(c.skip, int64(len(values)))
		}
		rows, got, err := chunk.ReadBatchInPage(want, values, p.levels, nil)
		if err == nil && rows == 0 {
			if err = c.chunk.Err(); err == nil {
				err = io.ErrUnexpectedEOF
			}
		}
		if err != nil {
			return err
		}
		p.n, p.values = int(rows), values[:got]
		present := 0
		for i := range p.n {
			if !p.null(i) {
				present++
			}
		}
		if got != present {
			return errors.New("a page has fewer values than its header says")
		}
		if c.skip > 0 {
			c.skip -= rows
			continue
		}
		if err := take(p); err != nil {
			if bad, ok := err.(*fault); ok {
				bad.row += int64(p.done)
			}
			return err
		}
		p.done += p.n
	}
	return nil
}

type number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

// store writes numbers to the target, the elements of the field.
func store[S number](c *column, target any, p part[S]) error {
	switch t := target.(type) {
	case []float32:
		return convert(c, t, p, false)
	case []float64:
		return convert(c, t, p, false)
	case []int64:
		return convert(c, t, p, true)
	case []int32:
		return convert(c, t, p, true)
	case []int16:
		return convert(c, t, p, true)
	case []int8:
		return convert(c, t, p, true)
	case []uint8:
		return convert(c, t, p, true)
	case []uint16:
		return convert(c, t, p, true)
	case []uint32:
		return convert(c, t, p, true)
	case []uint64:
		return convert(c, t, p, true)
	case []bool:
		for i := range p.n {
			if p.null(i) {
				return &fault{int64(i), "the value is null"}
			}
			t[(p.done+i)*c.elements+c.element] = p.values[i] != 0
		}
		return nil
	}
	return fmt.Errorf("a field of %T cannot be read", target)
}

// convert is store for one type. With exact, a number must not change.
func convert[S, T number](c *column, to []T, p part[S], exact bool) error {
	nulls := len(p.values) < p.n
	for i, k := 0, 0; i < p.n; i++ {
		at := (p.done+i)*c.elements + c.element
		if nulls && p.null(i) {
			if exact || !c.nan {
				return &fault{int64(i), "the value is null"}
			}
			to[at] = T(math.NaN())
			continue
		}
		from := p.values[k]
		v := T(from)
		if exact && (S(v) != from || (v < 0) != (from < 0)) {
			return &fault{int64(i), fmt.Sprintf("%v is no %T", from, v)}
		}
		to[at] = v
		k++
	}
	return nil
}

// converts reports whether a field of the dtype may hold numbers of a column.
func converts(kind format.Type, dtype cgotorch.DType) bool {
	switch kind {
	case format.Types.Boolean:
		return dtype == cgotorch.Bool
	case format.Types.Float, format.Types.Double, format.Types.FixedLenByteArray:
		return dtype == cgotorch.Float32 || dtype == cgotorch.Float64
	}
	switch dtype {
	case cgotorch.Bool, cgotorch.Float16, cgotorch.BFloat16, cgotorch.Complex64, cgotorch.Complex128:
		return false
	}
	return true
}

// memoryFor returns memory for n samples of a field, and the column that has this memory. For texts
// it returns a *[]string, and no column.
func memoryFor(f data.Field, n int) (any, data.Column) {
	if f.Text {
		return new([]string), data.Column{}
	}
	switch f.DType {
	case cgotorch.Bool:
		return memoryOf[bool](f, n)
	case cgotorch.Uint8:
		return memoryOf[uint8](f, n)
	case cgotorch.Int8:
		return memoryOf[int8](f, n)
	case cgotorch.Int16:
		return memoryOf[int16](f, n)
	case cgotorch.Uint16:
		return memoryOf[uint16](f, n)
	case cgotorch.Int32:
		return memoryOf[int32](f, n)
	case cgotorch.Uint32:
		return memoryOf[uint32](f, n)
	case cgotorch.Int64:
		return memoryOf[int64](f, n)
	case cgotorch.Uint64:
		return memoryOf[uint64](f, n)
	case cgotorch.Float32:
		return memoryOf[float32](f, n)
	}
	return memoryOf[float64](f, n)
}

func memoryOf[T cgotorch.Element](f data.Field, n int) (any, data.Column) {
	for _, size := range f.Shape {
		n *= int(size)
	}
	values := make([]T, n)
	return values, data.Of(f.Name, values, f.Shape...)
}
