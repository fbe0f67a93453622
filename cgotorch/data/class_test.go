package data

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestField_Classes(t *testing.T) {
	torchtest.CheckLeaks(t)
	size := Field{Name: "size", DType: cgotorch.Int32}
	kind := Field{Name: "kind", DType: cgotorch.Int64, Classes: []string{"7", "a b", "x\"y", ""}}
	lines := func(t testing.TB, text string) Stream {
		j := cgotorch.Must(NewJSONLines("train.jsonl", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }, JSONLinesOptions{Fields: []Field{size, kind}}))
		return j
	}
	csv := func(t testing.TB, text string) Stream {
		return csvOf(t, "size,kind\n"+text, CSVOptions{Fields: []Field{size, kind}})
	}
	for _, c := range []struct {
		name string
		of   func(t testing.TB, text string) Stream
		text string
		want string // the samples, then the error
	}{
		{"plain CSV", csv, "1,a b\n2,7\r\n3,\n", "map[kind:1 size:1] map[kind:0 size:2] map[kind:3 size:3]"},
		{"quoted CSV", csv, "1,\"x\"\"y\"\n2,7\n", "map[kind:2 size:1] map[kind:0 size:2]"},
		{"CSV, unknown", csv, "1,7\n2, 7\n", `map[kind:0 size:1] data: train.csv: row 2, column "kind": " 7" is none of the 4 Classes; ReadClasses finds all of a file`},
		{"JSON", lines, "{\"size\":1,\"kind\":\"x\\\"y\"}\n{\"size\":2,\"kind\":\"7\"}", "map[kind:2 size:1] map[kind:0 size:2]"},
		{"JSON, unknown", lines, `{"size":1,"kind":"b"}`, `data: train.jsonl: row 1, column "kind": "b" is none of the 4 Classes; ReadClasses finds all of a file`},
		{"JSON, a number", lines, `{"size":1,"kind":7}`, `data: train.jsonl: row 1, column "kind": "7" is no text`},
	} {
		samples, err := read(t, c.of(t, c.text), 0)
		if err != nil {
			samples = append(samples, err.Error())
		}
		if got := strings.Join(samples, " "); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestField_Classes_Refused(t *testing.T) {
	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for _, c := range []struct {
		field Field
		want  string
	}{
		{Field{Name: "a", DType: cgotorch.Int64, Classes: []string{"x", "y", "x"}}, "twice"},
		{Field{Name: "a", DType: cgotorch.Float32, Classes: []string{"x"}}, "float32 cannot hold the numbers of 1 classes"},
		{Field{Name: "a", DType: cgotorch.Uint8, Classes: many}, "uint8 cannot hold the numbers of 300 classes"},
		{Field{Name: "a", Text: true, Classes: []string{"x"}}, "leave Text out"},
	} {
		_, err := tryCSV("a\nx\n", CSVOptions{Fields: []Field{c.field}})
		torchtest.WantError(t, err, ErrInvalidOptions, c.want)
	}
	_, err := NewJSONLines("l", nil, JSONLinesOptions{Fields: []Field{{Name: "a", DType: cgotorch.Int64, Shape: []int64{2}, Classes: []string{"x"}}}})
	torchtest.WantError(t, err, ErrInvalidOptions, "Classes and a Shape")
}

func TestReadClasses(t *testing.T) {
	torchtest.CheckLeaks(t)
	ctx := context.Background()
	stream := csvOf(t, "size,kind\n1,b\n2,a\n3,b\n4,\n", CSVOptions{})
	got, err := ReadClasses(ctx, stream, "kind")
	if want := []string{"", "a", "b"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, name := range []string{"size", "none"} {
		_, err := ReadClasses(ctx, stream, name)
		torchtest.WantError(t, err, ErrInvalidOptions, `is no field of texts among "size" int64, "kind" text`)
	}
	_, err = ReadClasses(ctx, csvOf(t, "kind\nb\na,1\n", CSVOptions{}), "kind")
	torchtest.WantError(t, err, ErrBadRow, "row 2")
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = ReadClasses(cancelled, stream, "kind")
	torchtest.WantError(t, err, context.Canceled, "")
}

func TestReadClasses_TooMany(t *testing.T) {
	torchtest.CheckLeaks(t)
	long := strings.Repeat("x", maxClassBytes/16)
	texts := make([]string, 18)
	for i := range texts {
		texts[i] = fmt.Sprint(long, i)
	}
	table, err := NewTable(Of("kind", texts))
	if err != nil {
		t.Fatal(err)
	}
	_, err = ReadClasses(context.Background(), streamed{table, 1}, "kind")
	torchtest.WantError(t, err, ErrTooLarge, "different texts")
}
