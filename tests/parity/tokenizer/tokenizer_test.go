// Package tokenizer_test compares package tokenizer with Hugging Face's library in Python, on
// tokenizers of all kinds and random texts.
package tokenizer_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// record is what the library makes of a text.
type record struct {
	text    string
	ids     []int64
	some    []int64 // other ids, with their text
	decoded string
	second  string // is empty in most records, and the ids of the pair too
	pair    []int64
	kinds   []int64
}

func (r *record) read(from io.Reader) error {
	part := func() []byte {
		var length int32
		if binary.Read(from, binary.LittleEndian, &length) != nil {
			return nil
		}
		data := make([]byte, length)
		_, _ = io.ReadFull(from, data)
		return data
	}
	ids := func() []int64 {
		data := part()
		all := make([]int64, len(data)/4)
		for i := range all {
			all[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:])))
		}
		return all
	}
	text := part()
	if text == nil {
		return io.ErrUnexpectedEOF
	}
	*r = record{string(text), ids(), ids(), string(part()), string(part()), ids(), ids()}
	return nil
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// The ids and the decoded texts are those of the library. $TOKENIZER_FILES and $TOKENIZER_TEXTS
// say how many tokenizers are trained, and how many texts each of them gets. $TOKENIZER_REAL lists
// other tokenizer.json, with spaces between them. $TOKENIZER_SEED is the seed.
func TestTokenizer_LikePeer(t *testing.T) {
	python := torchtest.Python(t, "tokenizers")
	files, texts, seed := number("TOKENIZER_FILES", 24), number("TOKENIZER_TEXTS", 150), number("TOKENIZER_SEED", 1)
	folder, list := t.TempDir(), strings.Fields(os.Getenv("TOKENIZER_REAL"))
	ctx, cancel := context.WithCancel(t.Context())
	peer := exec.CommandContext(ctx, python, append([]string{"peer.py", folder, fmt.Sprint(files), fmt.Sprint(texts), fmt.Sprint(seed)}, list...)...)
	peer.Stderr = os.Stderr
	out := must.Get(peer.StdoutPipe())(t)
	must.Do(t, peer.Start())
	defer func() { cancel(); _ = peer.Wait() }()
	from := bufio.NewReaderSize(out, 1<<20)
	for i := range files + len(list) {
		path := filepath.Join(folder, fmt.Sprintf("%d.json", i))
		if i >= files {
			path = list[i-files]
		}
		var r record
		must.Do(t, r.read(from)) // the file is there when its first record is
		tokens, err := tokenizer.Open(path)
		if err != nil {
			t.Error(err)
		}
		wrong := 0
		for n := range texts {
			if n > 0 {
				must.Do(t, r.read(from))
			}
			if tokens == nil {
				continue
			}
			if err := compare(tokens, &r); err != nil {
				if wrong++; wrong <= 3 {
					t.Errorf("%s, text %d: %v", path, n, err)
				}
			}
		}
		if wrong > 0 {
			t.Errorf("%s: %d of %d texts differ", path, wrong, texts)
			keep(t, path)
		}
		t.Logf("%s: %d texts", path, texts)
	}
}

// Each character is in the classes in which the library has it, and becomes what the library makes
// of it. $TOKENIZER_STEP is 1 for all characters.
func TestTokenizer_EveryCharacter(t *testing.T) {
	python := torchtest.Python(t, "tokenizers")
	folder := t.TempDir()
	peer := exec.CommandContext(t.Context(), python, "characters.py", folder, fmt.Sprint(number("TOKENIZER_STEP", 64)))
	peer.Stderr = os.Stderr
	out := must.Get(peer.Output())(t)
	from := bytes.NewReader(out)
	var tokens *tokenizer.Tokenizer
	var r record
	for file, first := -1, ""; r.read(from) == nil; {
		if first == "" || r.text == first {
			file, first = file+1, r.text
			tokens = must.Get(tokenizer.Open(filepath.Join(folder, fmt.Sprintf("%d.json", file))))(t)
		}
		if got := tokens.Encode(r.text); !slices.Equal(got, r.ids) {
			at := 0
			for at < min(len(got), len(r.ids)) && got[at] == r.ids[at] {
				at++
			}
			rules := must.Get(os.ReadFile(filepath.Join(folder, fmt.Sprintf("%d.json", file))))(t)
			t.Errorf("file %d, characters from %+.10q: byte %d differs; got %d, want %d; %.400q", file, r.text, at, got[at:min(at+8, len(got))], r.ids[at:min(at+8, len(r.ids))], rules[:min(len(rules), 600)])
		}
	}
}

