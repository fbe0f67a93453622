// Package parquet reads Parquet files as a [data.Stream].
//
// It is a package of its own, so that only programs that read Parquet get its modules.
package parquet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"sync"

	format "github.com/parquet-go/parquet-go"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
)

// Options are the options of [Open].
type Options struct {
	// Fields are the fields of a sample. Field.From names their columns, and may put several columns
	// of numbers into one field. nil means a field for each column, with the column's own type.
	Fields []data.Field

	NullNaN bool // a null in a floating-point field is NaN. Otherwise a null is an error
}

// File is a [data.Stream] of the rows of a Parquet file. It reads columns of booleans, integers,
// floating-point numbers and texts, compressed or not, on all cores. Nested columns and lists
// cannot be read. It holds one page of each column in memory. A page has the size that the file
// says, which is less than 2 GiB.
type File struct {
	path   string
	o      Options
	fields []data.Field
	cells  []cell
}

// cell says where one column of the file goes.
type cell struct {
	column   int // number of the column in the file
	name     string
	field    int
	element  int // of the field's sample
	elements int // number of elements of the field's sample
	unsigned bool
}

// blockRows is the number of rows that are read at a time.
const blockRows = 1 << 15

// Open reads the description of a file. The file is opened again for each epoch. Open fails with
// [data.ErrInvalidOptions] for a column that the file lacks or that cannot be read. It fails with
// an [*data.Error] for a file that is no Parquet file.
func Open(path string, o Options) (*File, error) {
	f := &File{path: path, o: o, fields: o.Fields}
	err := f.with(func(file *format.File) error {
		columns := map[string]*format.Column{}
		for _, c := range file.Root().Columns() {
			if readable(c) {
				columns[c.Name()] = c
			}
		}
		if f.fields == nil {
			for _, c := range file.Root().Columns() {
				if !readable(c) {
					return fmt.Errorf("data: %s: the column %q cannot be read; name the others in Options.Fields: %w", path, c.Name(), data.ErrInvalidOptions)
				}
				f.fields = append(f.fields, ownField(c))
			}
		}
		return f.place(columns)
	}, new(bool))
	if err != nil {
		return nil, err
	}
	return f, nil
}

// with opens the file for a function. A panic about a damaged file becomes an error.
// While *foreign is set, the function runs code of the caller, whose panic goes on.
func (f *File) with(use func(*format.File) error, foreign *bool) (err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	defer file.Close()
	defer f.damaged(&err, foreign)
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	var opened *format.File
	if err = checkFooter(file, info.Size()); err == nil {
		opened, err = format.OpenFile(file, info.Size(), format.SkipPageIndex(true), format.SkipBloomFilters(true))
	}
	if err != nil {
		return &data.Error{Source: f.path, Reason: err.Error(), Kind: data.ErrBadRow, Cause: err}
	}
	return use(opened)
}

// damaged makes an error of a panic of the Parquet module, which checks files only in part.
func (f *File) damaged(err *error, foreign *bool) {
	if *foreign {
		return
	}
	if p := recover(); p != nil {
		*err = &data.Error{Source: f.path, Reason: fmt.Sprintf("the file is damaged: %v", p), Kind: data.ErrBadRow}
	}
}

// readable reports whether a column holds one number or text a row.
func readable(c *format.Column) bool {
	if !c.Leaf() || c.Repeated() {
		return false
	}
	if logical := c.Type().LogicalType(); logical != nil && logical.Decimal != nil {
		return false // the numbers lack their scale
	}
	switch c.Type().Kind() {
	case format.Boolean, format.Int32, format.Int64, format.Float, format.Double, format.ByteArray:
		return true
	}
	return false
}

// isUnsigned reports whether the bits of a column's integers are those of unsigned ones.
func isUnsigned(c *format.Column) bool {
	logical := c.Type().LogicalType()
	return logical != nil && logical.Integer != nil && !logical.Integer.IsSigned
}

// ownField returns the field of a column's own type.
func ownField(c *format.Column) data.Field {
	f := data.Field{Name: c.Name()}
	switch c.Type().Kind() {
	case format.Boolean:
		f.DType = cgotorch.Bool
	case format.Int32:
		if f.DType = cgotorch.Int32; isUnsigned(c) {
			f.DType = cgotorch.Int64
		}
	case format.Int64:
		if f.DType = cgotorch.Int64; isUnsigned(c) {
			f.DType = cgotorch.Uint64
		}
	case format.Float:
		f.DType = cgotorch.Float32
	case format.Double:
		f.DType = cgotorch.Float64
	default:
		f.Text = true
	}
	return f
}

