// Package parquet reads Parquet files as a [data.Stream].
//
// It is a package of its own, so that only programs that read Parquet get its modules. The decoder
// is that of Apache Arrow. Of the decoders for Go it alone reads right what pyarrow, DuckDB, Polars
// and fastparquet write: every encoding of every type, in both versions of pages.
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

	format "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

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

// parquetFile is a [data.Stream] of the rows of a Parquet file.
type parquetFile struct {
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

// Open returns the rows of a Parquet file. It reads columns of booleans, integers,
// floating-point numbers and texts, compressed or not, on all cores. A date or a time is the
// integer that the file holds: days, or the file's unit of time. Columns of other types cannot be
// read: decimals, INT96, fixed-length bytes other than float16, lists and nested columns. Nor can
// columns that are encrypted, or compressed by LZO or Hadoop's LZ4. Read holds one page of each
// column in memory. A page has the size that the file says, which is less than 2 GiB.
//
// Open reads the description of the file. The file is opened again for each epoch. Open fails with
// [data.ErrInvalidOptions] for a column that the file lacks or that cannot be read. It fails with
// an [*data.Error] for a file that is no Parquet file.
func Open(path string, o Options) (data.Stream, error) {
	f := &parquetFile{path: path, o: o, fields: o.Fields}
	err := f.with(func(opened *file.Reader) error {
		columns := columnsOf(opened)
		if f.fields == nil {
			for _, name := range columns.names {
				c := columns.of[name]
				if c.unreadable != "" {
					return fmt.Errorf("data: %s: the column %q cannot be read, because it %s; name the others in Options.Fields: %w", path, name, c.unreadable, data.ErrInvalidOptions)
				}
				f.fields = append(f.fields, ownField(c.Column))
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
func (f *parquetFile) with(use func(*file.Reader) error, foreign *bool) (err error) {
	source, err := os.Open(f.path)
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	defer source.Close()
	defer f.damaged(&err, foreign)
	info, err := source.Stat()
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	var opened *file.Reader
	if err = checkFooter(source, info.Size()); err == nil {
		properties := format.NewReaderProperties(nil)
		properties.BufferedStreamEnabled, properties.BufferSize = true, 1<<16
		opened, err = file.NewParquetReader(source, file.WithReadProps(properties))
	}
	if err != nil {
		return &data.Error{Source: f.path, Reason: err.Error(), Kind: data.ErrBadRow, Cause: err}
	}
	return use(opened)
}

// damaged makes an error of a panic of the decoder, which checks files only in part.
func (f *parquetFile) damaged(err *error, foreign *bool) {
	if *foreign {
		return
	}
	if p := recover(); p != nil {
		*err = &data.Error{Source: f.path, Reason: fmt.Sprintf("the file is damaged: %v", p), Kind: data.ErrBadRow}
	}
}

// columns are the columns of a file that are not inside another one.
type columns struct {
	names []string
	of    map[string]*fileColumn
}

// fileColumn is a column of a file. Of a nested column it is the first leaf.
type fileColumn struct {
	*schema.Column
	index      int
	unreadable string // why the column cannot be read, such as "is a list"
}

func columnsOf(opened *file.Reader) columns {
	all := columns{of: map[string]*fileColumn{}}
	description := opened.MetaData().Schema
	for i := range description.NumColumns() {
		root := description.ColumnRoot(i)
		c := &fileColumn{description.Column(i), i, ""}
		switch before := all.of[root.Name()]; {
		case before == nil:
			all.names = append(all.names, root.Name())
			all.of[root.Name()] = c
			c.unreadable = unreadable(opened, c, root)
		case root.Type() == schema.Primitive:
			before.unreadable = "is there twice"
		}
	}
	return all
}

// unreadable says why a column has not one number or text a row. It returns "" for the others.
func unreadable(opened *file.Reader, c *fileColumn, root schema.Node) string {
	if root.Type() != schema.Primitive {
		return "is nested, or a list"
	}
	if c.MaxRepetitionLevel() > 0 {
		return "is a list"
	}
	switch logical := c.LogicalType().(type) {
	case schema.DecimalLogicalType:
		return "is a decimal" // the numbers lack their scale
	case schema.Float16LogicalType, schema.NoLogicalType, schema.UnknownLogicalType:
	default:
		if c.PhysicalType() == format.Types.FixedLenByteArray {
			return fmt.Sprintf("has the type %v", logical)
		}
	}
	switch kind := c.PhysicalType(); {
	case kind == format.Types.Int96:
		return "has the type INT96: let its writer store times as INT64"
	case kind == format.Types.FixedLenByteArray && !isHalf(c.Column):
		return "has the type FIXED_LEN_BYTE_ARRAY"
	}
	for g := range opened.NumRowGroups() {
		chunk, err := opened.MetaData().RowGroup(g).ColumnChunk(c.index)
		switch {
		case err != nil || chunk.CryptoMetadata() != nil:
			return "is encrypted"
		case chunk.FilePath() != "":
			return fmt.Sprintf("lies in another file, %q", chunk.FilePath())
		case chunk.Compression() == compress.Codecs.Lz4 || chunk.Compression() == compress.Codecs.Lzo:
			return fmt.Sprintf("is compressed by %v: let its writer use ZSTD, or LZ4_RAW", chunk.Compression())
		case isHalf(c.Column) && slices.Contains(chunk.Encodings(), format.Encodings.DeltaByteArray):
			return "is encoded by DELTA_BYTE_ARRAY: let its writer use PLAIN"
		}
	}
	return ""
}

// isUnsigned reports whether the bits of a column's integers are those of unsigned ones.
func isUnsigned(c *schema.Column) bool {
	whole, ok := c.LogicalType().(schema.IntLogicalType)
	return ok && !whole.IsSigned()
}

// isHalf reports whether a column holds float16 numbers.
func isHalf(c *schema.Column) bool {
	_, ok := c.LogicalType().(schema.Float16LogicalType)
	return ok && c.PhysicalType() == format.Types.FixedLenByteArray && c.TypeLength() == 2
}

// ownField returns the field of a column's own type.
func ownField(c *schema.Column) data.Field {
	f := data.Field{Name: c.Name()}
	switch c.PhysicalType() {
	case format.Types.Boolean:
		f.DType = cgotorch.Bool
	case format.Types.Int32:
		if f.DType = cgotorch.Int32; isUnsigned(c) {
			f.DType = cgotorch.Int64
		}
	case format.Types.Int64:
		if f.DType = cgotorch.Int64; isUnsigned(c) {
			f.DType = cgotorch.Uint64
		}
	case format.Types.Float, format.Types.FixedLenByteArray:
		f.DType = cgotorch.Float32
	case format.Types.Double:
		f.DType = cgotorch.Float64
	default:
		f.Text = true
	}
	return f
}

// place finds the columns of the fields.
func (f *parquetFile) place(columns columns) error {
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
			c := columns.of[name]
			switch {
			case c == nil:
				return refuse("there is no column %q; it has %s", name, someNames(columns))
			case c.unreadable != "":
				return refuse("the column %q cannot be read, because it %s", name, c.unreadable)
			case field.Text != (c.PhysicalType() == format.Types.ByteArray) || !field.Text && !converts(c.PhysicalType(), field.DType):
				return refuse("the column %q has the type %v, and its field is %s", name, c.PhysicalType(), field)
			}
			f.cells = append(f.cells, cell{c.index, name, i, k, elements, isUnsigned(c.Column)})
		}
	}
	return nil
}

// someNames lists the names of readable columns for an error. Of many it lists the first.
func someNames(columns columns) string {
	const most = 5
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(columns.of)), func(name string) bool { return columns.of[name].unreadable != "" })
	text := fmt.Sprintf("%.40q", names[:min(most, len(names))])
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return text
}

// Fields returns the fields of a sample.
func (f *parquetFile) Fields() []data.Field { return f.fields }

// Read yields the rows. An error is a [*data.Error], with the row and its column.
func (f *parquetFile) Read(ctx context.Context, from int64) iter.Seq2[*data.Rows, error] {
	return func(yield func(*data.Rows, error) bool) {
		left, inBody := false, false
		err := f.with(func(opened *file.Reader) error {
			row := int64(0) // of the file, before the row group
			for g := range opened.NumRowGroups() {
				group := opened.RowGroup(g)
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
func (f *parquetFile) readGroup(ctx context.Context, group *file.RowGroupReader, before, skip int64, yield func(*data.Rows) bool) error {
	readers := make([]*column, 0, len(f.cells))
	defer func() {
		for _, r := range readers {
			_ = r.chunk.Close()
		}
	}()
	for _, c := range f.cells {
		chunk, err := group.Column(c.column)
		if err != nil {
			return &data.Error{Source: f.path, Column: c.name, Reason: err.Error(), Kind: data.ErrBadRow, Cause: err}
		}
		readers = append(readers, &column{cell: c, chunk: chunk, skip: skip, nan: f.o.NullNaN})
	}
	for at := skip; at < group.NumRows(); {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := int(min(blockRows, group.NumRows()-at))
		rows, err := f.readBlock(readers, n, before+at)
		if err != nil {
			return err
		}
		at += int64(n)
		if !yield(rows) {
			return nil
		}
	}
	return nil
}

// readBlock reads the next n rows, of which the first is row `first` of the file, counted from 0.
func (f *parquetFile) readBlock(readers []*column, n int, first int64) (*data.Rows, error) {
	targets, columns := make([]any, len(f.fields)), make([]data.Column, len(f.fields))
	for i, field := range f.fields {
		targets[i], columns[i] = memoryFor(field, n)
	}
	errs := make([]error, len(readers))
	var running sync.WaitGroup
	for i, r := range readers {
		running.Add(1)
		go func() {
			defer running.Done()
			defer func() {
				if p := recover(); p != nil {
					errs[i] = fmt.Errorf("the file is damaged: %v", p)
				}
			}()
			errs[i] = r.read(targets[r.field], n)
		}()
	}
	running.Wait()
	for i, err := range errs {
		var bad *fault
		if errors.As(err, &bad) {
			return nil, &data.Error{Source: f.path, Row: first + bad.row + 1, Column: readers[i].name, Reason: bad.reason, Kind: data.ErrBadRow}
		} else if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, &data.Error{Source: f.path, Column: readers[i].name, Reason: err.Error(), Kind: data.ErrBadRow, Cause: err}
		}
	}
	for i, target := range targets {
		if texts, ok := target.(*[]string); ok {
			columns[i] = data.Of(f.fields[i].Name, *texts)
		}
	}
	return data.RowsOf(columns...)
}
