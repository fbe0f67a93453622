package parquet

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	format "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// writeJSON writes rows, each a JSON object, in row groups of 40,000.
func writeJSON(t testing.TB, path string, fields []arrow.Field, rows string, options ...format.WriterProperty) {
	t.Helper()
	record, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrow.NewSchema(fields, nil), strings.NewReader(rows))
	must.Do(t, err)
	defer record.Release()
	table := array.NewTableFromRecords(record.Schema(), []arrow.RecordBatch{record})
	defer table.Release()
	var whole bytes.Buffer
	must.Do(t, pqarrow.WriteTable(table, &whole, 40_000, format.NewWriterProperties(options...), pqarrow.DefaultWriterProps()))
	must.Do(t, os.WriteFile(path, whole.Bytes(), 0o666))
}

// write writes n rows in several row groups. Rows in `nulls` have no b.
func write(t testing.TB, n int, nulls ...int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.parquet")
	var rows strings.Builder
	for i := range n {
		b := fmt.Sprint(float64(i%7) / 2)
		if slices.Contains(nulls, i) {
			b = "null"
		}
		comma := "["
		if i > 0 {
			comma = ","
		}
		fmt.Fprintf(&rows, `%s{"a":%d,"b":%s,"label":%d,"small":%d,"on":%t,"name":"n%d","list":[1]}`, comma, i, b, i%10, i%300, i%3 == 0, i%5)
	}
	writeJSON(t, path, []arrow.Field{
		{Name: "a", Type: arrow.PrimitiveTypes.Float32}, {Name: "b", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "label", Type: arrow.PrimitiveTypes.Int64}, {Name: "small", Type: arrow.PrimitiveTypes.Int32},
		{Name: "on", Type: arrow.FixedWidthTypes.Boolean}, {Name: "name", Type: arrow.BinaryTypes.String}, {Name: "list", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)},
	}, rows.String()+"]", format.WithDataPageSize(10_000), format.WithDictionaryFor("a", false), format.WithCompressionFor("label", compress.Codecs.Snappy),
		format.WithCompressionFor("small", compress.Codecs.Zstd))
	return path
}

var fields = []data.Field{
	{Name: "x", DType: cgotorch.Float32, Shape: []int64{2}, From: []string{"b", "a"}}, {Name: "label", DType: cgotorch.Int32},
	{Name: "small", DType: cgotorch.Int64}, {Name: "on", DType: cgotorch.Bool}, {Name: "name", Text: true},
}

// Every row comes once, with its values, from any row on.
func TestFile_Rows(t *testing.T) {
	torchtest.CheckLeaks(t)
	const n = 100_000
	f := must.Get(Open(write(t, n), Options{Fields: fields}))(t)
	for _, from := range []int{0, 1, 39_999, 40_000, 77_777, n} {
		i := from
		for rows, err := range f.Read(context.Background(), int64(from)) {
			must.Do(t, err)
			for k := range rows.Len() {
				if k%97 == 0 || rows.Len()-k < 2 {
					want := fmt.Sprint(data.Sample{"x": []float32{float32(i%7) / 2, float32(i)}, "label": i % 10, "small": i % 300, "on": i%3 == 0, "name": fmt.Sprint("n", i%5)})
					if got := fmt.Sprint(rows.Sample(k)); got != want {
						t.Fatalf("row %d is %s, want %s", i, got, want)
					}
				}
				i++
			}
		}
		if i != n {
			t.Errorf("from %d: %d rows", from, i)
		}
	}
	for range f.Read(context.Background(), 0) {
		break
	}
}

