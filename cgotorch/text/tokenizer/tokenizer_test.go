package tokenizer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/streamtorch/streamtorch/internal/must"
)

// line is a text with the results that Hugging Face's transformers gives for it.
type line struct {
	Text    string  `json:"text"`
	IDs     []int64 `json:"ids"`
	Plain   []int64 `json:"plain"`
	Decoded string  `json:"decoded"`
	Whole   string  `json:"whole"`
}

func open(t testing.TB, name string) (*Tokenizer, []line) {
	t.Helper()
	tokens := must.Get(Open(filepath.Join("testdata", name+".json")))(t)
	text := must.Get(os.ReadFile(filepath.Join("testdata", name+"_want.json")))(t)
	var lines []line
	if err := json.Unmarshal(text, &lines); err != nil || len(lines) < 60 {
		t.Fatal(len(lines), err)
	}
	return tokens, lines
}

func TestTokenizer_LikeTransformers(t *testing.T) {
	for _, name := range []string{"t5", "converted", "llama3", "llama2", "mistral", "clip", "bert", "words"} {
		t.Run(name, func(t *testing.T) {
			tokens, lines := open(t, name)
			for _, l := range lines {
				if got := tokens.Encode(l.Text); !slices.Equal(got, l.IDs) {
					t.Errorf("%+q: got %v, want %v", l.Text, got, l.IDs)
				}
				if got := tokens.EncodePart(l.Text); !slices.Equal(got, l.Plain) {
					t.Errorf("%+q, bare: got %v, want %v", l.Text, got, l.Plain)
				}
				if got := tokens.Decode(l.IDs); got != l.Decoded {
					t.Errorf("%v: got %+q, want %+q", l.IDs, got, l.Decoded)
				}
				if got := stream(tokens, l.IDs); got != l.Decoded {
					t.Errorf("%v: streams as %+q, want %+q", l.IDs, got, l.Decoded)
				}
				if got := tokens.Count(l.Text); got != len(l.IDs) {
					t.Errorf("%+q: has %d tokens, want %d", l.Text, got, len(l.IDs))
				}
				if got := tokens.decode(l.IDs, true); got != l.Whole {
					t.Errorf("%v, all: got %+q, want %+q", l.IDs, got, l.Whole)
				}
			}
		})
	}
}

// Several goroutines share a tokenizer, whose cache of words they fill.
func TestTokenizer_Encode_Goroutines(t *testing.T) {
	for _, name := range []string{"t5", "llama3", "bert"} {
		tokens, lines := open(t, name)
		var group sync.WaitGroup
		for range 4 {
			group.Add(1)
			go func() {
				defer group.Done()
				for _, l := range lines {
					if got := tokens.Encode(l.Text); !slices.Equal(got, l.IDs) {
						t.Errorf("%s: %+q: got %v, want %v", name, l.Text, got, l.IDs)
					}
				}
			}()
		}
		group.Wait()
	}
}

// stream returns the joined pieces of a Stream.
func stream(tokens *Tokenizer, ids []int64) string {
	s := Stream{Tokenizer: tokens}
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(s.Add(id))
	}
	return b.String() + s.Flush()
}

func TestTokenizer_Token(t *testing.T) {
	tokens, _ := open(t, "t5")
	size := tokens.Size()
	for id, want := range map[int64]string{0: "<pad>", 1: "</s>", int64(size - 1): "<extra_id_2>"} {
		if got, ok := tokens.Token(id); !ok || got != want {
			t.Errorf("token %d is %q", id, got)
		}
	}
	for _, id := range []int64{-1, int64(size)} {
		if got, ok := tokens.Token(id); ok {
			t.Errorf("there is a token %d, %q", id, got)
		}
	}
	if got := tokens.Decode([]int64{-1, 1 << 40, 1}); got != "" {
		t.Errorf("no tokens are %q", got)
	}
	if got, want := tokens.Encode("a\xffb"), tokens.Encode("a\uFFFDb"); !slices.Equal(got, want) {
		t.Errorf("no UTF-8: got %v, want %v", got, want)
	}
}

// simple is a legal tokenizer.json. Each case of TestParse changes a part of it.
const simple = `{"added_tokens":[{"id":3,"content":"<s>","special":true}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Replace","pattern":{"String":"x"},"content":"y"}]},
"pre_tokenizer":{"type":"Metaspace","replacement":"▁","add_prefix_space":false},
"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},{"SpecialToken":{"id":"<s>"}}],"special_tokens":{"<s>":{"ids":[3]}}},
"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1],["▁y",-2]]}}`

