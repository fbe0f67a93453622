package parquet

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	format "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Columns that are refused, by the beginning of a file's name, and the text that says it.
var refused = []struct{ name, want string }{
	{`^list-`, "it is nested, or a list"},
	{`^(struct|map)-`, "it is nested, or a list"},
	{`^decimal`, "it is a decimal"},
	{`^fixed-`, "FIXED_LEN_BYTE_ARRAY"},
	{`-fastparquet-LZ4-`, "it is compressed by LZ4"},
	{`^timestamp-.*-int96`, "it has the type INT96"},
	{`^float16-DELTA_BYTE_ARRAY-`, "it is encoded by DELTA_BYTE_ARRAY"},
	{`-encrypted`, "it is encrypted"},
}

// Each file of testdata/matrix.py gives the values that pyarrow reads from it, or is refused by
// the name of its column.
func TestFile_EqualsPyarrow(t *testing.T) {
	if testing.Short() {
		t.Skip("many cases of numbers")
	}
	torchtest.CheckLeaks(t)
	python := torchtest.Python(t, "pyarrow.parquet")
	folder := t.TempDir()
	if out, err := exec.Command(python, "testdata/matrix.py", folder).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	checkFiles(t, folder)
}

func checkFiles(t *testing.T, folder string) {
	list := must.Get(os.Open(filepath.Join(folder, "want.jsonl")))(t)
	defer list.Close()
	counts, files, faults := map[string]int{}, bufio.NewScanner(list), 0
	files.Buffer(nil, 1<<24)
	for files.Scan() && faults < 30 {
		var entry struct {
			File string
			Want []any
		}
		must.Do(t, json.Unmarshal(files.Bytes(), &entry))
		got, err := valuesOf(filepath.Join(folder, entry.File+".parquet"), slices.Index(entry.Want, nil))
		fault := differs(got, entry.Want)
		for _, r := range refused {
			if err != nil && regexp.MustCompile(r.name).MatchString(entry.File) && strings.Contains(err.Error(), entry.File) && strings.Contains(err.Error(), r.want) {
				fault = "refused"
				break
			}
		}
		if counts[fault]++; fault != "" && fault != "refused" {
			t.Errorf("%s: %s, %v", entry.File, fault, err)
			faults++
		}
	}
	t.Logf("%d files are equal, %d are refused", counts[""], counts["refused"])
	if counts[""] < 1000 || counts["refused"] < 100 {
		t.Errorf("%d files are equal and %d are refused: the script has written too few", counts[""], counts["refused"])
	}
}