func TestFile_Errors(t *testing.T) {
	torchtest.CheckLeaks(t)
	path := write(t, 1000, 500)
	last := func(o Options) (err error) {
		f, err := Open(path, o)
		if err != nil {
			return err
		}
		for _, err = range f.Read(context.Background(), 0) {
		}
		return err
	}
	torchtest.WantError(t, last(Options{Fields: fields}), data.ErrBadRow, `a.parquet: row 501, column "b": the value is null`)
	torchtest.WantError(t, last(Options{Fields: []data.Field{{Name: "small", DType: cgotorch.Uint8}}}), data.ErrBadRow, `row 257, column "small": 256 is no uint8`)
	for want, o := range map[string]Options{
		`"list" cannot be read`:                       {},
		`no column "lists"; it has ["a" "b"`:          {Fields: []data.Field{{Name: "lists", DType: cgotorch.Int64}}},
		`"list" cannot be read, because it is nested`: {Fields: []data.Field{{Name: "list", DType: cgotorch.Int64}}},
		`the column "a" has`:                          {Fields: []data.Field{{Name: "a", DType: cgotorch.Int64}}},
		`the column "name" has`:                       {Fields: []data.Field{{Name: "name", DType: cgotorch.Int64}}},
		"made of 1 columns":                           {Fields: []data.Field{{Name: "a", DType: cgotorch.Float32, Shape: []int64{3}}}},
		`is made of 1 columns of on`:                  {Fields: []data.Field{{Name: "a", DType: cgotorch.Float32, Shape: []int64{data.Variable}}}},
		"which only CSV and JSONL":                    {Fields: []data.Field{{Name: "name", DType: cgotorch.Int64, Classes: []string{"x"}}}},
	} {
		torchtest.WantError(t, last(o), data.ErrInvalidOptions, want)
	}
	f := must.Get(Open(path, Options{Fields: []data.Field{{Name: "b", DType: cgotorch.Float32}}, NullNaN: true}))(t)
	table := must.Get(data.ReadTable(context.Background(), f, 0))(t)
	if b := data.Values[float32](table.Column("b")); !math.IsNaN(float64(b[500])) || b[501] != float32(501%7)/2 {
		t.Errorf("rows 500 and 501 are %v, %v", b[500], b[501])
	}
}

// FuzzFile reads damaged files. They end with an error or with rows, not with a panic.
func FuzzFile(f *testing.F) {
	whole := must.Get(os.ReadFile(write(f, 30)))(f)
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("PAR1PAR1"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "b.parquet")
		must.Do(t, os.WriteFile(path, content, 0o666))
		file, err := Open(path, Options{Fields: fields})
		if err != nil {
			return
		}
		n := 0
		for rows, err := range file.Read(context.Background(), 0) {
			if err != nil {
				return
			}
			if n += rows.Len(); n > 1<<20 {
				return
			}
		}
	})
}

// Unsigned integers keep their values, decimals are refused, and a panic of the loop body is its
// own.
func TestFile_LogicalTypes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.parquet")
	writeJSON(t, path, []arrow.Field{
		{Name: "small", Type: arrow.PrimitiveTypes.Uint32}, {Name: "large", Type: arrow.PrimitiveTypes.Uint64}, {Name: "price", Type: &arrow.Decimal128Type{Precision: 18, Scale: 2}},
	}, `[{"small":7,"large":9,"price":"1.50"},{"small":3000000000,"large":9223372036854775808,"price":"2.50"}]`)
	f := must.Get(Open(path, Options{Fields: []data.Field{{Name: "small", DType: cgotorch.Int64}, {Name: "large", DType: cgotorch.Uint64}}}))(t)
	table, err := data.ReadTable(context.Background(), f, 0)
	must.Do(t, err)
	small, large := data.Values[int64](table.Column("small")), data.Values[uint64](table.Column("large"))
	if fmt.Sprint(small, large) != "[7 3000000000] [9 9223372036854775808]" {
		t.Errorf("got %v and %v", small, large)
	}
	_, err = Open(path, Options{})
	torchtest.WantError(t, err, data.ErrInvalidOptions, `"price" cannot be read, because it is a decimal`)
	defer func() {
		if p := recover(); p != "mine" {
			t.Errorf("the panic of the loop body became %v", p)
		}
	}()
	for range f.Read(context.Background(), 0) {
		panic("mine")
	}
}
