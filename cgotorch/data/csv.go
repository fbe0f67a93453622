package data

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// CSVOptions are the options of [OpenCSV]. The zero value reads every column of a file with a
// header, separated by commas.
type CSVOptions struct {
	// Fields are the fields of a sample. Field.From names their columns, and may put several columns
	// into one field, such as 8 columns into one float32 [8]. nil means a field for each column. The
	// first 1,000 rows then decide, or fewer, those in the first 512 KiB. All integers make Int64, or
	// Uint64 if Int64 is too small. All numbers make Float32 if it keeps their digits, and else
	// Float64. Others make Text, as do integers that no dtype keeps. A later row that the dtype does
	// not keep is an error.
	Fields []Field

	Comma    byte     // separates the columns. 0 means a comma
	NoHeader bool     // the first row is a sample. Without Fields and Names, a header of numbers only is an error
	Names    []string // names of the columns. nil means the header or, without it, "0", "1" and so on

	NoQuotes bool // a double quote is a character like others. Otherwise it may begin a cell of several lines
	EmptyNaN bool // an empty cell of a floating-point field is NaN. Otherwise it is an error
	MaxRow   int  // bytes above which a row is an error. 0 means 16 MiB. Rows up to 1 MiB are always read
}

// csvStream is a [Stream] of the rows of a file with separated values.
type csvStream struct {
	lines
	o      CSVOptions
	header int64    // bytes before the first row
	names  []string // of the file's columns
	fields []Field
	cells  []cell // for each column of the file
	sizes  []int  // bytes of a sample in each field, 0 for texts
}

// cell says where the cells of one column of the file go.
type cell struct {
	field   int // -1: nowhere
	offset  int // in the field's sample, in bytes
	size    int // bytes of a sample of the field
	text    bool
	dtype   cgotorch.DType
	classes classes // nil for a field without Classes
	guessed bool    // the first rows decided on the dtype
}

// OpenCSV returns the rows of a file with separated values. Quotes are as in package encoding/csv.
// Rows are parsed on all cores. An error of Read is an [*Error], with the row and its column.
// OpenCSV reads the header and, without Fields, the first rows. The file is opened again for each
// epoch. OpenCSV fails with [ErrInvalidOptions] for a column that the file lacks, and with an
// [*Error] for a file that cannot be read.
func OpenCSV(path string, o CSVOptions) (Stream, error) {
	return NewCSV(path, func() (io.ReadCloser, error) { return os.Open(path) }, o)
}

// NewCSV is [OpenCSV] for any source of bytes, such as a compressed file. `open` is called for each
// epoch. `name` names the source in errors.
func NewCSV(name string, open func() (io.ReadCloser, error), o CSVOptions) (Stream, error) {
	c := &csvStream{o: o, lines: lines{name: name, open: open, quotes: !o.NoQuotes, maxRow: o.MaxRow}}
	if c.maxRow == 0 {
		c.maxRow = defaultMaxRow
	}
	if c.o.Comma == 0 {
		c.o.Comma = ','
	}
	switch {
	case open == nil:
		return nil, fmt.Errorf("data: %s: the function `open` is nil: %w", name, ErrInvalidOptions)
	case c.maxRow < 1 || c.maxRow > maxSample:
		return nil, fmt.Errorf("data: CSVOptions.MaxRow is %d; it is out of range: %w", o.MaxRow, ErrInvalidOptions)
	case strings.IndexByte("\"\r\n", c.o.Comma) >= 0 || c.o.Comma >= 0x80:
		return nil, fmt.Errorf("data: CSVOptions.Comma is %q: %w", o.Comma, ErrInvalidOptions)
	}
	c.count, c.parse = c.countRows, c.parseRows
	head, err := c.head()
	if err != nil {
		return nil, err
	}
	if c.fields = o.Fields; c.fields == nil {
		if !o.NoHeader && o.Names == nil && allNumbers(c.names) {
			return nil, fmt.Errorf("data: %s: the first row, %s, has only numbers: set CSVOptions.NoHeader if it is a sample, or CSVOptions.Names if the names are numbers: %w", name, someNames(c.names), ErrInvalidOptions)
		}
		for i, column := range c.names {
			if column == "" {
				return nil, fmt.Errorf("data: %s: column %d has no name, like an index that pandas writes: set CSVOptions.Names, or choose columns by Fields: %w", name, i+1, ErrInvalidOptions)
			}
			if slices.Contains(c.names[:i], column) {
				return nil, fmt.Errorf("data: %s: two columns have the name %q: set CSVOptions.Names, or choose columns by Fields: %w", name, column, ErrInvalidOptions)
			}
		}
		c.fields = c.guess(head)
	}
	if err := c.place(); err != nil {
		return nil, err
	}
	for i := range c.cells {
		c.cells[i].guessed = o.Fields == nil
	}
	return c, nil
}