// Random regular expressions cut texts where the library cuts them. An expression that the package
// does not know is refused. $TOKENIZER_PATTERNS says how many there are.
func TestTokenizer_Patterns(t *testing.T) {
	python := torchtest.Python(t, "tokenizers")
	folder, count := t.TempDir(), number("TOKENIZER_PATTERNS", 300)
	peer := exec.CommandContext(t.Context(), python, "patterns.py", folder, fmt.Sprint(count), fmt.Sprint(number("TOKENIZER_SEED", 1)))
	from := bytes.NewReader(must.Get(peer.Output())(t))
	refused := 0
	for i := range count {
		path := filepath.Join(folder, fmt.Sprintf("%d.json", i))
		tokens, err := tokenizer.Open(path)
		if errors.Is(err, tokenizer.ErrUnsupported) {
			refused++
			t.Log(err)
		} else if err != nil {
			t.Error(err)
		}
		for range 12 {
			var r record
			must.Do(t, r.read(from))
			if err != nil {
				continue
			}
			if got := tokens.Encode(r.text); !slices.Equal(got, r.ids) {
				rules := must.Get(os.ReadFile(path))(t)
				_, rules, _ = bytes.Cut(rules, []byte(`"Regex":`))
				rules, _, _ = bytes.Cut(rules, []byte("\n"))
				t.Errorf("%s cuts %+q into %v, want %v", rules, r.text, got, r.ids)
			}
		}
	}
	if refused > count/5 {
		t.Errorf("%d of %d expressions are refused", refused, count)
	}
}

// keep copies a file to $TOKENIZER_KEEP, to look at it.
func keep(t *testing.T, path string) {
	if folder := os.Getenv("TOKENIZER_KEEP"); folder != "" {
		data := must.Get(os.ReadFile(path))(t)
		must.Do(t, os.WriteFile(filepath.Join(folder, filepath.Base(path)), data, 0o644))
	}
}

func compare(tokens *tokenizer.Tokenizer, r *record) error {
	if got := tokens.Encode(r.text); !slices.Equal(got, r.ids) {
		return fmt.Errorf("%+q has ids %v, want %v", r.text, got, r.ids)
	}
	if got := tokens.Decode(r.some); got != r.decoded {
		return fmt.Errorf("%v are %+q, want %+q", r.some, got, r.decoded)
	}
	s := tokenizer.Stream{Tokenizer: tokens}
	streamed := ""
	for _, id := range r.some {
		streamed += s.Add(id)
	}
	if streamed += s.Flush(); streamed != r.decoded {
		return fmt.Errorf("%v stream as %+q, want %+q", r.some, streamed, r.decoded)
	}
	if len(r.pair) == 0 {
		return nil
	}
	pair, kinds, err := tokens.EncodePair(r.text, r.second)
	if failed := r.pair[0] < 0; failed != (err != nil) || !failed && (!slices.Equal(pair, r.pair) || !slices.Equal(kinds, r.kinds)) {
		return fmt.Errorf("%+q and %+q are %v of types %v (%v), want %v of types %v", r.text, r.second, pair, kinds, err, r.pair, r.kinds)
	}
	return nil
}
