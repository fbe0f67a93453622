package parquet

import (
	"fmt"
	"math"

	format "github.com/parquet-go/parquet-go"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
)

// column reads one column of a row group.
type column struct {
	cell
	pages format.Pages
	page  format.Page // nil before the first page, and after a page
	at    int64       // rows of the page that are read
	nan   bool        // a null is NaN
	texts []format.Value
}

// fault is a value that does not fit its field. row counts from the first row of a read.
type fault struct {
	row    int64
	reason string
}

func (f *fault) Error() string { return f.reason }

func (c *column) close() {
	format.Release(c.page)
	_ = c.pages.Close()
}

// read reads n rows into the elements of a field, or appends n texts to the field.
func (c *column) read(rows *data.Rows, target any, n int) error {
	for done := 0; done < n; {
		if c.page == nil {
			page, err := c.pages.ReadPage()
			if err != nil {
				return err
			}
			c.page, c.at = page, 0
		}
		k := min(int64(n-done), c.page.NumRows()-c.at)
		part := c.page.Slice(c.at, c.at+k)
		var err error
		if target == nil {
			err = c.readTexts(rows, part, int(k))
		} else {
			err = c.readNumbers(part, target, done, int(k))
		}
		if err != nil {
			if bad, ok := err.(*fault); ok {
				bad.row += int64(done)
			}
			return err
		}
		done += int(k)
		if c.at += k; c.at == c.page.NumRows() {
			format.Release(c.page)
			c.page = nil
		}
	}
	return nil
}

// values reads the next values of a page, with nulls.
func (c *column) values(part format.Page, n int) ([]format.Value, error) {
	if cap(c.texts) < n {
		c.texts = make([]format.Value, n)
	}
	values, reader := c.texts[:n], part.Values()
	for got := 0; got < n; {
		k, err := reader.ReadValues(values[got:])
		if got += k; got < n && (err != nil || k == 0) {
			return nil, fmt.Errorf("a page has %d values, want %d: %w", got, n, err)
		}
	}
	return values, nil
}

func (c *column) readTexts(rows *data.Rows, part format.Page, n int) error {
	values, err := c.values(part, n)
	if err != nil {
		return err
	}
	for i, v := range values {
		if v.IsNull() {
			return &fault{int64(i), "the text is null"}
		}
		rows.AppendBytes(c.field, v.ByteArray())
	}
	return nil
}

// readNumbers writes the n numbers of a page to the target, from sample `done` on.
func (c *column) readNumbers(part format.Page, target any, done, n int) error {
	if part.NumNulls() > 0 {
		return c.readNulls(part, target, done, n)
	}
	values, dictionary := part.Data(), part.Dictionary()
	var places []int32
	if dictionary != nil {
		places, values = values.Int32(), dictionary.Page().Data()
	}
	switch c.kind(part) {
	case format.Boolean:
		flags := make([]int32, n)
		wide, err := c.values(part, n)
		if err != nil {
			return err
		}
		for i, v := range wide {
			if v.Boolean() {
				flags[i] = 1
			}
		}
		return store(c, target, done, n, flags, nil)
	case format.Int32:
		if c.unsigned {
			return store(c, target, done, n, sameBits[uint32](values.Int32()), places)
		}
		return store(c, target, done, n, values.Int32(), places)
	case format.Int64:
		if c.unsigned {
			return store(c, target, done, n, sameBits[uint64](values.Int64()), places)
		}
		return store(c, target, done, n, values.Int64(), places)
	case format.Float:
		return store(c, target, done, n, values.Float(), places)
	case format.Double:
		return store(c, target, done, n, values.Double(), places)
	}
	return fmt.Errorf("a page has the type %v", part.Type())
}

// sameBits returns the unsigned integers with the bits of signed ones.
func sameBits[U uint32 | uint64, S int32 | int64](signed []S) []U {
	unsigned := make([]U, len(signed))
	for i, v := range signed {
		unsigned[i] = U(v)
	}
	return unsigned
}

// kind returns the physical type of a page's values.
func (c *column) kind(part format.Page) format.Kind {
	if d := part.Dictionary(); d != nil {
		return d.Type().Kind()
	}
	return part.Type().Kind()
}