// place finds the columns of the fields.
func (f *File) place(columns map[string]*format.Column) error {
	refuse := func(text string, args ...any) error {
		return fmt.Errorf("data: %s: "+text+": %w", append(append([]any{f.path}, args...), data.ErrInvalidOptions)...)
	}
	if len(f.fields) == 0 {
		return refuse("there are no fields")
	}
	for i, field := range f.fields {
		if field.Classes != nil {
			return refuse("the field %s has Classes, which only CSV and JSONLines use: read a Text, and make it a number with data.Options.Map", field)
		}
		from := field.From
		if from == nil {
			from = []string{field.Name}
		}
		elements := 1
		for _, d := range field.Shape {
			elements *= int(d)
		}
		if elements != len(from) {
			return refuse("the field %s is made of %d columns of one value each", field, len(from))
		}
		for k, name := range from {
			c := columns[name]
			switch {
			case c == nil:
				return refuse("there is no column %q of numbers or texts; it has %s", name, someNames(columns))
			case field.Text != (c.Type().Kind() == format.ByteArray) || !field.Text && !converts(c.Type().Kind(), field.DType):
				return refuse("the column %q has the type %v, and its field is %s", name, c.Type(), field)
			}
			f.cells = append(f.cells, cell{c.Index(), name, i, k, elements, isUnsigned(c)})
		}
	}
	return nil
}

// someNames lists the names of columns for an error. Of many it lists the first.
func someNames(columns map[string]*format.Column) string {
	const most = 5
	names := slices.Sorted(maps.Keys(columns))
	text := fmt.Sprintf("%.40q", names[:min(most, len(names))])
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return text
}

// Fields returns the fields of a sample.
func (f *File) Fields() []data.Field { return f.fields }

// Read yields the rows. An error is a [*data.Error], with the row and its column.
func (f *File) Read(ctx context.Context, from int64) iter.Seq2[*data.Rows, error] {
	return func(yield func(*data.Rows, error) bool) {
		left, inBody := false, false
		err := f.with(func(file *format.File) error {
			row := int64(0) // of the file, before the row group
			for _, group := range file.RowGroups() {
				n := group.NumRows()
				if from < row+n {
					err := f.readGroup(ctx, group, row, max(from-row, 0), func(rows *data.Rows) bool {
						inBody = true
						left = !yield(rows, nil)
						inBody = false
						return !left
					})
					if err != nil || left {
						return err
					}
				}
				row += n
			}
			return nil
		}, &inBody)
		if err != nil && !left {
			yield(nil, err)
		}
	}
}

// readGroup reads a row group without its first `skip` rows, block by block.
func (f *File) readGroup(ctx context.Context, group format.RowGroup, before, skip int64, yield func(*data.Rows) bool) error {
	chunks, readers := group.ColumnChunks(), make([]*column, 0, len(f.cells))
	defer func() {
		for _, r := range readers {
			r.close()
		}
	}()
	for _, c := range f.cells {
		r := &column{cell: c, pages: chunks[c.column].Pages(), nan: f.o.NullNaN}
		readers = append(readers, r)
		if err := r.pages.SeekToRow(skip); skip > 0 && err != nil {
			return &data.Error{Source: f.path, Column: c.name, Reason: err.Error(), Kind: data.ErrBadRow, Cause: err}
		}
	}
	for at := skip; at < group.NumRows(); {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := int(min(blockRows, group.NumRows()-at))
		rows := data.NewRows(f.fields, n)
		targets := make([]any, len(f.fields))
		for i, field := range f.fields {
			targets[i] = grow(rows, i, field, n)
		}
		errs := make([]error, len(readers))
		var running sync.WaitGroup
		for i, r := range readers {
			running.Add(1)
			go func() {
				defer running.Done()
				defer f.damaged(&errs[i], new(bool))
				errs[i] = r.read(rows, targets[r.field], n)
			}()
		}
		running.Wait()
		for i, err := range errs {
			var bad *fault
			if errors.As(err, &bad) {
				return &data.Error{Source: f.path, Row: before + at + bad.row + 1, Column: readers[i].name, Reason: bad.reason, Kind: data.ErrBadRow}
			} else if err != nil {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return &data.Error{Source: f.path, Column: readers[i].name, Reason: err.Error(), Kind: data.ErrBadRow, Cause: err}
			}
		}
		if err := rows.Grown(n); err != nil {
			return err
		}
		at += int64(n)
		if !yield(rows) {
			return nil
		}
	}
	return nil
}