// Fields returns the fields of a sample.
func (c *csvStream) Fields() []Field { return c.fields }

// Read yields the rows. An error is an [*Error], with the row and its column.
func (c *csvStream) Read(ctx context.Context, from int64) iter.Seq2[*Rows, error] {
	return c.read(ctx, c.header, from)
}

// head reads the first chunk and the names of the columns. It returns the rows of the chunk.
func (c *csvStream) head() ([]byte, error) {
	f, err := c.open()
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	defer f.Close()
	var first []byte
	for data, err := range c.chunks(f, func() []byte { return nil }) {
		if err != nil {
			return nil, err
		}
		first = data
		break
	}
	if bytes.HasPrefix(first, byteOrderMark) {
		first, c.header = first[len(byteOrderMark):], int64(len(byteOrderMark))
	}
	r := c.reader(first)
	row, err := r.Read()
	if err != nil {
		e := c.bad(0, err)
		if err == io.EOF {
			e.Reason = "the file is empty"
		}
		return nil, e
	}
	switch {
	case len(row) > maxColumns:
		return nil, &Error{Source: c.name, Reason: fmt.Sprintf("it has %d columns; at most %d are read", len(row), maxColumns), Kind: ErrTooLarge}
	case c.o.Names != nil && len(c.o.Names) != len(row):
		return nil, fmt.Errorf("data: %s has %d columns, and CSVOptions.Names has %d: %w", c.name, len(row), len(c.o.Names), ErrInvalidOptions)
	}
	for i, name := range row {
		if c.o.NoHeader {
			name = fmt.Sprint(i)
		}
		if c.o.Names != nil {
			name = c.o.Names[i]
		}
		c.names = append(c.names, strings.Clone(name))
	}
	if !c.o.NoHeader {
		c.header += r.InputOffset()
		first = first[r.InputOffset():]
	}
	return first, nil
}

// records reads the rows of a chunk. [csv.Reader] does so.
type records interface {
	Read() ([]string, error)
	InputOffset() int64 // bytes that are read
}

// unquoted are records without quotes.
type unquoted struct {
	chunk []byte
	comma byte
	at    int
}

func (u *unquoted) InputOffset() int64 { return int64(u.at) }

func (u *unquoted) Read() ([]string, error) {
	for u.at < len(u.chunk) {
		line, _, _ := bytes.Cut(u.chunk[u.at:], []byte("\n"))
		u.at = min(u.at+len(line)+1, len(u.chunk))
		if line = bytes.TrimSuffix(line, []byte("\r")); len(line) > 0 {
			return strings.Split(string(line), string(u.comma)), nil
		}
	}
	return nil, io.EOF
}

func (c *csvStream) reader(chunk []byte) records {
	if c.o.NoQuotes {
		return &unquoted{chunk: chunk, comma: c.o.Comma}
	}
	r := csv.NewReader(bytes.NewReader(chunk))
	r.Comma, r.FieldsPerRecord, r.ReuseRecord = rune(c.o.Comma), -1, true
	return r
}

// quotesOff is the cure of a quote that is no quote.
const quotesOff = "CSVOptions.NoQuotes makes a quote a character like others"

