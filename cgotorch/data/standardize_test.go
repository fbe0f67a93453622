package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// wide returns a table of n samples: two float32 of very different size, a constant, and a float64.
func wide(t *testing.T, n int) *Table {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	pairs, constants, doubles := make([]float32, 2*n), make([]float32, n), make([]float64, n)
	for i := range n {
		pairs[2*i], pairs[2*i+1] = float32(1e6+random.NormFloat64()), float32(1e-6*random.NormFloat64())
		constants[i], doubles[i] = 0.1, 1e9+random.NormFloat64()
	}
	table := cgotorch.Must(NewTable(Of("pair", pairs, 2), Of("constant", constants), Of("double", doubles), Of("label", make([]int64, n))))
	return table
}

// moments computes mean and deviation in two passes, as NumPy does.
func momentsOf(values []float64) (mean, std float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		std += (v - mean) * (v - mean) / float64(len(values))
	}
	return mean, math.Sqrt(std)
}

// The moments are those of two passes. The standardized training data have the mean 0 and the
// deviation 1. A constant has the deviation 1 and becomes 0.
func TestStandardizer_Table(t *testing.T) {
	torchtest.CheckLeaks(t)
	table := wide(t, 5000)
	s := cgotorch.Must(NewStandardizer(table, "pair", "constant", "double"))
	for i, name := range []string{"pair", "pair", "double"} {
		values := column(table, name, i%2)
		mean, std := momentsOf(values)
		got, e := s[name], i%2
		if name == "double" {
			e = 0
		}
		if math.Abs(got.Mean[e]-mean) > 1e-9*max(1, math.Abs(mean)) || math.Abs(got.Std[e]/std-1) > 1e-6 {
			t.Errorf("%s %d: mean %v and deviation %v, want %v and %v", name, e, got.Mean[e], got.Std[e], mean, std)
		}
	}
	if c := s["constant"]; c.Mean[0] != float64(float32(0.1)) || c.Std[0] != 1 {
		t.Errorf("a constant has %+v", c)
	}
	out := cgotorch.Must(s.Table(table))
	for e := range 2 {
		if mean, std := momentsOf(column(out, "pair", e)); math.Abs(mean) > 1e-5 || math.Abs(std-1) > 1e-5 {
			t.Errorf("pair %d: mean %v, deviation %v", e, mean, std)
		}
	}
	if mean, std := momentsOf(column(out, "double", 0)); math.Abs(mean) > 1e-6 || math.Abs(std-1) > 1e-9 {
		t.Errorf("double: mean %v, deviation %v", mean, std)
	}
	if got := column(out, "constant", 0); slices.Max(got) != 0 || slices.Min(got) != 0 {
		t.Errorf("a constant becomes %v to %v", slices.Min(got), slices.Max(got))
	}
	if fmt.Sprint(out.Fields()) != fmt.Sprint(table.Fields()) || &out.Column("label").Data[0] != &table.Column("label").Data[0] {
		t.Errorf("fields %v, want %v; the other fields share their memory", out.Fields(), table.Fields())
	}
	if column(table, "pair", 0)[0] < 1e5 {
		t.Error("the first table has changed")
	}
}

// column returns the elements of one place of a column's samples.
func column(t *Table, name string, place int) (values []float64) {
	c := t.Column(name)
	for i := place % c.elements(); i < c.N*c.elements(); i += c.elements() {
		values = append(values, c.real(i))
	}
	return values
}

// A loader with the Map gives the batches of a loader over the standardized table, to the bit. So
// does a Standardizer that was written as JSON, and one of a stream.
func TestStandardizer_Map(t *testing.T) {
	torchtest.CheckLeaks(t)
	file := "a,b,c\n1,10,x\n2,30,y\n6,80,x\n"
	fields := []Field{{Name: "in", DType: cgotorch.Float32, Shape: []int64{2}, From: []string{"a", "b"}}, {Name: "c", Text: true}}
	rows, err := csvText(file, CSVOptions{Fields: fields})
	if err != nil {
		t.Fatal(err)
	}
	table := cgotorch.Must(ReadTable(context.Background(), rows, 0))
	of := cgotorch.Must(NewStandardizer(table, "in"))
	read, err := ReadStandardizer(context.Background(), rows, "in")
	if err != nil || fmt.Sprint(read) != fmt.Sprint(of) {
		t.Fatalf("of the stream %v, of the table %v: %v", read, of, err)
	}
	if m := of["in"]; !slices.Equal(m.Mean, []float64{3, 40}) || m.Std[0] != math.Sqrt(14.0/3) {
		t.Errorf("moments %v", m)
	}
	text := cgotorch.Must(json.Marshal(read))
	var again Standardizer
	must.Do(t, json.Unmarshal(text, &again))
	standardized := cgotorch.Must(again.Table(table))
	want := Values[float32](standardized.Column("in"))
	l := cgotorch.Must(NewStreamLoader(rows, Options{BatchSize: 8, Map: read.Map}))
	defer l.Close()
	for b, err := range l.Epoch(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		if got := Values[float32](b.Column("in")); !slices.Equal(got, want) || want[0] != float32((1.0-3)/math.Sqrt(14.0/3)) {
			t.Errorf("batch %v, want %v", got, want)
		}
		b.Release()
	}
	shared := []float64{1, 10}
	in := Sample{"in": shared, "c": "x"}
	if out, err := read.Map(in); err != nil || shared[0] != 1 || in["in"].([]float64)[1] != 10 || out["c"] != "x" || out["in"].([]float64)[0] >= 0 {
		t.Errorf("Map: %v %v, from %v", out, err, in)
	}
}