// Files of pyarrow that other decoders read wrong, for a machine without Python.
func TestFile_Stored(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range []struct{ name, want, file string }{
		{"booleans in runs, page v2", strings.Repeat("true ", 61) + "false true false", "UEFSMRUGFRAVEFwVgAEVABWAARUGFQAVABIcAAAABAAAAHoBAwIVBBksNQAYBnNjaGVtYRUCABUAJQAYAXgAFoABGRwZHCYAHBUAGRUGGRgBeBUAFoABFkQWRCYISRwVABUGFQIAAAAW" +
			"RBaAASYIFkQAKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9uIDI2LjAuMRkcHAAAAHQAAABQQVIx"},
		{"booleans in runs, page v1", strings.Repeat("true ", 61) + "false true false", "UEFSMRUAFRAVECwVgAEVBhUGFQYcAAAABAAAAHoBAwIVBBksNQAYBnNjaGVtYRUCABUAJQAYAXgAFoABGRwZHCYAHBUAGRUGGRgBeBUAFoABFjgWOCYISRwVABUGFQIAAAAWOBaAASYI" +
			"FjgAKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9uIDI2LjAuMRkcHAAAAHQAAABQQVIx"},
		{"int32 in deltas", "1 -2 2147483647 -2147483648", "UEFSMRUAFZwCFZwCLBUIFQoVBhUGHAAAAIABBAQC/f///w8gAAAA/P//fwAAAAAAAACAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" +
			"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAVBBksNQAYBnNjaGVtYRUCABUCJQAYAXgAFggZHBkcJgAcFQIZJQYKGRgB" +
			"eBUAFggWxgIWxgImCEkcFQAVChUCAAAAFsYCFggmCBbGAgAoIHBhcnF1ZXQtY3BwLWFycm93IHZlcnNpb24gMjYuMC4xGRwcAAAAdgAAAFBBUjE="},
		{"int64 in byte streams", "1 -2 1099511627776 -4611686018427387904", "UEFSMRUAFUAVQCwVCBUSFQYVBhwAAAAB/gAAAP8AAAD/AAAA/wAAAP8AAAD/AQAA/wAAAP8AwBUEGSw1ABgGc2NoZW1hFQIAFQQlABgBeAAWCBkcGRwmABwVBBklBhIZGAF4FQAWCBZm" +
			"FmYmCEkcFQAVEhUCAAAAFmYWCCYIFmYAKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9uIDI2LjAuMRkcHAAAAHIAAABQQVIx"},
	} {
		content := must.Get(base64.StdEncoding.DecodeString(c.file))(t)
		path := filepath.Join(t.TempDir(), "a.parquet")
		must.Do(t, os.WriteFile(path, content, 0o600))
		f, err := Open(path, Options{})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var got []string
		for rows, err := range f.Read(context.Background(), 0) {
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			for i := range rows.Len() {
				got = append(got, fmt.Sprint(rows.Sample(i)["x"]))
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
		}
	}
}

// valuesOf returns the values of the column x, and NaN or nil for a null. It reads them twice, the
// second time from row 101 on, and fails if that gives other values. If row `null` is null, then
// integers are read as float64. No field holds a null of other types: decode gives their values.
func valuesOf(path string, null int) (values []any, err error) {
	f, err := Open(path, Options{})
	if err != nil {
		return nil, err
	}
	x := f.Fields()[0]
	if null >= 0 && (x.Text || x.DType == cgotorch.Bool) {
		for _, err = range f.Read(context.Background(), 0) {
		}
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf(`row %d, column "x": the `, null+1)) || !strings.Contains(err.Error(), " is null") {
			return nil, fmt.Errorf("a null gives the error %w", err)
		}
		return decoded(f.(*parquetFile))
	}
	if null >= 0 && x.DType != cgotorch.Float32 {
		x.DType = cgotorch.Float64
	}
	f, err = Open(path, Options{NullNaN: true, Fields: []data.Field{x, {Name: "row", DType: cgotorch.Int64}}})
	if err != nil {
		return nil, err
	}
	for _, from := range []int64{0, 101} {
		row := from
		for rows, err := range f.Read(context.Background(), from) {
			if err != nil {
				return values, err
			}
			for i := range rows.Len() {
				sample := rows.Sample(i)
				if sample["row"] != row {
					return values, fmt.Errorf("row %v, want %d", sample["row"], row)
				}
				if row++; from == 0 {
					values = append(values, sample["x"])
				} else if fmt.Sprint(values[row-1]) != fmt.Sprint(sample["x"]) {
					return values, fmt.Errorf("row %d from row %d on is %v", row-1, from, sample["x"])
				}
			}
		}
	}
	return values, nil
}

// decoded returns the texts or booleans of the first column of a file, and nil for a null.
func decoded(f *parquetFile) (values []any, err error) {
	err = f.with(func(opened *file.Reader) error {
		for g := range opened.NumRowGroups() {
			group := opened.RowGroup(g)
			chunk, err := group.Column(0)
			if err != nil {
				return err
			}
			c, n := &column{cell: f.cells[0], chunk: chunk}, int(group.NumRows())
			if flags, ok := chunk.(*file.BooleanColumnChunkReader); ok {
				err = decode(c, flags, n, func(p part[bool]) error {
					values = append(values, spread(p, func(v bool) any { return v })...)
					return nil
				})
			} else {
				err = decode(c, chunk.(*file.ByteArrayColumnChunkReader), n, func(p part[format.ByteArray]) error {
					values = append(values, spread(p, func(v format.ByteArray) any { return string(v) })...)
					return nil
				})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, new(bool))
	return values, err
}

// spread returns the values of all rows of a part, and nil for a null.
func spread[T any](p part[T], of func(T) any) (values []any) {
	k := 0
	for i := range p.n {
		if p.null(i) {
			values = append(values, nil)
			continue
		}
		values = append(values, of(p.values[k]))
		k++
	}
	return values
}

// differs says how the values of a file differ from those of pyarrow, or "". A null of a number is
// NaN here.
func differs(got, want []any) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d rows, want %d", len(got), len(want))
	}
	for i, w := range want {
		v, equal := got[i], false
		number := func(bits int) float64 {
			if w == nil {
				return math.NaN()
			}
			f, _ := strconv.ParseFloat(fmt.Sprint(w), bits)
			return f
		}
		same := func(a, b float64) bool { return a != a && b != b || math.Float64bits(a) == math.Float64bits(b) }
		switch v := v.(type) {
		case string:
			equal = hex.EncodeToString([]byte(v)) == w
		case float32:
			equal = same(float64(v), number(32))
		case float64:
			equal = same(v, number(64))
		case nil:
			equal = w == nil
		default:
			equal = fmt.Sprint(v) == fmt.Sprint(w)
		}
		if !equal {
			return fmt.Sprintf("row %d is %v, want %v", i, v, w)
		}
	}
	return ""
}