// bad returns the error for a row of a chunk that encoding/csv refuses.
func (c *csvStream) bad(row int64, err error) *Error {
	e := &Error{Source: c.name, Row: row, Reason: err.Error(), Kind: ErrBadRow, Cause: err}
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		e.Reason = parse.Err.Error()
		if errors.Is(err, csv.ErrBareQuote) || errors.Is(err, csv.ErrQuote) {
			e.Reason += "; " + quotesOff
		}
	}
	return e
}

// guess returns a field for each column. The first rows decide on the dtypes.
func (c *csvStream) guess(head []byte) []Field {
	const rows = 1000
	kinds := []Field{{DType: cgotorch.Int64}, {DType: cgotorch.Uint64}, {DType: cgotorch.Float32}, {DType: cgotorch.Float64}, {Text: true}}
	fits := make([][]bool, len(c.names)) // for each column and kind; nil before the first row
	r := c.reader(head)
	var memory [8]byte
	for range rows {
		row, err := r.Read()
		if err != nil {
			break
		}
		for i, cell := range row[:min(len(row), len(c.names))] {
			if fits[i] == nil {
				fits[i] = []bool{true, true, true, true, true}
			}
			text := bytes.TrimSpace([]byte(cell))
			for k, kind := range kinds {
				if !fits[i][k] || kind.Text || c.o.EmptyNaN && len(text) == 0 && kind.DType.IsFloat() {
					continue
				}
				fits[i][k] = parse(kind.DType, memory[:], text) && (!kind.DType.IsFloat() || keeps(text, 8*kind.DType.Size()))
			}
		}
	}
	fields := make([]Field, len(c.names))
	for i, name := range c.names {
		fields[i] = kinds[len(kinds)-1]
		if fits[i] != nil {
			fields[i] = kinds[slices.Index(fits[i], true)]
		}
		fields[i].Name = name
	}
	return fields
}

// allNumbers reports whether each name is a number.
func allNumbers(names []string) bool {
	var memory [8]byte
	for _, name := range names {
		if !parse(cgotorch.Float64, memory[:], []byte(strings.TrimSpace(name))) {
			return false
		}
	}
	return true
}

