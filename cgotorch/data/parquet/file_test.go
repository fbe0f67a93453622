package parquet

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	format "github.com/parquet-go/parquet-go"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

type record struct {
	A     float32  `parquet:"a"`
	B     *float64 `parquet:"b,optional,dict"`
	Label int64    `parquet:"label,dict,snappy"`
	Small int32    `parquet:"small,zstd"`
	On    bool     `parquet:"on"`
	Name  string   `parquet:"name,dict"`
	List  []int64  `parquet:"list"`
}

// write writes n rows in several row groups. Rows in `nulls` have no b.
func write(t testing.TB, n int, nulls ...int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.parquet")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := format.NewGenericWriter[record](f, format.MaxRowsPerRowGroup(40_000), format.PageBufferSize(10_000))
	for i := range n {
		b := float64(i%7) / 2
		r := record{A: float32(i), B: &b, Label: int64(i % 10), Small: int32(i % 300), On: i%3 == 0, Name: fmt.Sprint("n", i%5), List: []int64{1}}
		if slices.Contains(nulls, i) {
			r.B = nil
		}
		if _, err := w.Write([]record{r}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
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
	f, err := Open(write(t, n), Options{Fields: fields})
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []int{0, 1, 39_999, 40_000, 77_777, n} {
		i := from
		for rows, err := range f.Read(context.Background(), int64(from)) {
			if err != nil {
				t.Fatal(err)
			}
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
		`"list" of numbers or texts; it has ["a" "b"`: {Fields: []data.Field{{Name: "list", DType: cgotorch.Int64}}},
		`no column "list"`:                            {Fields: []data.Field{{Name: "list", DType: cgotorch.Int64}}},
		`the column "a" has`:                          {Fields: []data.Field{{Name: "a", DType: cgotorch.Int64}}},
		`the column "name" has`:                       {Fields: []data.Field{{Name: "name", DType: cgotorch.Int64}}},
		"made of 1 columns":                           {Fields: []data.Field{{Name: "a", DType: cgotorch.Float32, Shape: []int64{3}}}},
		`is made of 1 columns of on`:                  {Fields: []data.Field{{Name: "a", DType: cgotorch.Float32, Shape: []int64{data.Variable}}}},
		"which only CSV and JSONL":                    {Fields: []data.Field{{Name: "name", DType: cgotorch.Int64, Classes: []string{"x"}}}},
	} {
		torchtest.WantError(t, last(o), data.ErrInvalidOptions, want)
	}
	f, err := Open(path, Options{Fields: []data.Field{{Name: "b", DType: cgotorch.Float32}}, NullNaN: true})
	if err != nil {
		t.Fatal(err)
	}
	table, err := data.ReadTable(context.Background(), f, 0)
	if err != nil {
		t.Fatal(err)
	}
	if b := data.Values[float32](table.Column("b")); !math.IsNaN(float64(b[500])) || b[501] != float32(501%7)/2 {
		t.Errorf("rows 500 and 501 are %v, %v", b[500], b[501])
	}
}

// FuzzFile reads damaged files. They end with an error or with rows, not with a panic.
func FuzzFile(f *testing.F) {
	whole, err := os.ReadFile(write(f, 30))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("PAR1PAR1"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "b.parquet")
		if err := os.WriteFile(path, content, 0o666); err != nil {
			t.Fatal(err)
		}
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
	type line struct {
		Small uint32 `parquet:"small"`
		Large uint64 `parquet:"large"`
		Price int64  `parquet:"price,decimal(2:18)"`
	}
	path := filepath.Join(t.TempDir(), "a.parquet")
	lines := []line{{7, 9, 150}, {3_000_000_000, 1 << 63, 250}}
	if err := format.WriteFile(path, lines); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path, Options{Fields: []data.Field{{Name: "small", DType: cgotorch.Int64}, {Name: "large", DType: cgotorch.Uint64}}})
	if err != nil {
		t.Fatal(err)
	}
	table, err := data.ReadTable(context.Background(), f, 0)
	if err != nil {
		t.Fatal(err)
	}
	small, large := data.Values[int64](table.Column("small")), data.Values[uint64](table.Column("large"))
	if fmt.Sprint(small, large) != "[7 3000000000] [9 9223372036854775808]" {
		t.Errorf("got %v and %v", small, large)
	}
	_, err = Open(path, Options{})
	torchtest.WantError(t, err, data.ErrInvalidOptions, `"price" cannot be read`)
	defer func() {
		if p := recover(); p != "mine" {
			t.Errorf("the panic of the loop body became %v", p)
		}
	}()
	for range f.Read(context.Background(), 0) {
		panic("mine")
	}
}
