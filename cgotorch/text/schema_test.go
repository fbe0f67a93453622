package text_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/schematest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// straddling are tokens that begin in one part of a JSON value and end in another one.
var straddling = []string{`{"`, `"}`, `":`, `, "`, `","`, `":"`, `"},`, `"]`, `[[`, `]]`, `}}`, `],[`, `[]`, `: `, `true`, `tru`, `e,"`, `12`, `0,`, `1}`, `-1`, `.5`, `"a":`, `a":1`, `b":2,"b`, `\u00`,
	`\"`, `abc`, `kind`, ` "`, ` {`, "ä", "流", "20", "aaaa"}

// byteLevelFile is a tokenizer.json with the 256 bytes, straddling tokens and the special token of
// the end, which is the last one.
func byteLevelFile() (file string, size int) {
	vocab := map[string]int{}
	name := func(b int) string {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE && b <= 0xFF {
			return string(rune(b))
		}
		shift := 0
		for c := range b {
			if !(c >= '!' && c <= '~' || c >= 0xA1 && c <= 0xAC || c >= 0xAE && c <= 0xFF) {
				shift++
			}
		}
		return string(rune(256 + shift))
	}
	for b := range 256 {
		vocab[name(b)] = len(vocab)
	}
	for _, s := range straddling {
		all := ""
		for _, b := range []byte(s) {
			all += name(int(b))
		}
		vocab[all] = len(vocab)
	}
	data, _ := json.Marshal(vocab)
	return fmt.Sprintf(`{"model":{"type":"BPE","vocab":%s,"merges":[]},"decoder":{"type":"ByteLevel"},"added_tokens":[{"id":%d,"content":"<end>","special":true}]}`, data, len(vocab)),
		len(vocab) + 1
}

// piecesFile is a tokenizer.json as of SentencePiece, with byte fallback. A text begins with a
// space.
func piecesFile() (file string, size int) {
	vocab := map[string]int{"<unk>": 0}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = len(vocab)
	}
	for b := byte(' ') + 1; b < 127; b++ {
		vocab[string(rune(b))] = len(vocab)
	}
	for _, s := range append(slices.Clone(straddling), "", "  ") {
		if s = "▁" + s; !strings.ContainsAny(s, " \\") {
			vocab[s] = len(vocab)
		}
	}
	data, _ := json.Marshal(vocab)
	return fmt.Sprintf(`{"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
		"model":{"type":"BPE","unk_token":"<unk>","byte_fallback":true,"vocab":%s,"merges":[]},
		"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
		"added_tokens":[{"id":0,"content":"<unk>","special":true},{"id":%d,"content":"</s>","special":true}]}`, data, len(vocab)), len(vocab) + 1
}

// schemaModel opens a tiny model with a tokenizer. Its last token ends answers.
func schemaModel(t *testing.T, file string, size int) *text.Model {
	t.Helper()
	folder := t.TempDir()
	config := strings.NewReplacer(`"vocab_size": 61`, fmt.Sprintf(`"vocab_size": %d`, size+3), `"eos_token_id": 60`, fmt.Sprintf(`"eos_token_id": %d`, size-1)).Replace(configs["llama"])
	must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644))
	must.Do(t, os.WriteFile(filepath.Join(folder, "tokenizer.json"), []byte(file), 0o644))
	m := must.Get(text.Open(cgotorch.CPU, folder, text.Options{RandomWeights: 7}))(t)
	t.Cleanup(func() { must.Do(t, m.Close()) })
	return m
}

// schemaAnswer writes an answer that fits a schema.
func schemaAnswer(t *testing.T, m *text.Model, s *text.Schema, seed uint64, most int) (answer, reason string) {
	t.Helper()
	c := m.NewConversation()
	defer c.Close()
	o := text.GenerateOptions{MaxTokens: most, Temperature: 1.5, TopK: -1, Seed: seed, Mask: must.Get(m.SchemaMask(s))(t)}
	for token, err := range c.Generate(t.Context(), []int64{1, 2, int64(seed % 50)}, o) {
		must.Do(t, err)
		answer, reason = answer+token.Text, token.Reason
	}
	return answer, reason
}

// Answers of models fit random schemas, says another library, unless MaxTokens cuts them.
func TestModel_SchemaMask_RandomSchemas(t *testing.T) {
	torchtest.CheckLeaks(t)
	all := uint64(60)
	if os.Getenv("SCHEMAS") != "" {
		all = 500
	}
	for name, open := range map[string]func() (string, int){"bytes": byteLevelFile, "pieces": piecesFile} {
		file, size := open()
		m := schemaModel(t, file, size)
		cut, answers := 0, 0
		for seed := range all {
			schema := schematest.Random(rand.New(rand.NewPCG(30, seed)))
			fits := must.Get(schematest.Validator(schema))(t)
			s, err := text.CompileSchema([]byte(schema))
			if err != nil {
				t.Logf("%s: %v", schema, err)
				continue
			}
			answer, reason := schemaAnswer(t, m, s, seed, 600)
			if answers++; reason == "length" {
				cut++
			} else if err := fits(answer); err != nil || reason != "stop" {
				t.Errorf("%s, schema %d: %s gave %q, %s: %v", name, seed, schema, answer, reason, err)
			}
		}
		if t.Logf("%s: %d of %d answers are cut", name, cut, answers); cut*20 > answers || answers*10 < int(all)*9 {
			t.Errorf("%s: %d of %d answers are cut", name, cut, answers)
		}
	}
}