func TestParse(t *testing.T) {
	tokens := must.Get(parse([]byte(simple)))(t)
	if got, want := tokens.Encode(" a xbb<s>"), []int64{1, 2, 0, 3, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, test := range []struct {
		old, new string
		want     string
		kind     error
	}{
		{simple, "", "JSON", ErrFormat},
		{simple, "[]", "it is a array", ErrFormat},
		{simple, "{}", "model: it is missing", ErrFormat},
		{`"Unigram"`, `"WordPieces"`, "model.type: it is \"WordPieces\"", ErrUnsupported},
		{`"Unigram"`, `"WordPiece"`, "model.vocab: it is a array", ErrFormat},
		{`"Unigram"`, `3`, "model.type: it is a number", ErrFormat},
		{`["a",-1]`, `["a"]`, "model.vocab[1]", ErrFormat},
		{`["a",-1]`, `["a",-1,2]`, "model.vocab[1]", ErrFormat},
		{`["a",-1]`, `[1,-1]`, "model.vocab[1]", ErrFormat},
		{`["a",-1]`, `["a",null]`, "model.vocab[1]", ErrFormat},
		{`["a",-1]`, `null`, "model.vocab[1]", ErrFormat},
		{`[["<unk>",0],["a",-1],["▁y",-2]]`, `[]`, "model.vocab: it is empty", ErrFormat},
		{`"unk_id":0`, `"unk_id":3`, "model.unk_id: it is 3", ErrFormat},
		{`"unk_id":0`, `"unk_id":null`, "model.unk_id", ErrFormat},
		{`"id":3,`, `"id":-3,`, "added_tokens[0]: id is -3", ErrFormat},
		{`"id":3,`, `"id":1,`, "added_tokens[0]: id is 1", ErrFormat},
		{`{"id":3,"content":"<s>"`, `{"id":3,"content":"b"},{"id":3,"content":"<s>"`, `added_tokens[1]: id is 3 for "<s>"`, ErrFormat},
		{`"id":3,"content":"<s>"`, `"id":3,"content":" x","normalized":true},{"id":4,"content":"y","normalized":true},{"id":5,"content":"<s>"`,
			`added_tokens: id 4 is "y" when it is normalized`, ErrFormat},
		{`"content":"<s>"`, `"content":""`, "added_tokens[0]: content is empty", ErrFormat},
		{`"type":"Strip","strip_left"`, `"type":"Bert","strip_left"`, "normalizer.normalizers[0].type", ErrUnsupported},
		{`{"String":"x"}`, `{"Regex":"(?<=x+)"}`, "normalizer.normalizers[1].pattern", ErrUnsupported},
		{`{"String":"x"}`, `{}`, "normalizer.normalizers[1].pattern", ErrFormat},
		{`"type":"Strip","strip_left":true`, `"type":"Precompiled"`, "normalizers[0].precompiled_charsmap: it is missing", ErrFormat},
		{`"type":"Strip","strip_left":true`, `"type":"Precompiled","precompiled_charsmap":"?"`, "normalizers[0].precompiled_charsmap", ErrFormat},
		{`"type":"Strip","strip_left":true`, `"type":"Precompiled","precompiled_charsmap":"AAAA"`, "too short", ErrFormat},
		{`"type":"Strip","strip_left":true`, `"type":"Precompiled","precompiled_charsmap":"/////wAA"`, "its trie", ErrFormat},
		{`"type":"Metaspace"`, `"type":"Bytes"`, "pre_tokenizer.type", ErrUnsupported},
		{`"replacement":"▁"`, `"replacement":""`, "pre_tokenizer.replacement", ErrFormat},
		{`"add_prefix_space":false`, `"prepend_scheme":"last"`, "pre_tokenizer.prepend_scheme", ErrFormat},
		{`"TemplateProcessing"`, `"BertProcessing"`, "post_processor: sep or cls", ErrFormat},
		{`{"Sequence":{"id":"A"}},`, ``, "post_processor.single", ErrFormat},
		{`{"SpecialToken":{"id":"<s>"}}`, `{}`, "post_processor.single[1]", ErrFormat},
		{`{"<s>":{"ids":[3]}}`, `{}`, "post_processor.special_tokens", ErrFormat},
		{`"ids":[3]`, `"ids":[7]`, "post_processor.special_tokens", ErrFormat},
		{`"type":"Fuse"`, `"type":"BPE"`, "decoder.decoders[0].type", ErrUnsupported},
		{`"start":1`, `"start":"1"`, "decoder.decoders[1].start", ErrFormat},
	} {
		if !strings.Contains(simple, test.old) {
			t.Fatalf("%s is not there", test.old)
		}
		path := filepath.Join(t.TempDir(), "tokenizer.json")
		must.Do(t, os.WriteFile(path, []byte(strings.Replace(simple, test.old, test.new, 1)), 0o644))
		_, err := Open(path)
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%.40s for %.40s: got %v, want %q", test.new, test.old, err, test.want)
		}
	}
	bare, err := parse([]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1]]}}`))
	if err != nil || !slices.Equal(bare.Encode("a"), []int64{1}) {
		t.Errorf("without normalizer and pre_tokenizer: %v", err)
	}
	if _, err := Open("no/such.json"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// The tokenizer does not panic, whatever the file and the text are. Each id that Encode returns
// belongs to a token.
func FuzzTokenizer(f *testing.F) {
	data, err := os.ReadFile(filepath.Join("testdata", "converted.json"))
	must.Do(f, err)
	f.Add(string(data), "A cafe\u0301 <wide> 流\x00")
	f.Add(simple, " a xbb<s>")
	for _, name := range bases {
		f.Add(string(must.Get(os.ReadFile(filepath.Join("testdata", name+".json")))(f)), "Größe 流 12 don't\n\n x")
	}
	tokens, lines := open(f, "t5")
	for _, l := range lines {
		f.Add("", l.Text)
	}
	f.Fuzz(func(t *testing.T, file, text string) {
		tokens := tokens
		if file != "" {
			var err error
			if tokens, err = parse([]byte(file)); err != nil {
				if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrUnsupported) {
					t.Errorf("%v is of no kind", err)
				}
				return
			}
		}
		ids := tokens.Encode(text)
		for _, id := range ids {
			if _, ok := tokens.Token(id); !ok {
				t.Errorf("%q gives %d, which is no token", text, id)
			}
		}
		if got, want := stream(tokens, ids), tokens.Decode(ids); got != want || !utf8.ValidString(got) {
			t.Errorf("%v streams as %q, want %q", ids, got, want)
		}
		_, _, _ = tokens.EncodePair(text, "b")
	})
}
