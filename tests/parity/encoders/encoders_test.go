// Package encoders_test compares sentence encoders with sentence-transformers. make.py writes the
// fixtures.
package encoders_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// expected is what sentence-transformers makes of a model's texts.
type expected struct {
	Texts   []string
	Vectors [][]float32
	Query   json.RawMessage // of an encoder: the vectors with the prompt "query"; of a ranker: the query
	Scores  [][]float32
}

func read(t *testing.T, name string) (e expected) {
	t.Helper()
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join("testdata", name, "expected.json")))(t), &e))
	return e
}

// furthest returns the largest difference of two tables. It is NaN if a number is. With `relative`
// it counts in the largest number of the row, where that is above 1.
func furthest(t *testing.T, got, want [][]float32, relative bool) (distance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d rows, want %d", len(got), len(want))
	}
	for i, row := range want {
		if len(got[i]) != len(row) {
			t.Fatalf("row %d: got %d numbers, want %d", i, len(got[i]), len(row))
		}
		scale := 1.0
		for k := 0; relative && k < len(row); k++ {
			scale = max(scale, math.Abs(float64(row[k])))
		}
		for k, v := range row {
			distance = max(distance, math.Abs(float64(got[i][k])-float64(v))/scale)
		}
	}
	return distance
}

// Each model gives the numbers of sentence-transformers, of all texts at once and of each alone.
func TestEncoders(t *testing.T) {
	torchtest.NoTF32(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for _, entry := range must.Get(os.ReadDir("testdata"))(t) {
			t.Run(entry.Name(), func(t *testing.T) { check(t, d, entry.Name()) })
		}
	})
}

func check(t *testing.T, d cgotorch.Device, name string) {
	want := read(t, name)
	e := must.Get(text.OpenEncoder(d, filepath.Join("testdata", name), text.EncoderOptions{}))(t)
	defer func() { must.Do(t, e.Close()) }()
	near := func(what string, got, want [][]float32) {
		t.Helper()
		distance := furthest(t, got, want, d.IsCUDA()) // its products add in another order
		if t.Logf("%s: %.2g", what, distance); !(distance <= 1e-5) {
			t.Errorf("%s: the numbers differ by %.2g, want at most 1e-5", what, distance)
		}
	}
	if strings.HasPrefix(name, "cross-") {
		var query string
		must.Do(t, json.Unmarshal(want.Query, &query))
		near("scores", [][]float32{must.Get(e.Rank(t.Context(), query, want.Texts))(t)}, want.Scores)
		for i, one := range want.Texts {
			near("score of "+one, [][]float32{must.Get(e.Rank(t.Context(), query, []string{one}))(t)}, [][]float32{want.Scores[0][i : i+1]})
		}
		return
	}
	near("vectors", must.Get(e.Embed(t.Context(), want.Texts))(t), want.Vectors)
	for i, one := range want.Texts {
		near("vector of "+one, must.Get(e.Embed(t.Context(), []string{one}))(t), want.Vectors[i:i+1])
	}
	if want.Query != nil {
		var vectors [][]float32
		must.Do(t, json.Unmarshal(want.Query, &vectors))
		near("vectors of queries", must.Get(must.Get(e.WithPrompt("query"))(t).Embed(t.Context(), want.Texts))(t), vectors)
	}
}
