package data

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/streamtorch/streamtorch/internal/pythonjson"
)

// JSONLinesOptions are the options of [OpenJSONLines].
type JSONLinesOptions struct {
	// Fields are the fields of a sample. There must be at least one. The value of a field is the
	// object's value of that name: a number, true or false, a text, or nested arrays of numbers.
	// Other values of the object are left out. A floating-point field takes NaN, Infinity and
	// -Infinity too, which Python writes.
	Fields []Field

	NullNaN bool // a null in a floating-point field is NaN. Otherwise it is an error

	MaxRow int // bytes above which a row is an error. 0 means 16 MiB. Rows up to 1 MiB are always read
}

// jsonLines is a [Stream] of the lines of a file.
type jsonLines struct {
	lines
	fields  []Field
	nan     bool      // a null is NaN
	classes []classes // for each field; nil for a field without Classes
}

// OpenJSONLines returns the lines of a file, each a JSON object. Empty lines are left out. Lines
// are parsed on all cores. An error of Read is an [*Error], with the row and its field. The file is
// opened again for each epoch. OpenJSONLines fails with [ErrInvalidOptions] for fields that are not
// valid, and with the system's error if there is no such file.
func OpenJSONLines(path string, o JSONLinesOptions) (Stream, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return NewJSONLines(path, func() (io.ReadCloser, error) { return os.Open(path) }, o)
}

// NewJSONLines is [OpenJSONLines] for any source of bytes, such as a compressed file. `open` is
// called for each epoch. `name` names the source in errors.
func NewJSONLines(name string, open func() (io.ReadCloser, error), o JSONLinesOptions) (Stream, error) {
	if err := checkFields(o.Fields); err != nil {
		return nil, err
	}
	for _, f := range o.Fields {
		if f.From != nil {
			return nil, fmt.Errorf("data: the field %s has From; JSON lines have arrays for fields of several numbers: %w", f, ErrInvalidOptions)
		}
		if f.Classes != nil && len(f.Shape) > 0 {
			return nil, fmt.Errorf("data: the field %s has Classes and a Shape; JSON lines have one class in a field: %w", f, ErrInvalidOptions)
		}
	}
	if open == nil {
		return nil, fmt.Errorf("data: %s: the function `open` is nil: %w", name, ErrInvalidOptions)
	}
	if o.MaxRow == 0 {
		o.MaxRow = defaultMaxRow
	}
	if o.MaxRow < 1 || o.MaxRow > maxSample {
		return nil, fmt.Errorf("data: JSONLinesOptions.MaxRow is %d; it is out of range: %w", o.MaxRow, ErrInvalidOptions)
	}
	j := &jsonLines{fields: o.Fields, nan: o.NullNaN, lines: lines{name: name, open: open, maxRow: o.MaxRow}}
	for _, f := range o.Fields {
		j.classes = append(j.classes, classesOf(f.Classes))
	}
	j.count, j.parse = countLines, j.parseRows
	return j, nil
}

// Fields returns the fields of a sample.
func (j *jsonLines) Fields() []Field { return j.fields }

// Read yields the lines. An error is an [*Error], with the row and its field.
func (j *jsonLines) Read(ctx context.Context, from int64) iter.Seq2[*Rows, error] {
	return j.read(ctx, 0, from)
}

// eachLine yields the lines of a chunk that are not empty.
func eachLine(chunk []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(chunk) > 0 {
			line, rest, _ := bytes.Cut(chunk, []byte("\n"))
			if line = bytes.TrimSpace(line); len(line) > 0 && !yield(line) {
				return
			}
			chunk = rest
		}
	}
}

func countLines(chunk []byte) (n int64) {
	for range eachLine(chunk) {
		n++
	}
	return n
}

// parseRows makes rows of a chunk.
func (j *jsonLines) parseRows(chunk []byte, skip int64) (*Rows, *Error) {
	rows := newRows(j.fields, 0)
	row := int64(0)
	for line := range eachLine(chunk) {
		if row++; row <= skip {
			continue
		}
		if !utf8.Valid(line) {
			return rows, &Error{Row: row, Reason: "it is no UTF-8: write the file in UTF-8", Kind: ErrBadRow}
		}
		var object map[string]json.RawMessage
		err := json.Unmarshal(line, &object)
		if err != nil && (bytes.Contains(line, []byte("NaN")) || bytes.Contains(line, []byte("Infinity"))) {
			object = nil
			err = json.Unmarshal(markNumbers(line), &object)
		}
		if err != nil {
			return rows, &Error{Row: row, Reason: err.Error() + "; a row is one JSON object on one line", Kind: ErrBadRow, Cause: err}
		}
		for i := range rows.columns {
			c := &rows.columns[i]
			value, ok := object[c.Name]
			reason := "the object has no such value; name the field as the rows do"
			if ok {
				reason = c.appendJSON(value, j.classes[i], j.nan)
			}
			if reason != "" {
				return rows, rows.without(row, &Error{Column: c.Name, Reason: reason, Kind: ErrBadRow})
			}
		}
		rows.endRow()
	}
	return rows, nil
}

