package data

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

var jsonFields = []Field{
	{Name: "text", Text: true}, {Name: "label", DType: cgotorch.Int64}, {Name: "tokens", DType: cgotorch.Int32, Shape: []int64{Variable}},
	{Name: "box", DType: cgotorch.Float32, Shape: []int64{2, 2}}, {Name: "on", DType: cgotorch.Bool},
}

func jsonOf(t testing.TB, text string, o JSONLinesOptions) Stream {
	t.Helper()
	j := cgotorch.Must(NewJSONLines("a.jsonl", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }, o))
	return j
}

const jsonLine = `{"text":"a\n\u00e4","label":3,"tokens":[1, 2 ,3],"box":[[1,2.5],[ 3e1,-4]],"on":true,"other":{"x":null}}`

func TestJSONLines_Values(t *testing.T) {
	torchtest.CheckLeaks(t)
	j := jsonOf(t, jsonLine+"\n\n  \r\n"+strings.Replace(jsonLine, "[1, 2 ,3]", "[]", 1), JSONLinesOptions{Fields: jsonFields})
	got, err := read(t, j, 0)
	want := "[map[box:[1 2.5 30 -4] label:3 on:true text:a\nä tokens:[1 2 3]] map[box:[1 2.5 30 -4] label:3 on:true text:a\nä tokens:[]]]"
	if err != nil || fmt.Sprint(got) != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if rest, err := read(t, j, 1); err != nil || len(rest) != 1 || rest[0] != got[1] {
		t.Errorf("from row 1: %v, %v", rest, err)
	}
}

// A byte-order mark belongs to no row, wherever an epoch begins. Inside a file it is an error.
func TestJSONLines_ByteOrderMark(t *testing.T) {
	const mark, first, second = "\xef\xbb\xbf", "{\"x\":1}\n", "{\"x\":2}\n"
	o := JSONLinesOptions{Fields: []Field{{Name: "x", DType: cgotorch.Int64}}}
	for from, want := range []string{"[map[x:1] map[x:2]]", "[map[x:2]]"} {
		if got, err := read(t, jsonOf(t, mark+first+second, o), int64(from)); err != nil || fmt.Sprint(got) != want {
			t.Errorf("from row %d: %v, %v, want %s", from, got, err, want)
		}
	}
	_, err := read(t, jsonOf(t, first+mark+second, o), 0)
	torchtest.WantError(t, err, ErrBadRow, "row 2")
}

func TestJSONLines_Errors(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, test := range []struct{ old, with, want string }{
		{`"label":3`, `"label":3.5`, `data: a.jsonl: row 2, column "label": "3.5" is no int64`},
		{`"label":3`, `"label":"3"`, `"\"3\"" is no int64`},
		{`"label":3`, `"label":null`, `"null" is no int64`},
		{`"label":3`, `"labels":3`, `column "label": the object has no such value`},
		{`"label":3`, `"label":[3]`, `is no int64`},
		{`[1, 2 ,3]`, `7`, `"7" is no array, want shape [-1]`},
		{`[1, 2 ,3]`, `[1,[2]]`, `is no int32`},
		{`[1, 2 ,3]`, `[1,3000000000]`, `"3000000000" is no int32`},
		{`[1,2.5]`, `[1]`, `an array has 1 values, want shape [2 2]`},
		{`[1,2.5]`, `[1,2,3]`, `an array has more than 2 values`},
		{`true`, `"yes"`, `is no bool`},
		{`"a\n\u00e4"`, `5`, `column "text": "5" is no text`},
		{`"text"`, `text`, `row 2: invalid character`},
		{jsonLine, `[1]`, `row 2: json: cannot unmarshal`},
		{jsonLine, `{"a":1`, `row 2: unexpected end`},
	} {
		j := jsonOf(t, jsonLine+"\n"+strings.Replace(jsonLine, test.old, test.with, 1)+"\n", JSONLinesOptions{Fields: jsonFields})
		got, err := read(t, j, 0)
		torchtest.WantError(t, err, ErrBadRow, test.want)
		if len(got) != 1 {
			t.Errorf("%s: %d rows before the error", test.with, len(got))
		}
	}
	_, err := read(t, jsonOf(t, strings.Repeat("[", 3<<20), JSONLinesOptions{Fields: jsonFields, MaxRow: 1 << 21}), 0)
	torchtest.WantError(t, err, ErrTooLarge, "longer than MaxRow")
}

func FuzzJSONLines(f *testing.F) {
	f.Add([]byte(jsonLine + "\n" + jsonLine))
	f.Add([]byte(`{"label":[1,2`))
	f.Add([]byte("\n{}\n" + strings.Repeat("[", 100)))
	f.Fuzz(func(t *testing.T, text []byte) {
		j := jsonOf(t, string(text), JSONLinesOptions{Fields: jsonFields})
		got, err := read(t, j, 0)
		if err == nil && len(got) > 0 {
			if rest, err := read(t, j, 1); err != nil || len(rest) != len(got)-1 {
				t.Errorf("from row 1: %d rows, %v, want %d", len(rest), err, len(got)-1)
			}
		}
	})
}
