package tokenizer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// tekken returns a tekken.json with the 256 bytes, and more tokens.
func tekken(more ...string) string {
	var tokens []string
	for rank := range 256 + len(more) {
		text := string([]byte{byte(rank)})
		if rank >= 256 {
			text = more[rank-256]
		}
		tokens = append(tokens, fmt.Sprintf(`{"rank":%d,"token_bytes":%q}`, rank, base64.StdEncoding.EncodeToString([]byte(text))))
	}
	return fmt.Sprintf(`{"config":{"pattern":" ?\\p{L}+|\\s+(?!\\S)|.","default_vocab_size":%d,"default_num_special_tokens":3,"version":"v7"},"version":1,
"special_tokens":[{"rank":0,"token_str":"<s>"},{"rank":1,"token_str":"</s>"}],"vocab":[%s]}`, 3+len(tokens), strings.Join(tokens, ","))
}

func TestOpen_Tekken(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	good := tekken("ab", "bc", "abc", " a", "流")
	write("tekken.json", good)
	tokens := must.Get(Open(folder))(t)
	if got, want := tokens.Encode("abc abcd</s>流!"), []int64{261, 35, 261, 103, 1, 263, 36}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := tokens.Decode([]int64{0, 261, 262, 3 + 0xe6, 3 + 0xb5, 3 + 0x81, 3 + 0xff}); got != "abc a流\uFFFD" {
		t.Errorf("got %q", got)
	}
	for id, want := range map[int64]string{1: "</s>", 2: "<SPECIAL_2>", 262: "Ġa"} {
		if got, ok := tokens.Token(id); !ok || got != want {
			t.Errorf("token %d is %q, want %q", id, got, want)
		}
	}
	for _, test := range []struct {
		old, new, want string
		kind           error
	}{
		{`"default_vocab_size":264`, `"default_vocab_size":265`, "config: default_vocab_size is 265", ErrFormat},
		{`"rank":7`, `"rank":8`, "vocab[7]: rank is 8", ErrFormat},
		{`"token_bytes":"Yg=="`, `"token_bytes":"?"`, "base64", ErrFormat},
		{`"token_bytes":"Yg=="`, `"token_bytes":"YQ=="`, "a byte is no token", ErrFormat},
		{`\\p{L}`, `\\p{Letters}`, "config.pattern", ErrUnsupported},
		{`"</s>"`, `"<s>"`, "special_tokens", ErrFormat},
		{`"rank":1,"token_str"`, `"rank":2,"token_str"`, "special_tokens[1]", ErrFormat},
		{`"default_vocab_size":264,"default_num_special_tokens":3`, `"default_vocab_size":262,"default_num_special_tokens":1`, "special_tokens: there are 2", ErrFormat},
		{good, `{"config":null,"vocab":[]}`, "config: it is null", ErrFormat},
	} {
		_, err := Open(write("tekken.json", strings.Replace(good, test.old, test.new, 1)))
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", test.new, err, test.want)
		}
	}
}

// Files of other libraries are refused with what to do.
func TestOpen_OtherForms(t *testing.T) {
	for _, name := range []string{"tokenizer.model", "qwen.tiktoken"} {
		folder := t.TempDir()
		path := filepath.Join(folder, name)
		must.Do(t, os.WriteFile(path, []byte("x"), 0o644))
		for _, opened := range []string{path, folder} {
			if _, err := Open(opened); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "save_pretrained") {
				t.Errorf("%s: %v", opened, err)
			}
		}
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("empty folder: %v", err)
	}
}