// mark begins the text that stands for Python's NaN or Infinity, which are not JSON.
const mark = `"\u0000`

// markNumbers replaces such numbers by marked texts.
func markNumbers(line []byte) []byte {
	return pythonjson.Replace(line, func(number []byte) []byte { return fmt.Appendf(nil, "%s%s\"", mark, number) })
}

// unmarked returns the number of a marked text, and any other value as it is.
func unmarked(value []byte) []byte {
	if number, ok := bytes.CutPrefix(value, []byte(mark)); ok {
		return bytes.TrimSuffix(number, []byte(`"`))
	}
	return value
}

// appendJSON adds a JSON value to the column. With nan, a null is NaN in a floating-point field. It
// returns the fault, or "".
func (c *Column) appendJSON(value json.RawMessage, of classes, nan bool) (fault string) {
	if c.Text || of != nil {
		var text *string
		if err := json.Unmarshal(value, &text); err != nil || text == nil || bytes.HasPrefix(value, []byte(mark)) {
			return quoted(unmarked(value)) + " is no text"
		}
		if strings.ContainsRune(*text, utf8.RuneError) && !bytes.ContainsRune(value, utf8.RuneError) && !bytes.Contains(bytes.ToLower(value), []byte(`\ufffd`)) {
			return quoted(value) + " has one half of a surrogate pair, which is no character"
		}
		at := len(c.Data)
		if of != nil {
			c.grow(c.DType.Size())
			return of.put(c.DType, c.Data[at:], []byte(*text))
		}
		c.grow(len(*text))
		copy(c.Data[at:], *text)
		c.ends = append(c.ends, len(c.Data))
		return ""
	}
	rest, fault := c.appendArray(bytes.TrimSpace(value), c.Shape, nan)
	switch {
	case fault != "":
		return fault
	case len(bytes.TrimSpace(rest)) > 0:
		return quoted(value) + " is no " + c.DType.String()
	}
	if c.variable() {
		c.ends = append(c.ends, len(c.Data))
	}
	return ""
}

// appendArray adds the numbers of valid JSON that begins with an array of the given shape. It
// returns the JSON after the array.
func (c *Column) appendArray(value []byte, shape []int64, nan bool) (rest []byte, fault string) {
	if len(shape) == 0 {
		end := bytes.IndexAny(value, ",] \t\r\n")
		if end < 0 {
			end = len(value)
		}
		at := len(c.Data)
		c.grow(c.DType.Size())
		number := unmarked(value[:end])
		null := string(number) == "null"
		if null && nan && c.DType.IsFloat() {
			number = []byte("NaN")
		}
		if !parse(c.DType, c.Data[at:], number) {
			fault = fmt.Sprintf("%s is no %v", quoted(number), c.DType)
			if null && c.DType.IsFloat() {
				fault += "; JSONLinesOptions.NullNaN makes NaN of null"
			}
			return nil, fault
		}
		return value[end:], ""
	}
	if len(value) == 0 || value[0] != '[' {
		return nil, fmt.Sprintf("%s is no array, want shape %v", quoted(value), c.Shape)
	}
	value = bytes.TrimSpace(value[1:])
	for n := int64(0); ; n++ {
		if len(value) > 0 && value[0] == ']' {
			if shape[0] != Variable && n != shape[0] {
				return nil, fmt.Sprintf("an array has %d values, want shape %v", n, c.Shape)
			}
			return value[1:], ""
		}
		if n == shape[0] {
			return nil, fmt.Sprintf("an array has more than %d values, want shape %v", n, c.Shape)
		}
		if value, fault = c.appendArray(value, shape[1:], nan); fault != "" {
			return nil, fault
		}
		value = bytes.TrimSpace(value)
		if len(value) > 0 && value[0] == ',' {
			value = bytes.TrimSpace(value[1:])
		} else if len(value) == 0 || value[0] != ']' {
			return nil, fmt.Sprintf("a number is no %v", c.DType)
		}
	}
}