// someNames lists names for an error. Of many it lists the first.
func someNames(names []string) string {
	const most = 5
	var quotes []string
	for _, name := range names[:min(most, len(names))] {
		quotes = append(quotes, quoted([]byte(name)))
	}
	text := strings.Join(quotes, ", ")
	if len(names) > most {
		text += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return text
}

// place finds the columns of the fields.
func (c *csvStream) place() error {
	if err := checkFields(c.fields); err != nil {
		return err
	}
	columns := map[string]int{}
	for i := len(c.names) - 1; i >= 0; i-- {
		columns[c.names[i]] = i
	}
	c.cells = make([]cell, len(c.names))
	for i := range c.cells {
		c.cells[i].field = -1
	}
	c.sizes = make([]int, len(c.fields))
	for i, f := range c.fields {
		from := f.From
		if from == nil {
			from = []string{f.Name}
		}
		elements := 1
		for _, d := range f.Shape {
			elements *= int(d)
		}
		if f.variable() && !f.Text || elements != len(from) {
			return fmt.Errorf("data: %s: the field %s is made of %d columns of one number each: %w", c.name, f, len(from), ErrInvalidOptions)
		}
		if !f.Text {
			c.sizes[i] = f.unit()
		}
		for k, name := range from {
			at, ok := columns[name]
			if !ok {
				return fmt.Errorf("data: %s has no column %q; it has %s: %w", c.name, name, someNames(c.names), ErrInvalidOptions)
			}
			if c.cells[at].field >= 0 {
				return fmt.Errorf("data: %s: the column %q is in two fields, %q and %q: %w", c.name, name, c.fields[c.cells[at].field].Name, f.Name, ErrInvalidOptions)
			}
			c.cells[at] = cell{field: i, offset: k * f.DType.Size(), size: c.sizes[i], text: f.Text, dtype: f.DType, classes: classesOf(f.Classes)}
		}
	}
	return nil
}

// countRows returns the number of rows in a chunk. Empty lines are no rows.
func (c *csvStream) countRows(chunk []byte) (n int64) {
	if c.quotes && bytes.IndexByte(chunk, '"') >= 0 {
		r := c.reader(chunk)
		for {
			if _, err := r.Read(); err != nil && !errors.As(err, new(*csv.ParseError)) {
				return n
			}
			n++
		}
	}
	for len(chunk) > 0 {
		end := bytes.IndexByte(chunk, '\n') + 1
		if end == 0 {
			end = len(chunk)
		}
		if !emptyLine(chunk[:end]) {
			n++
		}
		chunk = chunk[end:]
	}
	return n
}

// emptyLine reports whether encoding/csv skips the line.
func emptyLine(line []byte) bool {
	return string(line) == "\n" || string(line) == "\r\n" || string(line) == "\r"
}

// parseRows makes rows of a chunk.
func (c *csvStream) parseRows(chunk []byte, skip int64) (*Rows, *Error) {
	room := min(bytes.Count(chunk, []byte("\n"))+1, len(chunk)/len(c.cells)+1)
	rows := newRows(c.fields, room)
	if c.quotes && bytes.IndexByte(chunk, '"') >= 0 {
		return rows, c.parseQuoted(rows, chunk, skip)
	}
	return rows, c.parsePlain(rows, chunk, skip)
}

// parseQuoted is for chunks with quotes, which encoding/csv reads.
func (c *csvStream) parseQuoted(rows *Rows, chunk []byte, skip int64) *Error {
	r := c.reader(chunk)
	for row := int64(1); ; row++ {
		record, err := r.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return c.bad(row, err)
		}
		if row <= skip {
			continue
		}
		if len(record) != len(c.cells) {
			return c.misfit(row, len(record))
		}
		rows.addRow(c.sizes)
		for i, text := range record {
			if bad := c.store(rows, i, []byte(text)); bad != nil {
				return rows.without(row, bad)
			}
		}
		rows.endRow()
	}
}

func (c *csvStream) misfit(row int64, columns int) *Error {
	return &Error{Row: row, Kind: ErrBadRow, Reason: fmt.Sprintf("it has %d columns, want %d; give each row a cell for each column", columns, len(c.cells))}
}

// addRow adds one sample of zeros to each field of numbers.
func (r *Rows) addRow(sizes []int) {
	for i, size := range sizes {
		if size > 0 {
			r.columns[i].grow(size)
		}
	}
}

func (r *Rows) endRow() {
	r.n++
	for i := range r.columns {
		r.columns[i].N = r.n
	}
}

// without takes the row out that was added last, because of an error.
func (r *Rows) without(row int64, bad *Error) *Error {
	r.cut()
	bad.Row = row
	return bad
}

// parsePlain is for chunks without quotes.
func (c *csvStream) parsePlain(rows *Rows, b []byte, skip int64) *Error {
	comma, last := c.o.Comma, len(c.cells)-1
	row := int64(0)
	for i := 0; i < len(b); {
		if b[i] == '\n' {
			i++
			continue
		}
		if b[i] == '\r' && (i+1 == len(b) || b[i+1] == '\n') {
			i += 2
			continue
		}
		if row++; row <= skip {
			next := bytes.IndexByte(b[i:], '\n') + 1
			if next == 0 {
				return nil
			}
			i += next
			continue
		}
		rows.addRow(c.sizes)
		for j := 0; ; j++ {
			if j > last {
				line, _, _ := bytes.Cut(b[i:], []byte("\n"))
				return rows.without(row, c.misfit(row, j+1+bytes.Count(line, []byte{comma})))
			}
			end := c.number(rows, j, b, i)
			if end < 0 {
				for end = i; end < len(b) && b[end] != comma && b[end] != '\n'; end++ {
				}
				text := b[i:end]
				if (end == len(b) || b[end] == '\n') && end > i && b[end-1] == '\r' {
					text = text[:len(text)-1]
				}
				if bad := c.store(rows, j, text); bad != nil {
					return rows.without(row, bad)
				}
			}
			if end < len(b) && b[end] == '\r' {
				end++ // a newline follows, or the end
			}
			i = end + 1
			if end < len(b) && b[end] == comma {
				continue
			}
			if j < last {
				return rows.without(row, c.misfit(row, j+1))
			}
			break
		}
		rows.n++
	}
	for i := range rows.columns {
		rows.columns[i].N = rows.n
	}
	return nil
}

