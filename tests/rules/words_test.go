package rules

import (
	"bytes"
	"fmt"
	"go/doc/comment"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

const (
	maxColumns = 100 // of a line of comment, from its "//" to its end
	maxWords   = 25  // of a sentence in a comment of the library
	maxLong    = 1   // at most this percentage of these sentences may be longer
)

var (
	generatedMark = regexp.MustCompile(`(?m)^(//|/\*) Code generated .* DO NOT EDIT`)
	// A directive, such as go:generate or edge:NAME, cannot be broken into several lines.
	directive    = regexp.MustCompile(`^//([a-z]+:[^ ]|(export|line|nolint)\b)`)
	cComment     = regexp.MustCompile(`(?ms)(?:^|\s)(//[^\n]*|/\*.*?\*/)`)
	rawString    = regexp.MustCompile(`(?s)R"cuda\(.*?\)cuda"`)
	abbreviation = regexp.MustCompile(`(?i)(^|[(\["'])(e\.g|i\.e|etc|vs|cf|approx|resp)\.$`)
)

// width returns the number of columns of a line. A tab fills up to a multiple of 4.
func width(line string) int {
	columns := 0
	for _, r := range strings.TrimRightFunc(line, unicode.IsSpace) {
		if r == '\t' {
			columns += 4 - columns%4
		} else {
			columns++
		}
	}
	return columns
}

// No comment in Go and C++ is too wide.
func TestWords_Width(t *testing.T) {
	check := func(path string, text []byte, offset int, lines string) {
		for i, line := range strings.Split(lines, "\n") {
			line = strings.TrimLeftFunc(line, unicode.IsSpace)
			if columns := width(line); columns > maxColumns && !directive.MatchString(line) {
				t.Errorf("%s:%d: comment of %d columns, want at most %d", path, 1+bytes.Count(text[:offset], []byte("\n"))+i, columns, maxColumns)
			}
		}
	}
	for _, s := range sources(t) {
		for _, group := range s.file.Comments {
			offset := func(p token.Pos) int { return int(p - s.file.FileStart) }
			if generatedMark.Match(s.text) || bytes.HasPrefix(s.text[offset(group.End()):], []byte("\nimport \"C\"")) { // the C code above import "C" is no comment
				continue
			}
			for _, c := range group.List {
				check(s.path, s.text, offset(c.Pos()), c.Text)
			}
		}
	}
	for _, path := range tracked(t) {
		if !strings.HasSuffix(path, ".cc") && !strings.HasSuffix(path, ".h") {
			continue
		}
		text := rawString.ReplaceAllStringFunc(document(t, path), func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
		for _, at := range cComment.FindAllStringSubmatchIndex(text, -1) {
			check(path, []byte(text), at[2], text[at[2]:at[3]])
		}
	}
}

// Few sentences in the comments of the library are too long.
func TestWords_Sentences(t *testing.T) {
	all, long := 0, []string{}
	for _, s := range sources(t) {
		room, _, _ := strings.Cut(filepath.ToSlash(s.path), "/")
		if !slices.Contains([]string{"cgotorch", "imageloader", "prefetcher", "internal"}, room) || strings.HasSuffix(s.path, "_test.go") || generatedMark.Match(s.text) {
			continue
		}
		for _, group := range s.file.Comments {
			for _, words := range sentences(group.Text()) {
				if all++; len(words) > maxWords {
					long = append(long, fmt.Sprintf("%s: sentence of %d words: %s", s.path, len(words), strings.Join(words[:6], " ")))
				}
			}
		}
	}
	if t.Logf("%d of %d sentences are long", len(long), all); 100*len(long) > maxLong*all || all == 0 {
		t.Errorf("%d of %d sentences are longer than %d words, want at most %d %%:\n%s", len(long), all, maxWords, maxLong, strings.Join(long, "\n"))
	}
}

// sentences returns the words of each sentence of a doc comment. Blocks of code have no sentences.
// A link, such as [Exec], is one word. A sign that has neither letters nor digits is no word.
func sentences(text string) (all [][]string) {
	var add func(blocks []comment.Block)
	paragraph := func(texts []comment.Text) {
		var b strings.Builder
		for _, part := range texts {
			switch part := part.(type) {
			case comment.Plain:
				b.WriteString(string(part))
			case comment.Italic:
				b.WriteString(string(part))
			default:
				b.WriteString("link")
			}
		}
		var words []string
		end := func() {
			if len(words) > 0 {
				all = append(all, words)
			}
			words = nil
		}
		for _, word := range strings.Fields(b.String()) {
			if !strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
				continue
			}
			words = append(words, word)
			bare := strings.TrimRight(word, `)]"'”’`+"`")
			last, _ := utf8.DecodeLastRuneInString(bare)
			if strings.ContainsRune(".?!", last) && !strings.HasSuffix(bare, "...") && !abbreviation.MatchString(bare) {
				end()
			}
		}
		end()
	}
	add = func(blocks []comment.Block) {
		for _, block := range blocks {
			switch block := block.(type) {
			case *comment.Paragraph:
				paragraph(block.Text)
			case *comment.Heading:
				paragraph(block.Text)
			case *comment.List:
				for _, item := range block.Items {
					add(item.Content)
				}
			}
		}
	}
	add(new(comment.Parser).Parse(text).Content)
	return all
}

func TestWords_Counters(t *testing.T) {
	const in = `Package p counts, e.g. files such as a.go, in 0.5 s. Does it… wait? Yes; no: one
sentence.

# Heading

  - first item
    goes on
  - second item. New sentence

As in:

	code is. no sentence.

See [the link of words] - end
`
	got := ""
	for _, words := range sentences(in) {
		got += fmt.Sprint(len(words), " ")
	}
	if want := "11 3 4 1 4 2 2 2 6 "; got != want {
		t.Errorf("words of sentences: got %s, want %s", got, want)
	}
	if got := width("// ä\tx \t"); got != 9 {
		t.Errorf("width is %d, want 9", got)
	}
}
