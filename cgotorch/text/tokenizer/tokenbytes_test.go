package tokenizer

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/streamtorch/streamtorch/internal/must"
)

// Joined, the bytes of an ordinary text's tokens are the text that Decode returns, but for a space
// at its beginning.
func TestTokenizer_Bytes(t *testing.T) {
	for name, local := range map[string]bool{"llama2": true, "llama3": true, "mistral": true, "t5": true, "clip": true, "converted": true, "bert": false, "words": false} {
		tokens, lines := open(t, name)
		some := false
		for id := range int64(tokens.Size()) {
			b, ok := tokens.Bytes(id)
			name, exists := tokens.Token(id)
			if some = some || ok; ok && (!exists || tokens.special[name]) {
				t.Errorf("%s: token %d, %q, has the bytes %q", name, id, name, b)
			}
		}
		if some != local {
			t.Errorf("%s: some tokens have bytes: %v, want %v", name, some, local)
		}
		for _, line := range lines {
			var joined []byte
			ids := tokens.EncodePart(line.Text)
			for _, id := range ids {
				b, _ := tokens.Bytes(id)
				joined = append(joined, b...)
			}
			got, want := string(joined), tokens.Decode(ids)
			if local && utf8.Valid(joined) && got != want && strings.TrimPrefix(got, " ") != want {
				t.Errorf("%s: the bytes of %q are %q, and its text is %q", name, line.Text, got, want)
			}
		}
		for _, id := range []int64{-1, int64(tokens.Size())} {
			if _, ok := tokens.Bytes(id); ok {
				t.Errorf("%s: token %d has bytes", name, id)
			}
		}
	}
}

func TestTokenizer_Bytes_Decoders(t *testing.T) {
	const replace = `{"type":"Replace","pattern":{"String":"▁"},"content":" "}`
	for _, test := range []struct{ decoder, want string }{
		{`{"type":"ByteLevel"}`, "<0x0A>|\xc3|▁é|<b>"},
		{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}`, "<0x0A>|Ã| é|<b>"},
		{`{"type":"Sequence","decoders":[` + replace + `,{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}`, "\n|Ã| é|<b>"},
		{`{"type":"Sequence","decoders":[{"type":"Sequence","decoders":[` + replace + `]},{"type":"Fuse"}]}`, "<0x0A>|Ã| é|<b>"},
		{`{"type":"Sequence","decoders":[{"type":"Fuse"},` + replace + `]}`, ""},
		{`{"type":"Sequence","decoders":[{"type":"ByteFallback"},` + replace + `]}`, ""},
		{`{"type":"Sequence","decoders":[{"type":"Strip","content":" ","start":1,"stop":0}]}`, ""},
		{`{"type":"CTC"}`, ""}, {`{"type":"BPEDecoder"}`, ""}, {`{"type":"WordPiece"}`, ""}, {`null`, ""},
	} {
		file := `{"model":{"type":"WordLevel","unk_token":"<0x0A>","vocab":{"<0x0A>":0,"Ã":1,"▁é":2}},"decoder":` + test.decoder +
			`,"added_tokens":[{"id":3,"content":"<b>"},{"id":4,"content":"<s>","special":true}]}`
		tokens := must.Get(parse([]byte(file)))(t)
		var got []string
		for id := range int64(5) {
			if b, ok := tokens.Bytes(id); ok {
				got = append(got, string(b))
			}
		}
		if want := strings.Split(test.want, "|"); test.want == "" && got != nil || test.want != "" && !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", test.decoder, got, want)
		}
	}
}