// readNulls is readNumbers for a page with nulls.
func (c *column) readNulls(part format.Page, target any, done, n int) error {
	values, err := c.values(part, n)
	if err != nil {
		return err
	}
	wide, whole := make([]float64, n), make([]int64, n)
	isFloat := false
	for i, v := range values {
		switch v.Kind() {
		case format.Float:
			wide[i], isFloat = float64(v.Float()), true
		case format.Double:
			wide[i], isFloat = v.Double(), true
		case format.Int32:
			if whole[i] = int64(v.Int32()); c.unsigned {
				whole[i] = int64(v.Uint32())
			}
		case format.Int64:
			if whole[i] = v.Int64(); c.unsigned && whole[i] < 0 {
				return &fault{int64(i), fmt.Sprintf("%d in a page with nulls is more than an int64 holds", v.Uint64())}
			}
		case format.Boolean:
			if v.Boolean() {
				whole[i] = 1
			}
		default:
			_, narrow := target.([]float32)
			_, double := target.([]float64)
			if !c.nan || !narrow && !double {
				return &fault{int64(i), "the value is null"}
			}
			wide[i] = math.NaN()
		}
		if !isFloat && !v.IsNull() {
			wide[i] = float64(whole[i])
		}
	}
	switch target.(type) {
	case []float32, []float64:
		return store(c, target, done, n, wide, nil)
	}
	return store(c, target, done, n, whole, nil)
}

type number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

// store writes n numbers to the target. places, unless it is nil, has the place of each.
func store[S number](c *column, target any, done, n int, from []S, places []int32) error {
	switch t := target.(type) {
	case []float32:
		return convert(c, t, done, n, from, places, false)
	case []float64:
		return convert(c, t, done, n, from, places, false)
	case []int64:
		return convert(c, t, done, n, from, places, true)
	case []int32:
		return convert(c, t, done, n, from, places, true)
	case []int16:
		return convert(c, t, done, n, from, places, true)
	case []int8:
		return convert(c, t, done, n, from, places, true)
	case []uint8:
		return convert(c, t, done, n, from, places, true)
	case []uint16:
		return convert(c, t, done, n, from, places, true)
	case []uint32:
		return convert(c, t, done, n, from, places, true)
	case []uint64:
		return convert(c, t, done, n, from, places, true)
	case []bool:
		for i := range n {
			t[(done+i)*c.elements+c.element] = from[i] != 0
		}
		return nil
	}
	return fmt.Errorf("a field of %T cannot be read", target)
}

// convert is store for one type. With exact, a number must not change.
func convert[S, T number](c *column, to []T, done, n int, from []S, places []int32, exact bool) error {
	if places == nil && len(from) < n || places != nil && len(places) < n {
		return fmt.Errorf("a page has fewer values than its header says")
	}
	for i := range n {
		place := i
		if places != nil {
			place = int(places[i])
			if uint(place) >= uint(len(from)) {
				return fmt.Errorf("the value %d of a dictionary of %d", place, len(from))
			}
		}
		v := T(from[place])
		if exact && (S(v) != from[place] || (v < 0) != (from[place] < 0)) {
			return &fault{int64(i), fmt.Sprintf("%v is no %T", from[place], v)}
		}
		to[(done+i)*c.elements+c.element] = v
	}
	return nil
}

// converts reports whether a field of the dtype may hold numbers of a column.
func converts(kind format.Kind, dtype cgotorch.DType) bool {
	switch kind {
	case format.Boolean:
		return dtype == cgotorch.Bool
	case format.Float, format.Double:
		return dtype == cgotorch.Float32 || dtype == cgotorch.Float64
	}
	switch dtype {
	case cgotorch.Bool, cgotorch.Float16, cgotorch.BFloat16, cgotorch.Complex64, cgotorch.Complex128:
		return false
	}
	return true
}

// grow makes room for n samples of a field. It returns their elements, or nil for texts.
func grow(rows *data.Rows, i int, f data.Field, n int) any {
	if f.Text {
		return nil
	}
	switch f.DType {
	case cgotorch.Bool:
		return data.Grow[bool](rows, i, n)
	case cgotorch.Uint8:
		return data.Grow[uint8](rows, i, n)
	case cgotorch.Int8:
		return data.Grow[int8](rows, i, n)
	case cgotorch.Int16:
		return data.Grow[int16](rows, i, n)
	case cgotorch.Uint16:
		return data.Grow[uint16](rows, i, n)
	case cgotorch.Int32:
		return data.Grow[int32](rows, i, n)
	case cgotorch.Uint32:
		return data.Grow[uint32](rows, i, n)
	case cgotorch.Int64:
		return data.Grow[int64](rows, i, n)
	case cgotorch.Uint64:
		return data.Grow[uint64](rows, i, n)
	case cgotorch.Float32:
		return data.Grow[float32](rows, i, n)
	}
	return data.Grow[float64](rows, i, n)
}