// number reads the cell of column j at b[i], if it is a plain number. It returns the place after
// the cell. It returns -1 for all other cells.
func (c *csvStream) number(rows *Rows, j int, b []byte, i int) int {
	cell := &c.cells[j]
	if cell.field < 0 || cell.text || cell.classes != nil {
		return -1
	}
	d, end, ok := scanDecimal(b, i)
	if !ok || end < len(b) && b[end] != c.o.Comma && b[end] != '\n' && (b[end] != '\r' || end+1 < len(b) && b[end+1] != '\n') {
		return -1
	}
	data := rows.columns[cell.field].Data
	memory := data[len(data)-cell.size+cell.offset:]
	switch cell.dtype {
	case cgotorch.Float32:
		v, exact := d.float32()
		if !exact || cell.guessed && d.mantissa >= 1e6 {
			return -1
		}
		putFloat32(memory, v)
	case cgotorch.Float64:
		v, exact := d.float64()
		if !exact {
			return -1
		}
		put(memory, v)
	case cgotorch.Int64:
		if !d.plain || d.mantissa >= 1<<63 {
			return -1
		}
		put(memory, d.int())
	default:
		return -1
	}
	return end
}

// store writes the text of a cell of column j to its place.
func (c *csvStream) store(rows *Rows, j int, text []byte) *Error {
	cell := &c.cells[j]
	if cell.field < 0 {
		return nil
	}
	col := &rows.columns[cell.field]
	if cell.text {
		at := len(col.Data)
		col.grow(len(text))
		copy(col.Data[at:], text)
		col.ends = append(col.ends, len(col.Data))
		return nil
	}
	memory := col.Data[len(col.Data)-cell.size+cell.offset:]
	if cell.classes != nil {
		if fault := cell.classes.put(cell.dtype, memory, text); fault != "" {
			return &Error{Column: c.names[j], Kind: ErrBadRow, Reason: fault}
		}
		return nil
	}
	trimmed := bytes.TrimSpace(text)
	if len(trimmed) == 0 && c.o.EmptyNaN && cell.dtype.IsFloat() {
		trimmed = []byte("NaN")
	}
	if !parse(cell.dtype, memory, trimmed) {
		reason := fmt.Sprintf("%s is no %v", quoted(text), cell.dtype)
		if len(trimmed) > 0 {
			reason += "; write a number, or leave the row out"
		} else {
			reason += "; CSVOptions.EmptyNaN, set in each reader of the file, makes NaN of an empty cell in a floating-point field"
		}
		if cell.guessed {
			reason += fmt.Sprintf("; the first rows decided on %v, and CSVOptions.Fields can give the column another dtype, or Text", cell.dtype)
		}
		return &Error{Column: c.names[j], Kind: ErrBadRow, Reason: reason}
	}
	if cell.guessed && cell.dtype.IsFloat() && len(text) > 6 && !keeps(trimmed, 8*cell.dtype.Size()) {
		return &Error{Column: c.names[j], Kind: ErrBadRow, Reason: fmt.Sprintf("%s has more digits than the %v on which the first rows decided; set CSVOptions.Fields with Field{Name: %q, DType: cgotorch.Float64} or with Text", quoted(text), cell.dtype, c.names[j])}
	}
	return nil
}

// putFloat32 is put for float32, without a call.
func putFloat32(memory []byte, v float32) {
	bits := math.Float32bits(v)
	_ = memory[3]
	memory[0], memory[1], memory[2], memory[3] = byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24)
}
