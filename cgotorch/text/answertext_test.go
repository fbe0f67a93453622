package text_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// bytesTokenizer has a token for each of a few bytes. The last two are the bytes of é.
const bytesTokenizer = `{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "Ã": 4, "©": 5}, "merges": []}, "decoder": {"type": "ByteLevel"}}`

// An answer comes in whole characters, and ends before the first text of Stop, wherever the texts
// overlap and however they are split.
func TestGenerateOptions_Stop(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(configs["llama"]), 0o644))
	must.Do(t, os.WriteFile(filepath.Join(folder, "tokenizer.json"), []byte(bytesTokenizer), 0o644))
	m := must.Get(text.Open(cgotorch.CPU, folder, text.Options{RandomWeights: 7}))(t)
	defer m.Close()
	c := m.NewConversation()
	defer c.Close()
	const first, second = 4, 5 // of é
	for _, test := range []struct {
		ids    []int64
		stop   []string
		want   string // texts of the tokens, with | between
		reason string
	}{
		{[]int64{0, 1, 2, 3, 0}, nil, "a|b|c|d|a", "length"},
		{[]int64{0, 1, 2, 3, 0}, []string{"cd"}, "a|b||", "stop"},
		{[]int64{0, 1, 2, 3, 0}, []string{"cd", "bcd"}, "a|||", "stop"},
		{[]int64{0, 1, 2, 3, 0}, []string{"bcd", "cd"}, "a|||", "stop"},
		{[]int64{0, 1, 1, 2}, []string{"bcd"}, "a||b|bc", "length"},
		{[]int64{0, first, second, 1}, nil, "a||é|b", "length"},
		{[]int64{0, first, second, 1}, []string{"é"}, "a||", "stop"},
		{[]int64{0, first}, nil, "a|\uFFFD", "length"},
		{[]int64{first, first, second, 0}, nil, "|\uFFFD|é|a", "length"},
		{[]int64{0}, []string{"a"}, "", "stop"},
	} {
		var got []string
		var reason string
		o := text.GenerateOptions{MaxTokens: len(test.ids), Stop: test.stop, Mask: func(answer []int64, allowed []bool) { allowed[test.ids[len(answer)]] = true }}
		for token, err := range c.Generate(t.Context(), []int64{1, 2}, o) {
			must.Do(t, err)
			got, reason = append(got, token.Text), token.Reason
		}
		if !slices.Equal(got, strings.Split(test.want, "|")) || reason != test.reason {
			t.Errorf("%v with %q: got %q, %q, want %q, %q", test.ids, test.stop, got, reason, strings.Split(test.want, "|"), test.reason)
		}
	}
}
