package data

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Standardizer gives fields the mean 0 and the standard deviation 1 of training data, by the names
// of the fields. Each element of a sample has its own mean and deviation. [NewStandardizer] and
// [ReadStandardizer] make one. Its numbers can be written as JSON. Keep them with the model.
type Standardizer map[string]Moments

// Moments are the mean and the standard deviation of each element of a field. The deviation is that
// of all samples, with N in the denominator, as scikit-learn's StandardScaler has it. An element
// that is the same in all samples has the deviation 1.
type Moments struct {
	Mean []float64 `json:"mean"`
	Std  []float64 `json:"std"`
}

// NewStandardizer computes the moments of some fields of the training data. The fields are of
// Float32 or Float64, and their samples have one shape. NewStandardizer fails with
// [ErrInvalidOptions] for any other field, and for no field. It fails with [ErrBadRow] for a NaN
// or an infinite value, and names its row and column.
func NewStandardizer(train *Table, fields ...string) (Standardizer, error) {
	sums, err := newMomentSums(train.Fields(), fields)
	if err != nil {
		return nil, err
	}
	if err := sums.add(&train.rows, "the table"); err != nil {
		return nil, err
	}
	return sums.finish()
}

// ReadStandardizer is [NewStandardizer] of a stream, which it reads to its end.
func ReadStandardizer(ctx context.Context, train Stream, fields ...string) (Standardizer, error) {
	sums, err := newMomentSums(train.Fields(), fields)
	if err != nil {
		return nil, err
	}
	for rows, err := range readRows(ctx, train, 0) {
		if err == nil {
			err = sums.add(rows, nameOf(train))
		}
		if err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return sums.finish()
}

// Table returns a table with standardized fields. The other fields share t's memory. It fails as
// [NewStandardizer] does, and if a field of t has another number of elements.
func (s Standardizer) Table(t *Table) (*Table, error) {
	columns := slices.Clone(t.rows.columns)
	for _, name := range slices.Sorted(maps.Keys(s)) {
		i, err := realField(t.Fields(), name)
		if err != nil {
			return nil, err
		}
		c, m := &columns[i], s[name]
		values := make([]float64, c.N*c.elements())
		for k := range values {
			values[k] = c.real(k)
		}
		if k, err := m.apply(c.Field, c.elements(), values); err != nil {
			err.Source, err.Row = "the table", int64(k/max(len(m.Mean), 1))+1
			return nil, err
		}
		c.Data = nil
		c.appendFloats(values)
	}
	return NewTable(columns...)
}

// Map returns a sample with standardized fields. It is for the field Map of a loader's [Options].
// It fails as [Standardizer.Table] does.
func (s Standardizer) Map(sample Sample) (Sample, error) {
	out := maps.Clone(sample)
	for name, m := range s {
		var values []float64
		f := Field{Name: name, DType: cgotorch.Float64}
		switch v := sample[name].(type) {
		case float32:
			values = []float64{float64(v)}
		case []float32:
			values = make([]float64, len(v))
			for i := range v {
				values[i] = float64(v[i])
			}
		case float64:
			values = []float64{v}
		case []float64:
			values = slices.Clone(v)
		default:
			return nil, fmt.Errorf("data: field %q: the sample's value is a %T, and only float32 and float64 are standardized: %w", name, v, ErrBadRow)
		}
		if _, err := m.apply(f, len(values), values); err != nil {
			err.Source = "the sample"
			return nil, err
		}
		switch sample[name].(type) {
		case float32:
			out[name] = float32(values[0])
		case float64:
			out[name] = values[0]
		case []float64:
			out[name] = values
		default:
			low := make([]float32, len(values))
			for i, v := range values {
				low[i] = float32(v)
			}
			out[name] = low
		}
	}
	return out, nil
}

// apply standardizes the values of whole samples. Each sample has `elements` values. If it fails,
// it returns the index of the bad value.
func (m Moments) apply(f Field, elements int, values []float64) (place int, err *Error) {
	n := len(m.Mean)
	if n == 0 || n != len(m.Std) || n != elements {
		return 0, &Error{Column: f.Name, Kind: ErrBadRow, Reason: fmt.Sprintf("it has %d elements, and the Standardizer has %d; use the fields of the training data", elements, n)}
	}
	for k := range values {
		if bad := notFinite(f, k%n, values[k]); bad != nil {
			return k, bad
		}
		values[k] = (values[k] - m.Mean[k%n]) / m.Std[k%n]
	}
	return 0, nil
}

// momentSums adds up moments, by Welford's method.
type momentSums struct {
	fields []int // places of the fields
	all    []Field
	n      int64
	sums   []momentSum
}

// momentSum holds, for each element of a field, its first value, the mean of the differences from
// the first value, and the sum of the squared differences from the mean. The differences from the
// first value keep the sums exact where all values are large.
type momentSum struct{ first, mean, squares []float64 }

func newMomentSums(all []Field, names []string) (*momentSums, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("data: there are no fields to standardize; name some of %s: %w", someNames(fieldNames(all)), ErrInvalidOptions)
	}
	s := &momentSums{all: all}
	for _, name := range names {
		i, err := realField(all, name)
		if err != nil {
			return nil, err
		}
		n := all[i].elements()
		s.fields = append(s.fields, i)
		s.sums = append(s.sums, momentSum{make([]float64, n), make([]float64, n), make([]float64, n)})
	}
	return s, nil
}