// A mask is right for any answer, also one that does not go on from that of the last call.
func TestModel_SchemaMask_Detours(t *testing.T) {
	file, size := byteLevelFile()
	m, end := schemaModel(t, file, size), int64(size-1)
	s := must.Get(text.CompileSchema([]byte(`{"type":"object","properties":{"a":{"enum":[1,12]}},"additionalProperties":{"type":"null"}}`)))(t)
	mask := must.Get(m.SchemaMask(s))(t)
	ids := func(s string) (ids []int64) {
		for _, b := range []byte(s) {
			ids = append(ids, int64(b))
		}
		return ids
	}
	for _, test := range []struct {
		answer []int64
		want   string // the bytes that may come next
		end    bool
	}{
		{nil, "{", false}, {ids(`{"a":1`), "2},", false}, {ids(`{"a":1`), "2},", false}, {ids(`{"a":12`), "},", false}, {ids(`{"a":1}`), "", true}, {ids(`{"a"`), ":", false},
		{ids(`{"b":n`), "u", false}, {append(ids(`{}`), end), "", true}, {append(ids(`{`), end), "", false}, {ids(`x`), "", false}, {[]int64{-1}, "", false}, {[]int64{1 << 40}, "", false},
		{[]int64{int64(size)}, "", false}, {ids(`{"b":null,`), "\"", false}, {ids(`{`), "\"}", false},
	} {
		allowed := make([]bool, size+3)
		mask(test.answer, allowed)
		got := ""
		for b := range 256 {
			if allowed[b] {
				got += string(rune(b))
			}
		}
		sorted := []byte(test.want)
		slices.Sort(sorted)
		if test.want == "\"" { // with a space
			sorted = []byte(` "`)
		}
		if got != string(sorted) || allowed[end] != test.end {
			t.Errorf("behind %v: got %q and the end %v, want %q and %v", test.answer, got, allowed[end], sorted, test.end)
		}
	}
	twice := make([]bool, size+3)
	mask(ids(`{"b":null,"b`), twice)
	if twice['"'] || !twice['c'] {
		t.Errorf("a key may come twice")
	}
	short := make([]bool, 100)
	mask(ids(`{`), short)
	if !short['"'] {
		t.Errorf("a short mask lacks the quote")
	}
}

// Many answers at once have the masks that they have alone.
func TestModel_SchemaMask_AtOnce(t *testing.T) {
	file, size := byteLevelFile()
	m := schemaModel(t, file, size)
	var callers sync.WaitGroup
	for seed := range uint64(40) {
		callers.Add(1)
		go func() {
			defer callers.Done()
			schema := schematest.Random(rand.New(rand.NewPCG(31, seed%8)))
			s, err := text.CompileSchema([]byte(schema))
			if err != nil {
				return
			}
			mask, err := m.SchemaMask(s)
			if err != nil {
				t.Error(err)
				return
			}
			r, answer := rand.New(rand.NewPCG(seed, 1)), []int64{}
			for range 100 {
				allowed, other := make([]bool, size+3), make([]bool, size+3)
				mask(answer, allowed)
				if again, _ := m.SchemaMask(s); len(answer)%10 == 0 {
					if again(answer, other); !slices.Equal(allowed, other) {
						t.Errorf("%s: two masks differ behind %v", schema, answer)
					}
				}
				if !slices.Contains(allowed, true) {
					t.Errorf("%s: nothing is allowed behind %v", schema, answer)
					return
				}
				id := r.IntN(len(allowed))
				for !allowed[id] {
					id = (id + 1) % len(allowed)
				}
				if answer = append(answer, int64(id)); id == size-1 {
					return
				}
			}
		}()
	}
	callers.Wait()
}

// A model that cannot be bound says so at once.
func TestModel_SchemaMask_Refuses(t *testing.T) {
	file, _ := byteLevelFile()
	s := must.Get(text.CompileSchema([]byte(`{}`)))(t)
	folder := func(config, tokens string) string {
		folder := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644))
		if tokens != "" {
			must.Do(t, os.WriteFile(filepath.Join(folder, "tokenizer.json"), []byte(tokens), 0o644))
		}
		return folder
	}
	endless := strings.Replace(configs["llama"], `, "eos_token_id": 60`, "", 1)
	for _, test := range []struct{ config, tokens, want string }{
		{configs["llama"], "", "needs a tokenizer"},
		{endless, file, "ends an answer"},
		{configs["llama"], strings.Replace(file, `"ByteLevel"`, `"WordPiece"`, 1), "joins words"},
		{configs["llama"], bytesTokenizer, "no token is '{' alone"},
	} {
		m := must.Get(text.Open(cgotorch.CPU, folder(test.config, test.tokens), text.Options{RandomWeights: 7}))(t)
		_, err := m.SchemaMask(s)
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("got %v, want %q", err, test.want)
		}
		must.Do(t, m.Close())
	}
	_, err := text.CompileSchema([]byte(`{"properties":{"age":{"multipleOf":0.3,"type":"number"}}}`))
	if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "text: schema: /properties/age/multipleOf: ") {
		t.Errorf("got %v", err)
	}
}
