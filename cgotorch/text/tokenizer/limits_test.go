package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// pairs is a tokenizer.json of single letters. The tests set its truncation and padding.
const pairs = `{"truncation":null,"padding":null,"added_tokens":[{"id":4,"content":"<s>","special":true}],"pre_tokenizer":{"type":"FixedLength","length":1},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
"pair":[{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<s>","type_id":2}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"ids":[4]}}},
"model":{"type":"WordLevel","unk_token":"?","vocab":{"?":0,"a":1,"b":2,"c":3}}}`

// The expected rows are those of tokenizers 0.23.
func TestTokenizer_EncodePair(t *testing.T) {
	cut := func(strategy, direction string) string {
		return `"truncation":{"max_length":4,"stride":0,"strategy":"` + strategy + `","direction":"` + direction + `"}`
	}
	for _, test := range []struct {
		truncation, padding string
		first, second       string
		ids, kinds          []int64
		single              []int64 // the tokens of the first text alone
	}{
		{"", "", "ab", "c", []int64{1, 2, 4, 3}, []int64{0, 0, 2, 1}, []int64{4, 1, 2}},
		{"", "", "", "", []int64{4}, []int64{2}, []int64{4}},
		{cut("LongestFirst", "Right"), "", "abcab", "cb", []int64{1, 2, 4, 3}, []int64{0, 0, 2, 1}, []int64{4, 1, 2, 3}},
		{cut("LongestFirst", "Left"), "", "abcab", "cb", []int64{1, 2, 4, 2}, []int64{0, 0, 2, 1}, []int64{4, 3, 1, 2}},
		{cut("OnlyFirst", "Right"), "", "abcab", "cb", []int64{1, 4, 3, 2}, []int64{0, 2, 1, 1}, []int64{4, 1, 2, 3}},
		{cut("OnlyFirst", "Right"), "", "a", "cbcb", nil, nil, []int64{4, 1}},
		{cut("OnlySecond", "Right"), "", "abcab", "", nil, nil, []int64{4, 1, 2, 3, 1, 2}},
		{"", `"padding":{"strategy":{"Fixed":5},"direction":"Left","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":7,"pad_token":"?"}`, "a", "b",
			[]int64{0, 0, 1, 4, 2}, []int64{7, 7, 0, 2, 1}, []int64{0, 0, 0, 4, 1}},
		{"", `"padding":{"strategy":"BatchLongest","direction":"Right","pad_to_multiple_of":4,"pad_id":0,"pad_type_id":0,"pad_token":"?"}`, "ab", "bc",
			[]int64{1, 2, 4, 2, 3, 0, 0, 0}, []int64{0, 0, 2, 1, 1, 0, 0, 0}, []int64{4, 1, 2, 0}},
	} {
		file := pairs
		if test.truncation != "" {
			file = strings.Replace(file, `"truncation":null`, test.truncation, 1)
		}
		if test.padding != "" {
			file = strings.Replace(file, `"padding":null`, test.padding, 1)
		}
		tokens := must.Get(parse([]byte(file)))(t)
		ids, kinds, err := tokens.EncodePair(test.first, test.second)
		if !slices.Equal(ids, test.ids) || !slices.Equal(kinds, test.kinds) || (err != nil) != (test.ids == nil) {
			t.Errorf("%q and %q with %s%s: got %v of types %v (%v), want %v of types %v", test.first, test.second, test.truncation, test.padding, ids, kinds, err, test.ids, test.kinds)
		}
		if got := tokens.Encode(test.first); !slices.Equal(got, test.single) {
			t.Errorf("%q with %s%s: got %v, want %v", test.first, test.truncation, test.padding, got, test.single)
		}
		if got := tokens.Count(test.first); got != len(test.first)+1 {
			t.Errorf("%q has %d tokens", test.first, got)
		}
	}
}

// A pattern that the package does not know is refused with its name.
func TestPattern_Refused(t *testing.T) {
	for expression, want := range map[string]string{
		`a\Kb`: `\\K`, `\R`: `\\R`, `(a)\1`: `\\1`, `(?x)a b`: `(?x)`, `\p{Klingon}`: `\\p{Klingon}`, `(?<=a+)b`: "look-behind", `(?i)strasse`: `"ss"`, `(a|b*)+`: "can be empty",
		`a{5000}`: `{5000}`, `(a`: "( too many", `a)`: ") too many", `[a`: "no end", `*a`: "*a", `[b-a]`: "b-a",
	} {
		file := strings.Replace(pairs, `{"type":"FixedLength","length":1}`,
			`{"type":"Split","behavior":"Isolated","invert":false,"pattern":{"Regex":"`+strings.ReplaceAll(expression, `\`, `\\`)+`"}}`, 1)
		if _, err := parse([]byte(file)); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "pre_tokenizer.pattern.Regex: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

// A Tokenizer with a limit cuts at the end that the file names, and fills nothing up.
func TestTokenizer_Limit(t *testing.T) {
	file := strings.Replace(pairs, `"truncation":null,"padding":null`, `"truncation":{"max_length":2,"stride":0,"strategy":"OnlyFirst","direction":"Left"},
"padding":{"strategy":{"Fixed":9},"direction":"Left","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":7,"pad_token":"?"}`, 1)
	of := must.Get(parse([]byte(file)))(t)
	for _, test := range []struct {
		length     int
		single, of []int64
	}{{5, []int64{4, 2, 3, 1, 2}, []int64{1, 2, 4, 3, 2}}, {1, []int64{4}, []int64{4}}, {0, []int64{4}, []int64{4}}, {9, []int64{4, 1, 2, 3, 1, 2}, []int64{1, 2, 3, 1, 2, 4, 3, 2}}} {
		tokens := of.Limit(test.length)
		if got := tokens.Encode("abcab"); !slices.Equal(got, test.single) {
			t.Errorf("of %d tokens: got %v, want %v", test.length, got, test.single)
		}
		if got, _, err := tokens.EncodePair("abcab", "cb"); !slices.Equal(got, test.of) || err != nil {
			t.Errorf("a pair of %d tokens: got %v (%v), want %v", test.length, got, err, test.of)
		}
	}
	if got, want := of.Encode("abcab"), []int64{0, 0, 0, 0, 0, 0, 0, 4, 2}; !slices.Equal(got, want) {
		t.Errorf("the file's own row is %v, want %v", got, want)
	}
}