// realField returns the place of a field that can be standardized.
func realField(all []Field, name string) (int, error) {
	i := fieldIndex(all, name)
	if i < 0 {
		return 0, fmt.Errorf("data: there is no field %q to standardize; there are %s: %w", name, someNames(fieldNames(all)), ErrInvalidOptions)
	}
	if f := all[i]; f.variable() || f.DType != cgotorch.Float32 && f.DType != cgotorch.Float64 {
		return 0, fmt.Errorf("data: field %s cannot be standardized; read it as Float32, with samples of one shape: %w", f, ErrInvalidOptions)
	}
	return i, nil
}

func (s *momentSums) add(rows *Rows, source string) error {
	for k := range rows.n {
		s.n++
		for i, place := range s.fields {
			c, m := &rows.columns[place], &s.sums[i]
			elements := len(m.mean)
			for e := range elements {
				v := c.real(k*elements + e)
				if bad := notFinite(s.all[place], e, v); bad != nil {
					bad.Source, bad.Row = source, s.n
					return bad
				}
				if s.n == 1 {
					m.first[e] = v
				}
				v -= m.first[e]
				from := v - m.mean[e]
				m.mean[e] += from / float64(s.n)
				m.squares[e] += from * (v - m.mean[e])
			}
		}
	}
	return nil
}

func (s *momentSums) finish() (Standardizer, error) {
	if s.n == 0 {
		return nil, fmt.Errorf("data: there are no samples to standardize by: %w", ErrInvalidOptions)
	}
	out := make(Standardizer, len(s.fields))
	for i, place := range s.fields {
		m := s.sums[i]
		std := make([]float64, len(m.mean))
		for e := range std {
			if std[e] = math.Sqrt(m.squares[e] / float64(s.n)); std[e] == 0 {
				std[e] = 1
			}
			m.mean[e] += m.first[e]
			if math.IsInf(std[e], 0) || math.IsNaN(std[e]) || math.IsInf(m.mean[e], 0) {
				return nil, fmt.Errorf("data: column %q: its values are too large for a standard deviation; divide them first: %w", elementName(s.all[place], e), ErrBadRow)
			}
		}
		out[s.all[place].Name] = Moments{Mean: m.mean, Std: std}
	}
	return out, nil
}

// notFinite returns the error of a value that is no finite number, or nil.
func notFinite(f Field, element int, v float64) *Error {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		return nil
	}
	return &Error{Column: elementName(f, element), Kind: ErrBadRow, Reason: fmt.Sprintf("it is %v, which cannot be standardized; leave the row out, or put a number in its place", v)}
}

// elementName returns the name of the column that an element of a field is from.
func elementName(f Field, element int) string {
	switch {
	case element < len(f.From):
		return f.From[element]
	case f.elements() > 1 || element > 0:
		return fmt.Sprintf("%s[%d]", f.Name, element)
	}
	return f.Name
}

// elements returns the number of elements of one sample.
func (f Field) elements() int { return f.unit() / f.DType.Size() }

// real returns an element of a column of Float32 or Float64.
func (c *Column) real(i int) float64 {
	if c.DType == cgotorch.Float64 {
		return view[float64](c.Data)[i]
	}
	return float64(view[float32](c.Data)[i])
}

func fieldNames(fields []Field) []string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.Name
	}
	return all
}
