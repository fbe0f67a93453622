package data

import (
	"context"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"iter"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestColumn_Tensors(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *cgotorch.Exec) {
		var half []cgotorch.BFloat16Bits
		for i := range 6 {
			half = append(half, cgotorch.ToBFloat16(float32(i+1)))
		}
		c := Of("h", half, 2)
		if c.N != 3 || c.DType != cgotorch.BFloat16 || !slices.Equal(c.Shape, []int64{2}) {
			t.Errorf("the column is %s of %d", c.Field, c.N)
		}
		torchtest.Equal(t, x, x.To(c.Tensor(x), cgotorch.Float32), []float32{1, 2, 3, 4, 5, 6}, 3, 2)
	})
}

// A sample of every type goes into rows and comes back.
func TestRows_Samples(t *testing.T) {
	sample := Sample{
		"f32": float32(1.5), "f64": []float64{1, 2}, "i8": int8(-3), "u16": []uint16{4, 5}, "u64": uint64(1 << 63), "b": true, "c": complex64(1i),
		"h": cgotorch.ToFloat16(2), "bf": []cgotorch.BFloat16Bits{cgotorch.ToBFloat16(3)}, "s": "text", "i32": int32(7), "i16": int16(8),
		"u8": []uint8{1, 2, 3}, "u32": uint32(9), "i64": int64(-10), "z": complex(1, 2),
	}
	f := func(name string, d cgotorch.DType, shape ...int64) Field {
		return Field{Name: name, DType: d, Shape: shape}
	}
	rows := newRows([]Field{
		f("f32", cgotorch.Float32), f("f64", cgotorch.Float64, 2), f("i8", cgotorch.Int8), f("u16", cgotorch.Uint16, Variable), f("u64", cgotorch.Uint64),
		f("b", cgotorch.Bool), f("c", cgotorch.Complex64), f("h", cgotorch.Float16), f("bf", cgotorch.BFloat16, Variable), {Name: "s", Text: true},
		f("i32", cgotorch.Int32), f("i16", cgotorch.Int16), f("u8", cgotorch.Uint8, 3), f("u32", cgotorch.Uint32), f("i64", cgotorch.Int64), f("z", cgotorch.Complex128),
	}, 0)
	for range 3 {
		if err := rows.add(sample); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		if got, want := fmt.Sprint(rows.Sample(i)), fmt.Sprint(sample); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	for name, v := range map[string]any{"f32": int64(1), "f64": []float64{1}, "i8": 300, "s": 1, "b": nil, "u8": []uint8{1}, "u16": "x"} {
		bad := Sample{}
		for k, v := range sample {
			bad[k] = v
		}
		bad[name] = v
		torchtest.WantError(t, rows.add(bad), ErrBadRow, name)
		if rows.Len() != 3 || fmt.Sprint(rows.Sample(2)) != fmt.Sprint(sample) || len(rows.columns[0].Data) != 12 {
			t.Errorf("a bad %s has changed the rows", name)
		}
	}
	if err := rows.add(sample); err != nil || fmt.Sprint(rows.Sample(3)) != fmt.Sprint(sample) {
		t.Errorf("after bad samples: %v, %v", err, rows.Sample(3))
	}
}

func TestNewTable_Refused(t *testing.T) {
	for want, columns := range map[string][]Column{
		"no fields":             nil,
		"has 3 samples":         {Of("a", []int64{1, 2}), Of("b", []int64{1, 2, 3})},
		"two fields":            {Of("a", []int64{1}), Of("a", []int64{1})},
		"has 12 bytes":          {Of("a", []float32{1, 2, 3}, 2)},
		"with OfRows":           {Of("a", []float32{1, 2, 3}, Variable)},
		"a field needs a name":  {Of("", []float32{1})},
		"[0] is out of range":   {Of("a", []float32{}, 0)},
		"[-5 2] is out of":      {Of("a", []float32{}, -5, 2)},
		"is out of range; a sa": {Of("a", []float32{}, 1<<20, 1<<20)},
	} {
		_, err := NewTable(columns...)
		torchtest.WantError(t, err, ErrInvalidOptions, want)
	}
}

// An []int becomes int64, in memory that is shared for Of and copied for OfRows.
func TestOf_Int(t *testing.T) {
	labels := []int{3, -1}
	of, rows := Of("label", labels), OfRows("tokens", [][]int{{1, 2}, {-3}})
	labels[1] = 7
	for _, c := range []Column{of, rows} {
		if c.DType != cgotorch.Int64 || c.N != 2 {
			t.Errorf("%s has %d samples", c.Field, c.N)
		}
	}
	if got := fmt.Sprint(Values[int64](of), Values[int64](rows)); got != "[3 7] [1 2 -3]" {
		t.Error(got)
	}
}

func TestTable_Slice(t *testing.T) {
	points := []float32{0, 1, 2, 3, 4, 5, 6, 7}
	table, err := NewTable(Of("point", points, 2), OfRows("tokens", [][]int64{{1}, {2, 3}, {}, {4, 5}}), Of("name", []string{"a", "bc", "", "d"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		from, to int
		samples  string
	}{
		{0, 4, fmt.Sprint(rowsOf(t, table))},
		{1, 3, "[map[name:bc point:[2 3] tokens:[2 3]] map[name: point:[4 5] tokens:[]]]"},
		{3, 4, "[map[name:d point:[6 7] tokens:[4 5]]]"},
		{4, 4, "[]"},
	} {
		part := cgotorch.Must(table.Slice(want.from, want.to))
		if got := fmt.Sprint(rowsOf(t, part)); got != want.samples || part.Len() != want.to-want.from {
			t.Errorf("%d to %d: %d samples: %s", want.from, want.to, part.Len(), got)
		}
		for _, c := range part.rows.columns {
			must.Do(t, c.check())
		}
	}
	part, _ := table.Slice(1, 4)
	points[4] = 9
	if part, err = part.Slice(1, 2); err != nil || fmt.Sprint(rowsOf(t, part)) != "[map[name: point:[9 5] tokens:[]]]" {
		t.Errorf("a slice of a slice: %v, %v", err, rowsOf(t, part))
	}
	for _, bad := range [][2]int{{-1, 2}, {3, 2}, {0, 5}} {
		_, err := table.Slice(bad[0], bad[1])
		torchtest.WantError(t, err, ErrInvalidOptions, "of a table of 4: want 0 <= from <= to <= 4")
	}
}

func rowsOf(t *testing.T, table *Table) (samples []Sample) {
	for i := range table.Len() {
		s := cgotorch.Must(table.Sample(i))
		samples = append(samples, s)
	}
	return samples
}

// misfit is a stream whose rows have another dtype than its field.
type misfit struct{}

func (misfit) Fields() []Field { return []Field{{Name: "id", DType: cgotorch.Int64}} }

func (misfit) Read(context.Context, int64) iter.Seq2[*Rows, error] {
	return func(yield func(*Rows, error) bool) { yield(RowsOf(Of("id", []int32{1}))) }
}

func TestRowsOf(t *testing.T) {
	rows, err := RowsOf(Of("id", []int64{1, 2}), OfRows("list", [][]int32{{1}, {2, 3}}), Of("name", []string{"a", "bc"}))
	if err != nil || rows.Len() != 2 || fmt.Sprint(rows.Sample(1)) != "map[id:2 list:[2 3] name:bc]" {
		t.Errorf("got %v, %v", rows, err)
	}
	_, err = RowsOf(Of("id", []int64{1, 2}), Of("name", []string{"a"}))
	torchtest.WantError(t, err, ErrBadRow, "column \"name\" text has 1 samples, and the first column 2")
	_, err = RowsOf(Of("pair", []int64{1, 2, 3}, 2))
	torchtest.WantError(t, err, ErrBadRow, "has 24 bytes")

	const want = "and the stream has"
	_, err = ReadTable(t.Context(), misfit{}, 0)
	torchtest.WantError(t, err, ErrBadRow, want)
	loader, err := NewStreamLoader(misfit{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer loader.Close()
	for _, err := range loader.Epoch(t.Context()) {
		torchtest.WantError(t, err, ErrBadRow, want)
	}
}
