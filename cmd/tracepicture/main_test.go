package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// The trace in testdata/trace.json has five steps of 10 ms. During the first two steps the device
// is idle for most of the time, and copies run while no kernel runs. During the other three steps
// kernels always run, and copies run at the same time.
const example = "testdata/trace.json"

func read(t *testing.T, path string) *trace {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return must.Get(parse(text))(t)
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

func TestTrace_Window(t *testing.T) {
	all := read(t, example)
	for _, c := range []struct {
		name         string
		from, length float64
		want         span
	}{
		{"the densest three steps", -1, 0, span{20, 49.8}},
		{"a beginning", 12, 0, span{12, 49.8}},
		{"a length", -1, 7, span{0, 7}},
		{"both", 12, 7, span{12, 19}},
		{"beyond the end", 45, 100, span{45, 49.8}},
	} {
		got, err := all.window(c.from, c.length)
		if err != nil || !near(got.start, c.want.start) || !near(got.end, c.want.end) {
			t.Errorf("%s: the window is %v, %v, want %v", c.name, got, err, c.want)
		}
	}
	if _, err := all.window(50, 0); err == nil {
		t.Error("a window behind the end is no error")
	}
}

func TestTrace_Hidden(t *testing.T) {
	all := read(t, example)
	for _, c := range []struct {
		in            span
		behind, total float64
	}{
		{span{0, 20}, 0, 4},
		{span{20, 49.8}, 6, 6},
		{span{10, 30}, 2, 4},
	} {
		if behind, total := all.hidden(c.in); !near(behind, c.behind) || !near(total, c.total) {
			t.Errorf("%v: %v of %v ms are hidden, want %v of %v", c.in, behind, total, c.behind, c.total)
		}
	}
}

func TestRun_Picture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "picture.svg")
	must.Do(t, run(example, path, -1, 0, ""))
	text := must.Get(os.ReadFile(path))(t)
	kernels, copies := 0, 0
	colour := ""
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
		element, ok := token.(xml.StartElement)
		if end, isEnd := token.(xml.EndElement); isEnd && end.Name.Local == "g" {
			colour = ""
		}
		if !ok {
			continue
		}
		for _, a := range element.Attr {
			if element.Name.Local == "g" && a.Name.Local == "fill" {
				colour = a.Value
			}
		}
		if element.Name.Local == "rect" && colour == kernelColour {
			kernels++
		}
		if element.Name.Local == "rect" && colour == copyColour {
			copies++
		}
	}
	if kernels != 3 || copies != 3 {
		t.Errorf("%d boxes of kernels and %d of copies, want 3 and 3", kernels, copies)
	}
	for _, want := range []string{
		">default stream<", ">prefetcher copies<", ">step 2<", ">step 4<", ">ms<", `viewBox="0 0 900 `,
		"29.8 ms of a trace. Copies take 6.00 ms, 100 % of it while kernels of other streams run.",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the picture lacks %q", want)
		}
	}
	if strings.Contains(string(text), ">step 1<") {
		t.Error("the picture names a step outside of the window")
	}
}

func TestRun_Refuses(t *testing.T) {
	folder := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":    {"kernels", "not the JSON of a trace"},
		"marks only": {`{"traceEvents":[{"name":"step 0","ph":"X","cat":"mark","pid":1,"tid":1,"ts":0,"dur":5}]}`, "only a CUDA device"},
	} {
		path := filepath.Join(folder, "trace.json")
		must.Do(t, os.WriteFile(path, []byte(c.text), 0o666))
		if err := run(path, filepath.Join(folder, "out.svg"), -1, 0, ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q", name, err, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "out.svg")); err == nil {
		t.Error("a picture was written all the same")
	}
}

func TestTick(t *testing.T) {
	for length, want := range map[float64]float64{29.8: 5, 10: 1, 0.7: 0.1, 95: 10, 12: 2} {
		if got := tick(length); !near(got, want) {
			t.Errorf("ticks of %v ms are %v apart, want %v", length, got, want)
		}
	}
}
