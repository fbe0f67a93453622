package oip

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/internal/bodies"
	"github.com/streamtorch/streamtorch/internal/must"
)

// A copy of a JSON body and its elements count beside the body, before they are made.
func TestBodies_Elements(t *testing.T) {
	text := func(elements int) string {
		return fmt.Sprintf(`{"inputs":[{"name":"a","datatype":"INT64","shape":[%d],"data":[%s1]}]}`, elements, strings.Repeat("1,", elements-1))
	}
	b := bodies.Bound{Most: 4000, All: 6000}
	parsed := func(elements int) (*bodies.Body, error) {
		got, err := b.Read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(text(elements))))
		must.Do(t, err)
		_, _, err = parse(got.Bytes, "", func(n int64) error { return b.More(got, n) })
		return got, err
	}
	first, err := parsed(400)
	if err != nil || b.Used() != int64(2*len(text(400))+8*400) {
		t.Errorf("%v; %d bytes count", err, b.Used())
	}
	second, err := parsed(400)
	if !errors.Is(err, bodies.ErrBusy) {
		t.Errorf("beside it: %v", err)
	}
	b.Give(first)
	b.Give(second)
	third, err := parsed(1000)
	if !errors.Is(err, bodies.ErrTooLarge) {
		t.Errorf("alone, and too large: %v", err)
	}
	b.Give(third)
	if b.Used() != 0 {
		t.Errorf("%d bytes count after the last body", b.Used())
	}
}

// A request takes no more memory than it counts.
func TestParse_Memory(t *testing.T) {
	const elements = 1 << 20
	text := fmt.Sprintf(`{"inputs":[{"name":"a\"","datatype":"UINT8","shape":[%d],"data":[%s1]}]}`, elements, strings.Repeat("1,", elements-1))
	counted := int64(0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, _, err := parse([]byte(text), "", func(n int64) error { counted += n; return nil })
	runtime.ReadMemStats(&after)
	own := int64(len(text)) // the argument
	if used := int64(after.TotalAlloc-before.TotalAlloc) - own; err != nil || len(r.Inputs[0].Data) != elements || used > counted+counted/10 {
		t.Errorf("%v; %d KiB are taken, and %d KiB count", err, used>>10, counted>>10)
	}
}

// A conversion takes the memory of its elements once.
func TestTensor_setJSON_Memory(t *testing.T) {
	const elements = 1 << 20
	text := []byte("[" + strings.Repeat("1,", elements-1) + "1]")
	x := Tensor{Name: "x", DataType: "INT64", Shape: []int64{2, elements / 2}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := x.setJSON(text, func(n int64) error { return nil })
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; err != nil || len(x.Data) != 8*elements || used > 9*elements {
		t.Errorf("%v; %d MiB for %d bytes", err, used>>20, len(x.Data))
	}
}

// JSON data are one flat array, or arrays nested as the shape.
func TestTensor_setJSON_Nesting(t *testing.T) {
	for _, c := range []struct {
		shape []int64
		data  string
		fits  bool
	}{
		{[]int64{2, 4}, "[1,2,3,4,5,6,7,8]", true},
		{[]int64{2, 4}, "[[1,2,3,4],[5,6,7,8]]", true},
		{[]int64{2, 4}, " [ [1, 2,\n3,4] ,\t[5,6,7,8] ] ", true},
		{[]int64{2, 4}, "[[1],[2,3,4,5,6,7,8]]", false},
		{[]int64{2, 4}, "[[1,2],[3,4],[5,6],[7,8]]", false}, // [4, 2]
		{[]int64{2, 4}, "[[1,2,3,4,5,6,7,8]]", false},
		{[]int64{2, 4}, "[[[1,2,3,4],[5,6,7,8]]]", false},
		{[]int64{2, 4}, "[[1,2,3,4],5,6,7,8]", false},
		{[]int64{2, 4}, "[1,2,3,4,[5,6,7,8]]", false},
		{[]int64{2, 4}, "[[1,2,3,4],[5,6,7,8],[]]", false},
		{[]int64{2, 4}, "[[],[1,2,3,4],[5,6,7,8]]", false},
		{[]int64{2, 4}, "[[1,2,3,[4]],[5,6,7,8]]", false},
		{[]int64{4}, "[1,2,3,4]", true},
		{[]int64{4}, "[[1,2,3,4]]", false},
		{[]int64{4}, "[[1],[2],[3],[4]]", false},
		{[]int64{4, 1}, "[[1],[2],[3],[4]]", true},
		{[]int64{1, 4}, "[[1],[2],[3],[4]]", false},
		{[]int64{2, 1, 2}, "[[[1,2]],[[3,4]]]", true},
		{[]int64{2, 1, 2}, "[[1,2],[3,4]]", false},
		{[]int64{1, 2, 2}, "[[1,2],[3,4]]", false},
		{[]int64{}, "5", true},
		{[]int64{}, "[5]", true},
		{[]int64{}, "[[5]]", false},
		{[]int64{1}, "5", false},
		{[]int64{1, 1, 1}, "[[[5]]]", true},
		{[]int64{0, 3}, "[]", true},
		{[]int64{2, 0}, "[[],[]]", true},
		{[]int64{2, 0}, "[[]]", false},
		{[]int64{2, 0}, "[[[]],[]]", false},
	} {
		for _, kind := range []string{"FP32", "INT64", "BYTES"} {
			x, text := Tensor{Name: "x", DataType: kind, Shape: c.shape}, c.data
			if kind == "BYTES" {
				text = regexp.MustCompile(`\d`).ReplaceAllString(text, `"$0]["`) // brackets in strings do not count
			}
			err := x.setJSON([]byte(text), func(int64) error { return nil })
			if (err == nil) != c.fits || err != nil && (!errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), `input "x"`)) {
				t.Errorf("%s %v of %v: %v", kind, text, c.shape, err)
			}
		}
	}
	deep := strings.Repeat("[", 5000) + "1" + strings.Repeat("]", 5000)
	if err := (&Tensor{DataType: "FP32", Shape: make([]int64, mostDimensions)}).setJSON([]byte(deep), func(int64) error { return nil }); err == nil {
		t.Error("5,000 brackets are taken")
	}
}