func TestStandardizer_Mistakes(t *testing.T) {
	torchtest.CheckLeaks(t)
	table := cgotorch.Must(NewTable(Of("x", []float32{1, 2, 3}), Of("nan", []float64{1, 2, 3, 4, math.NaN(), 6}, 2), Of("inf", []float32{1, float32(math.Inf(-1)), 1}),
		Of("n", []int64{1, 2, 3}), OfRows("list", [][]float32{{1}, {2}, {3}}), Of("huge", []float64{1e300, -1e300, 0})))
	fit := func(names ...string) error { _, err := NewStandardizer(table, names...); return err }
	good := cgotorch.Must(NewStandardizer(table, "x"))
	apply := func(s Standardizer) error { _, err := s.Table(table); return err }
	mapped := func(s Sample) error { _, err := good.Map(s); return err }
	empty := cgotorch.Must(table.Slice(0, 0))
	stream := func(text string) error {
		rows, err := csvText(text, CSVOptions{EmptyNaN: true, Fields: []Field{{Name: "f", DType: cgotorch.Float32, Shape: []int64{2}, From: []string{"size", "age"}}}})
		if err != nil {
			return err
		}
		_, err = ReadStandardizer(context.Background(), rows, "f")
		return err
	}
	none := func() error { _, err := NewStandardizer(empty, "x"); return err }
	for name, test := range map[string]struct {
		err  error
		kind error
		want string
	}{
		"NaN":            {fit("x", "nan"), ErrBadRow, `data: the table: row 3, column "nan[0]": it is NaN`},
		"infinite":       {fit("inf"), ErrBadRow, `row 2, column "inf": it is -Inf`},
		"empty cell":     {stream("size,age\n1,2\n3,4\n5,\n"), ErrBadRow, `data: t.csv: row 3, column "age": it is NaN`},
		"no names":       {fit(), ErrInvalidOptions, `name some of "x", "nan", "inf", "n", "list" and 1 more`},
		"no such field":  {fit("y"), ErrInvalidOptions, `there is no field "y" to standardize; there are "x"`},
		"integers":       {fit("n"), ErrInvalidOptions, `field "n" Int64 cannot be standardized; read it as Float32`},
		"lists":          {fit("list"), ErrInvalidOptions, `cannot be standardized`},
		"overflow":       {fit("huge"), ErrBadRow, `column "huge": its values are too large`},
		"no samples":     {none(), ErrInvalidOptions, "no samples to standardize by"},
		"NaN of another": {apply(Standardizer{"nan": {Mean: []float64{0, 0}, Std: []float64{1, 1}}}), ErrBadRow, `row 3, column "nan[0]": it is NaN`},
		"other elements": {apply(Standardizer{"x": {Mean: []float64{0, 0}, Std: []float64{1, 1}}}), ErrBadRow, `column "x": it has 1 elements, and the Standardizer has 2`},
		"other table":    {apply(Standardizer{"z": {Mean: []float64{0}, Std: []float64{1}}}), ErrInvalidOptions, `there is no field "z"`},
		"sample of ints": {mapped(Sample{"x": 1}), ErrBadRow, `field "x": the sample's value is a int`},
		"sample NaN":     {mapped(Sample{"x": math.NaN()}), ErrBadRow, `column "x": it is NaN`},
	} {
		if !errors.Is(test.err, test.kind) || !strings.Contains(strings.ReplaceAll(test.err.Error(), "int64", "Int64"), test.want) || len(test.err.Error()) > 400 {
			t.Errorf("%s: error %v, want %q", name, test.err, test.want)
		}
	}
}
