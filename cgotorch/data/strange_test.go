package data

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The cells of a column whose dtype is guessed. pandas' read_csv takes the same texts as numbers.
func TestCSV_GuessedCells(t *testing.T) {
	for _, c := range []struct{ cells, want string }{
		{"1_23 12_3 123", "text 1_23 12_3 123"},
		{"0x1p3 8", "text 0x1p3 8"},
		{"0x10 16", "text 0x10 16"},
		{"0b1 1", "text 0b1 1"},
		{"0o7 7", "text 0o7 7"},
		{"1,5;2", "text 1,5 2"},
		{"−1 2", "text −1 2"},
		{"1e 1", "text 1e 1"},
		{"1d5 1", "text 1d5 1"},
		{". 1", "text . 1"},
		{"true 1", "text true 1"},
		{"+1 2", "int64 1 2"},
		{"00012 7", "int64 12 7"},
		{"-9223372036854775808 9223372036854775807", "int64 -9223372036854775808 9223372036854775807"},
		{"1e5 .5 5. -.5 1E5", "float32 100000 0.5 5 -0.5 100000"},
		{"Inf -inf infinity NaN 1", "float32 +Inf -Inf +Inf NaN 1"},
		{"16699327784941023797 16699327784941023798", "uint64 16699327784941023797 16699327784941023798"},
		{"18446744073709551615 -1", "text 18446744073709551615 -1"},
		{"99999999999999999999999 99999999999999999999998", "text 99999999999999999999999 99999999999999999999998"},
		{"1700000000.25 1700000001.5", "float64 1.70000000025e+09 1.7000000015e+09"},
		{"16777217 16777216 0.5", "float64 1.6777217e+07 1.6777216e+07 0.5"},
		{"9007199254740993 0.5", "text 9007199254740993 0.5"},
		{"0.1 0.10000000149011612", "float64 0.1 0.10000000149011612"},
		{"0.12345679 3.4028235e38 1e-45", "float32 0.12345679 3.4028235e+38 1e-45"},
		{"0.123456 123456 1.50000000", "float32 0.123456 123456 1.5"},
		{"0.0 -0 0e5 000.000", "float32 0 -0 0 0"},
		{"1e39 1", "float64 1e+39 1"},
		{"1e400 1", "text 1e400 1"},
	} {
		cells := strings.Fields(c.cells)
		if strings.Contains(c.cells, ";") {
			cells = strings.Split(c.cells, ";")
		}
		table := csvOf(t, "x;y\n"+strings.Join(cells, ";1\n")+";1\n", CSVOptions{Comma: ';'})
		f := table.Fields()[0]
		got := f.DType.String()
		if f.Text {
			got = "text"
		}
		for rows, err := range table.Read(t.Context(), 0) {
			if err != nil {
				t.Fatalf("%s: %v", c.cells, err)
			}
			for i := range rows.Len() {
				got += fmt.Sprint(" ", rows.Sample(i)["x"])
			}
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.cells, got, c.want)
		}
	}
	_, err := read(t, csvOf(t, "0_0,0_1\n1,2\n", CSVOptions{}), 0)
	if err != nil {
		t.Error(err)
	}
	told := csvOf(t, "x\n1700000000.25\n1700000001.5\n", CSVOptions{Fields: []Field{{Name: "x", DType: cgotorch.Float32}}})
	if got, err := read(t, told, 0); err != nil || fmt.Sprint(got) != "[map[x:1.7e+09] map[x:1.7e+09]]" {
		t.Errorf("a Float32 that is told: %v, %v", got, err)
	}
	for _, dtype := range []cgotorch.DType{cgotorch.Float32, cgotorch.Float64, cgotorch.Int64, cgotorch.Uint64, cgotorch.Float16} {
		for _, cell := range []string{"1_23", "0x1p3", "0x10", "0b1", "1,5", "−1"} {
			err := drain(csvOf(t, "x;y\n"+cell+";1\n", CSVOptions{Comma: ';', Fields: []Field{{Name: "x", DType: dtype}}}), 0)
			torchtest.WantError(t, err, ErrBadRow, `row 1, column "x"`)
		}
	}
}

// A row behind those that decided on the dtype keeps its digits too, or is an error.
func TestCSV_GuessedLater(t *testing.T) {
	for _, c := range []struct{ first, later, want string }{
		{"0.5", "1700000000.25", `row 1002, column "x": "1700000000.25" has more digits than the float32 on which the first rows decided; set CSVOptions.Fields with Field{Name: "x", DType: cgotorch.Float64} or with Text`},
		{"0.5", "16777217", "more digits than the float32"},
		{"0.5", "\"16777217\"", "more digits than the float32"},
		{"0.123456789", "9007199254740993", "more digits than the float64"},
		{"1", "0.5", `"0.5" is no int64; write a number, or leave the row out; the first rows decided on int64`},
		{"1", "9223372036854775808", "is no int64"},
		{"18446744073709551615", "-1", "is no uint64"},
		{"0.5", "0.12345679", ""},
		{"0.5", "123456", ""},
	} {
		err := drain(csvOf(t, "x\n"+strings.Repeat(c.first+"\n", 1001)+c.later+"\n", CSVOptions{}), 0)
		if c.want == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		torchtest.WantError(t, err, ErrBadRow, c.want)
	}
}

