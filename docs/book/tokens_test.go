package book

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// pieces gives the ids of transformers' BertTokenizerFast. testdata/bert.py made them.
func TestPieces(t *testing.T) {
	vocabulary, stored := map[string]int64{}, [2]string{}
	for i, name := range []string{"bert-vocab.txt", "bert.txt"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		stored[i] = strings.TrimSuffix(string(data), "\n")
	}
	for i, piece := range strings.Split(stored[0], "\n") {
		vocabulary[piece] = int64(i)
	}
	lines := strings.Split(stored[1], "\n")
	for _, line := range lines {
		var fields []json.RawMessage
		var text string
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(fields[0], &text); err != nil {
			t.Fatal(err)
		}
		var want []int64
		for _, field := range fields[1:] {
			var id int64
			if err := json.Unmarshal(field, &id); err != nil {
				t.Fatal(err)
			}
			want = append(want, id)
		}
		if got := pieces(vocabulary, text); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	if len(lines) < 100 {
		t.Errorf("%d texts, want 100", len(lines))
	}
}
