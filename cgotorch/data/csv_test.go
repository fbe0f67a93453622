package data

import (
	"bytes"
	"context"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// csvOf returns the rows of a text.
func csvOf(t testing.TB, text string, o CSVOptions) Stream {
	t.Helper()
	c := cgotorch.Must(tryCSV(text, o))
	return c
}

func tryCSV(text string, o CSVOptions) (Stream, error) {
	return NewCSV("train.csv", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }, o)
}

// read returns all samples of a stream as text, and its error.
func read(t testing.TB, s Stream, from int64) (samples []string, err error) {
	t.Helper()
	for rows, err := range s.Read(context.Background(), from) {
		if err != nil {
			return samples, err
		}
		for i := range rows.Len() {
			samples = append(samples, fmt.Sprint(rows.Sample(i)))
		}
	}
	return samples, nil
}

// drain reads a stream and returns its error.
func drain(s Stream, from int64) error {
	for _, err := range s.Read(context.Background(), from) {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestCSV_Guess(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := csvOf(t, "\xef\xbb\xbfid,price,name,extra\r\n1,2.5,\"a, \"\"b\"\"\nc\",7\r\n\r\n-2,1e3,,8", CSVOptions{})
	if got, want := fmt.Sprint(c.Fields()), `["id" int64 "price" float32 "name" text "extra" int64]`; got != want {
		t.Errorf("fields %s, want %s", got, want)
	}
	got, err := read(t, c, 0)
	want := []string{"map[extra:7 id:1 name:a, \"b\"\nc price:2.5]", "map[extra:8 id:-2 name: price:1000]"}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestCSV_Fields(t *testing.T) {
	c := csvOf(t, "a;b;c;d\n1; 2 ;x;\n4;5;y;nan\n", CSVOptions{Comma: ';', EmptyNaN: true, Fields: []Field{
		{Name: "xy", DType: cgotorch.Float64, Shape: []int64{2}, From: []string{"b", "a"}}, {Name: "d", DType: cgotorch.Float32},
	}})
	got, err := read(t, c, 0)
	if want := "[map[d:NaN xy:[2 1]] map[d:NaN xy:[5 4]]]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	got, err = read(t, csvOf(t, "1,2\n3,4\n", CSVOptions{NoHeader: true, Names: []string{"a", "b"}}), 1)
	if want := "[map[a:3 b:4]]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestCSV_Errors(t *testing.T) {
	torchtest.CheckLeaks(t)
	float := func(names ...string) (fields []Field) {
		for _, name := range names {
			fields = append(fields, Field{Name: name, DType: cgotorch.Float32})
		}
		return fields
	}
	many := strings.Repeat("1,2\n", 400_000) // several chunks
	for _, test := range []struct {
		text, want string
		kind       error
		o          CSVOptions
	}{
		{"age,b\n1,2\nx,3\n", `data: train.csv: row 2, column "age": "x" is no float32`, ErrBadRow, CSVOptions{Fields: float("age", "b")}},
		{"age,b\n" + many + "1,\"\n\"\n", `data: train.csv: row 400001, column "b": "\n" is no float32`, ErrBadRow, CSVOptions{Fields: float("b")}},
		{"age,b\n" + many + "1,2,3\n", `data: train.csv: row 400001: it has 3 columns, want 2`, ErrBadRow, CSVOptions{}},
		{"age,b\n1\n", `row 1: it has 1 columns, want 2`, ErrBadRow, CSVOptions{}},
		{"age,b\n\"1\n", `extraneous or missing "`, ErrBadRow, CSVOptions{}},
		{"age,b\n1,2\n" + strings.Repeat("x", 3<<20) + "\n", "longer than MaxRow, 2000000 bytes", ErrTooLarge, CSVOptions{MaxRow: 2_000_000}},
		{"age\n300\n", `"300" is no uint8`, ErrBadRow, CSVOptions{Fields: []Field{{Name: "age", DType: cgotorch.Uint8}}}},
		{"age\n1e99\n", `"1e99" is no float32`, ErrBadRow, CSVOptions{Fields: float("age")}},
		{"age,b\n,2\n", `"" is no float32; CSVOptions.EmptyNaN, set in each reader of the file, makes NaN of an empty cell`, ErrBadRow, CSVOptions{Fields: float("age")}},
		{"", "train.csv: the file is empty", ErrBadRow, CSVOptions{}},
		{strings.Repeat(",", 70_000), "70001 columns", ErrTooLarge, CSVOptions{}},
		{",a\n0,1\n", "data: train.csv: column 1 has no name, like an index that pandas writes: set CSVOptions.Names", ErrInvalidOptions, CSVOptions{}},
		{"a,b,a\n0,1,2\n", `data: train.csv: two columns have the name "a": set CSVOptions.Names`, ErrInvalidOptions, CSVOptions{}},
		{"a\n1\n", `no column "b"`, ErrInvalidOptions, CSVOptions{Fields: float("b")}},
		{"a\n1\n", "CSVOptions.Names has 2", ErrInvalidOptions, CSVOptions{Names: []string{"a", "b"}}},
		{"a\n1\n", "CSVOptions.Comma is", ErrInvalidOptions, CSVOptions{Comma: '"'}},
		{"a\n1\n", "CSVOptions.MaxRow is -1", ErrInvalidOptions, CSVOptions{MaxRow: -1}},
		{"a\n1\n", "in two fields", ErrInvalidOptions, CSVOptions{Fields: []Field{{Name: "a"}, {Name: "b", From: []string{"a"}}}}},
		{"a\n1\n", "made of 1 columns", ErrInvalidOptions, CSVOptions{Fields: []Field{{Name: "a", Shape: []int64{2}}}}},
	} {
		c, err := tryCSV(test.text, test.o)
		if err == nil {
			err = drain(c, 0)
		}
		torchtest.WantError(t, err, test.kind, test.want)
		if strings.Contains(test.want, "400001") {
			if again := drain(c, 200_000); again == nil || again.Error() != err.Error() {
				t.Errorf("from row 200,001: %v", again)
			}
		}
	}
	_, err := OpenCSV(filepath.Join(t.TempDir(), "none.csv"), CSVOptions{})
	torchtest.WantError(t, err, os.ErrNotExist)
}

// A row's numbers are the same wherever its chunk begins, and after a resume.
func TestCSV_Loader(t *testing.T) {
	torchtest.CheckLeaks(t)
	var text strings.Builder
	text.WriteString("id,word\n")
	for i := range 120_000 {
		fmt.Fprintf(&text, "%d,", i)
		if i%5000 == 0 {
			text.WriteString("\"a\nb\"\n")
		} else {
			text.WriteString("some word\n\n")
		}
	}
	l := open(t, csvOf(t, text.String(), CSVOptions{}), Options{BatchSize: 1000, Shuffle: true, ShuffleBuffer: 10_000})
	lines, ids, states := readEpoch(t, l)
	sum := int64(0)
	for _, id := range ids {
		sum += id
	}
	if len(ids) != 120_000 || sum != 120_000*119_999/2 {
		t.Fatalf("%d rows, sum %d", len(ids), sum)
	}
	must.Do(t, l.Restore(states[77]))
	if again, _, _ := readEpoch(t, l); fmt.Sprint(again) != fmt.Sprint(lines[78:]) {
		t.Error("other batches after a resume")
	}
}

// The reader of numbers gives strconv's results, to the bit. Go's own forms are no numbers.
func TestNumber_EqualsStrconv(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	check := func(text string) {
		t.Helper()
		var memory [8]byte
		want64, err64 := strconv.ParseFloat(text, 64)
		goes := strings.ContainsAny(text, "x_")
		if goes {
			err64 = strconv.ErrSyntax
		}
		if ok := parse(cgotorch.Float64, memory[:], []byte(text)); ok != (err64 == nil) || ok && view[uint64](memory[:])[0] != math.Float64bits(want64) {
			t.Errorf("%q as float64: %v, got %v, want %v", text, ok, view[float64](memory[:])[0], want64)
		}
		want32, err32 := strconv.ParseFloat(text, 32)
		if goes {
			err32 = strconv.ErrSyntax
		}
		if ok := parse(cgotorch.Float32, memory[:], []byte(text)); ok != (err32 == nil) || ok && view[uint32](memory[:])[0] != math.Float32bits(float32(want32)) {
			t.Errorf("%q as float32: %v, got %v, want %v", text, ok, view[float32](memory[:])[0], want32)
		}
		wantInt, errInt := strconv.ParseInt(text, 10, 64)
		if ok := parse(cgotorch.Int64, memory[:], []byte(text)); ok != (errInt == nil) || ok && view[int64](memory[:])[0] != wantInt {
			t.Errorf("%q as int64: %v", text, ok)
		}
	}
	for _, text := range []string{
		"0", "-0", "+1", ".5", "5.", ".", "", "-", "1e", "1e+", "e5", "1e400", "1e-400", "nan", "-Inf", "0x1p3", "1_0", "16777217", "16777217.0000001", "33554435",
		"9007199254740993", "18446744073709551615", "18446744073709551616", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1.17549435e-38",
		"1.4e-45", "3.4028235e38", "3.4028236e38", "0.00000000000000000000001", "123456789012345678901234567890", "1.5 ", " 1.5", "00000000000000000000001.5", "1.00000005960464477539",
	} {
		check(text)
	}
	for range 30_000 {
		switch rng.IntN(5) {
		case 0:
			check(strconv.FormatFloat(rng.NormFloat64(), 'g', -1, 64))
		case 1:
			check(strconv.FormatFloat(float64(math.Float32frombits(rng.Uint32())), 'g', -1, 32))
		case 2: // beside the middle of two float32 numbers
			middle := float64(math.Float32frombits(rng.Uint32()>>2|0x20000000)) * (1 + 0x1p-24)
			check(strconv.FormatFloat(middle, 'f', 3+rng.IntN(15), 64))
			check(strconv.FormatFloat(middle, 'e', rng.IntN(19), 64))
		case 3:
			check(strconv.FormatFloat(math.Float64frombits(rng.Uint64()), 'e', rng.IntN(19), 64))
		case 4:
			check(fmt.Sprintf("%d.%0*d", rng.IntN(1000), 1+rng.IntN(17), rng.Int64N(1e9)))
		}
	}
}

// FuzzCSV compares the two parsers of a chunk without quotes, and reads any file.
func FuzzCSV(f *testing.F) {
	for _, text := range []string{"a,b\n1,2\n3,4", "1\r\n\r\n2\r\n", "x,1.5\n", ",\n,", "1,2\r", "\r\r\n,", "\"a\nb\",2\n", "a\"b,1\n", "1,\"2\n3,4\n5,6\n"} {
		f.Add([]byte(text), uint8(2))
	}
	f.Fuzz(func(t *testing.T, text []byte, columns uint8) {
		n := int(columns%4) + 1
		head := strings.Repeat("c,", n-1) + "c\n"
		c, err := tryCSV(head+string(text), CSVOptions{MaxRow: 1 << 12})
		if err != nil {
			return
		}
		want, wantErr := read(t, c, 0)
		if from := int64(len(want) / 2); wantErr == nil {
			if rest, err := read(t, c, from); err != nil || fmt.Sprint(rest) != fmt.Sprint(want[from:]) {
				t.Errorf("from row %d: %q, %v, want %q", from, rest, err, want[from:])
			}
		}
		if bytes.IndexByte(text, '"') >= 0 {
			return
		}
		both := c.(*csvStream)
		plain, quoted := newRows(both.fields, 0), newRows(both.fields, 0)
		bad, wantBad := both.parsePlain(plain, text, 0), both.parseQuoted(quoted, text, 0)
		if (bad == nil) != (wantBad == nil) || bad != nil && (bad.Row != wantBad.Row || bad.Column != wantBad.Column || bad.Reason != wantBad.Reason) {
			t.Fatalf("%v, want %v", bad, wantBad)
		}
		if plain.n != quoted.n {
			t.Fatalf("%d rows, want %d", plain.n, quoted.n)
		}
		for i := range plain.n {
			if got, want := fmt.Sprint(plain.Sample(i)), fmt.Sprint(quoted.Sample(i)); got != want {
				t.Fatalf("row %d is %q, want %q", i, got, want)
			}
		}
	})
}
