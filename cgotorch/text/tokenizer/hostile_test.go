package tokenizer

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// bases are the files that TestParse_Damaged damages.
var bases = []string{"converted", "llama3", "llama2", "mistral", "clip", "bert", "words"}

// odd are values that take the place of others.
var odd = []string{`null`, `true`, `-1`, `0`, `3000000000`, `1e300`, `-0.5`, `""`, `"x"`, `"\ud800"`, `[]`, `{}`, `[[[]]]`, `{"type":"Sequence"}`,
	`{"Regex":"(((a{900}){900}){900})"}`, `{"Regex":"(a*)*b|(?=(x+)+y)"}`, `{"Regex":"[[[[^a]&&b"}`, `{"String":""}`, `"BPE"`, `"ByteLevel"`, `"Metaspace"`,
	`{"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`, `{"type":"ByteLevel"}`, `{"type":"NFKD"}`,
	`{"Fixed":100000000000}`, `{"strategy":{"Fixed":9},"direction":"Left","pad_id":0}`, `{"max_length":1,"strategy":"OnlySecond"}`}

// damage changes one value somewhere in a tree of JSON.
func damage(r *rand.Rand, tree any) any {
	replacement := func() any {
		var v any
		if json.Unmarshal([]byte(odd[r.IntN(len(odd))]), &v) != nil {
			panic("odd")
		}
		return v
	}
	if r.IntN(6) == 0 {
		return replacement()
	}
	switch v := tree.(type) {
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		if len(keys) == 0 {
			return replacement()
		}
		slices.Sort(keys)
		k := keys[r.IntN(len(keys))]
		switch r.IntN(5) {
		case 0:
			delete(v, k)
		case 1:
			v[keys[r.IntN(len(keys))]] = v[k]
		default:
			v[k] = damage(r, v[k])
		}
		return v
	case []any:
		if len(v) == 0 {
			return []any{replacement()}
		}
		i := r.IntN(len(v))
		switch r.IntN(5) {
		case 0:
			return slices.Delete(v, i, i+1)
		case 1:
			return append(v, v[i], v[i])
		}
		v[i] = damage(r, v[i])
		return v
	}
	return replacement()
}

// A damaged file gives an error that names a field, or a tokenizer that works.
func TestParse_Damaged(t *testing.T) {
	r := rand.New(rand.NewPCG(48, 1))
	text := strings.Repeat("Größe 流 e\u0301 <wide>  12345 don't 🙂</s>", 50) + strings.Repeat("a", 3000)
	refused := 0
	for i := range 300 {
		data := must.Get(os.ReadFile(filepath.Join("testdata", bases[i%len(bases)]+".json")))(t)
		if i%10 == 0 {
			at := r.IntN(len(data))
			data = slices.Concat(data[:at], []byte{byte(r.Uint32())}, data[min(len(data), at+r.IntN(3)):])
		} else {
			var tree any
			must.Do(t, json.Unmarshal(data, &tree))
			for range 1 + r.IntN(3) {
				tree = damage(r, tree)
			}
			data = must.Get(json.Marshal(tree))(t)
		}
		tokens, err := parse(data)
		if err != nil {
			refused++
			named := strings.Contains(err.Error(), ": ")
			if !named || !errors.Is(err, ErrFormat) && !errors.Is(err, ErrUnsupported) {
				t.Errorf("file %d: %v is of no kind", i, err)
			}
		} else {
			ids := tokens.Encode(text)
			tokens.Decode(ids)
			_, _, _ = tokens.EncodePair(text, "x")
		}
	}
	if refused < 100 {
		t.Errorf("%d of 300 files are refused", refused)
	}
}

// Deep and large files are refused, and not read for ever.
func TestParse_TooLarge(t *testing.T) {
	nested := func(depth int) string {
		return strings.Repeat(`{"type":"Sequence","normalizers":[`, depth) + `{"type":"NFC"}` + strings.Repeat("]}", depth)
	}
	several := func(one string) string {
		return `{"type":"Sequence","normalizers":[` + strings.Repeat(one+",", 40) + one + "]}"
	}
	for name, normalizer := range map[string]string{
		"deep":    nested(3000),
		"growing": several(`{"type":"Replace","pattern":{"String":"a"},"content":"aa"}`),
		"bytes":   several(`{"type":"ByteLevel"}`),
		"repeats": `{"type":"Replace","pattern":{"Regex":"(((b{900}){900}){900})"},"content":""}`,
		"classes": `{"type":"Replace","pattern":{"Regex":"` + strings.Repeat("[^a]", 3000) + `"},"content":""}`,
		"groups":  `{"type":"Replace","pattern":{"Regex":"` + strings.Repeat("(", 4000) + `"},"content":""}`,
	} {
		_, err := parse([]byte(strings.Replace(simple, `{"type":"Strip","strip_left":true,"strip_right":true}`, normalizer, 1)))
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "normalizer") {
			t.Errorf("%s: %.300v", name, err)
		}
	}
}

// Long words take no time that grows with the square of their length: this test would then take
// hours.
func TestTokenizer_Encode_LongWord(t *testing.T) {
	for _, name := range append(slices.Clone(bases), "t5") {
		tokens, _ := open(t, name)
		for i, part := range []string{"a", "\u0301", "qwertyuiopasdfgh", " ", "\u1161", "\n", "!", "流", "\xff", "1", "<s>", "'"} {
			size := 30_000
			if i == 0 {
				size = 1_000_000
			}
			text := strings.Repeat(part, size/len(part))
			ids := tokens.Encode(text)
			if got := tokens.Count(text); got != len(ids) {
				t.Errorf("%s: %q has %d tokens, and %d", name, part, got, len(ids))
			}
			if got := tokens.Decode(ids); got != stream(tokens, ids) {
				t.Errorf("%s: %q streams as another text", name, part)
			}
		}
	}
}

// A pattern that tries again and again finds what it finds in little time.
func TestPattern_Each_Backtracking(t *testing.T) {
	for expression, text := range map[string]string{
		`(a+)+b`: strings.Repeat("a", 20_000), `(a|a)+b|a(?=a*b)`: strings.Repeat("a", 1000),
		`(?:a+)+$(?<!a)|c`: strings.Repeat("a", 20_000) + "c", `(\w+\s?)+!`: strings.Repeat("word ", 10_000),
	} {
		p := must.Get(newPattern(expression))(t)
		matches := 0
		p.each(text, func(_, _ int, match bool) {
			if match {
				matches++
			}
		})
		if want := strings.Count(text, "c"); matches != want {
			t.Errorf("%s has %d matches, want %d", expression, matches, want)
		}
	}
}