// Quotes that are characters.
func TestCSV_NoQuotes(t *testing.T) {
	text := "name\tx\"\n5\" pipe\t1\n\"begins\t2\r\n\nplain\t3\nends\"\t4\n\"whole\"\t5"
	got, err := read(t, csvOf(t, text, CSVOptions{Comma: '\t', NoQuotes: true}), 0)
	want := "[map[name:5\" pipe x\":1] map[name:\"begins x\":2] map[name:plain x\":3] map[name:ends\" x\":4] map[name:\"whole\" x\":5]]"
	if err != nil || fmt.Sprint(got) != want {
		t.Errorf("got %v, %v, want %s", got, err, want)
	}
	if rest, err := read(t, csvOf(t, text, CSVOptions{Comma: '\t', NoQuotes: true}), 3); err != nil || len(rest) != 2 {
		t.Errorf("from row 3: %v, %v", rest, err)
	}
	for _, text := range []string{"a\tb\n5\" pipe\t1\n", "a\tb\n\"x\"y\t1\n", "a\tb\n\"x\t1\n"} {
		torchtest.WantError(t, drain(csvOf(t, text, CSVOptions{Comma: '\t'}), 0), ErrBadRow, "CSVOptions.NoQuotes")
	}
}

// Bytes that are no lines of UTF-8 are named.
func TestLines_Foreign(t *testing.T) {
	wide := func(order int, text string) string {
		var b strings.Builder
		for _, u := range utf16.Encode([]rune(text)) {
			b.Write([]byte{byte(u >> (8 * order)), byte(u >> (8 - 8*order))})
		}
		return b.String()
	}
	const rows = "{\"a\":1}\n{\"a\":2}\n"
	for _, c := range []struct{ content, want string }{
		{"\x1f\x8b\x08\x00", "a gzip file"},
		{"\x28\xb5\x2f\xfd\x04", "a zstd file"},
		{"PK\x03\x04\x14", "a zip file"},
		{"\xfd7zXZ\x00\x00", "an xz file"},
		{"BZh91AY&SY\x00", "a bzip2 file"},
		{"\xff\xfe" + wide(0, rows), "UTF-16"},
		{"\xfe\xff" + wide(1, rows), "UTF-16"},
		{wide(0, rows), "UTF-16"},
		{wide(1, rows), "UTF-16"},
		{strings.ReplaceAll(strings.ReplaceAll(rows, "\n", "\r"), `"a"`, "1"), "carriage return alone"},
		{strings.Repeat("1,2\r", 1<<20), "carriage return alone"},
	} {
		_, err := tryCSV(c.content, CSVOptions{})
		torchtest.WantError(t, err, ErrBadRow, c.want)
		j := jsonOf(t, c.content, JSONLinesOptions{Fields: []Field{{Name: "a", DType: cgotorch.Int64}}})
		torchtest.WantError(t, drain(j, 0), ErrBadRow, c.want)
	}
}

// Numbers of Python that are not JSON, null, and texts that are no Unicode.
func TestJSONLines_Strange(t *testing.T) {
	fields := []Field{{Name: "x", DType: cgotorch.Float32}, {Name: "s", Text: true}, {Name: "v", DType: cgotorch.Float64, Shape: []int64{2}}, {Name: "n", DType: cgotorch.Int64}}
	const row = `{"x":1,"s":"NaN, \"Infinity","v":[1,2],"n":3}`
	for _, c := range []struct {
		old, with, want string
		nan             bool
	}{
		{`"x":1`, `"x":NaN`, "x:NaN", false},
		{`"x":1`, `"x": -Infinity `, "x:-Inf", false},
		{`"x":1`, `"x":Infinity`, "x:+Inf", false},
		{`[1,2]`, `[NaN, Infinity]`, "v:[NaN +Inf]", false},
		{`"x":1`, `"other":[NaN],"x":1`, "x:1", false},
		{`"x":1`, `"x":null`, "x:NaN", true},
		{`[1,2]`, `[null,2]`, "v:[NaN 2]", true},
		{`"x":1`, `"x":null`, `"null" is no float32; JSONLinesOptions.NullNaN makes NaN of null`, false},
		{`"n":3`, `"n":null`, `"null" is no int64`, true},
		{`"n":3`, `"n":NaN`, `"NaN" is no int64`, false},
		{`"s":"NaN, \"Infinity"`, `"s":NaN`, `"NaN" is no text`, false},
		{`"s":"NaN, \"Infinity"`, `"s":null`, `"null" is no text`, true},
		{`"x":1`, `"x":"NaN"`, `is no float32`, false},
		{`"x":1`, `"x":nan`, `row 1: invalid character`, false},
		{`"x":1`, `"x":0x1p3`, `row 1: invalid character`, false},
		{`"x":1`, `"x":1_0`, `row 1: invalid character`, false},
		{`NaN, \"Infinity`, "caf\xe9", "row 1: it is no UTF-8", false},
		{`NaN, \"Infinity`, `\ud83d`, "one half of a surrogate pair", false},
		{`NaN, \"Infinity`, `\ud83d\ude00`, "s:😀", false},
		{`NaN, \"Infinity`, `\uFFFD`, "s:\ufffd", false},
		{`"n":3`, `"n":9223372036854775807`, "n:9223372036854775807", false},
		{`"n":3`, `"n":9223372036854775808`, "is no int64", false},
	} {
		j, err := NewJSONLines("a.jsonl", func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(strings.Replace(row, c.old, c.with, 1))), nil
		}, JSONLinesOptions{Fields: fields, NullNaN: c.nan})
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(t, j, 0)
		if text := fmt.Sprint(got, err); !strings.Contains(text, c.want) {
			t.Errorf("%s: got %s, want %s", c.with, text, c.want)
		}
	}
}
