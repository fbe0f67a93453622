package tokenizer

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// normalizer changes a text before pre-tokenizers cut it.
type normalizer func(text string) string

// preTokenizer cuts a piece of text into smaller pieces. The model then encodes each piece alone.
type preTokenizer func(p piece) []piece

// decoder turns the names of tokens into pieces of text.
type decoder func(tokens []string) []string

// piece is a part of a text.
type piece struct {
	text  string
	first bool // whether the piece begins the text
}

// pattern is a string or a regular expression of Go. Go refuses regular expressions with
// look-around.
type pattern struct{ String, Regex *string }

func (p pattern) compile() (*regexp.Regexp, error) {
	switch {
	case p.String != nil:
		return regexp.Compile(regexp.QuoteMeta(*p.String))
	case p.Regex != nil:
		return regexp.Compile(*p.Regex)
	}
	return nil, fmt.Errorf("it has neither String nor Regex")
}

func splitAtSpaces(p piece) []piece {
	var pieces []piece
	begin := -1
	for i, r := range p.text + " " {
		switch space := unicode.IsSpace(r); {
		case space && begin >= 0:
			pieces = append(pieces, piece{p.text[begin:i], p.first && begin == 0})
			begin = -1
		case !space && begin < 0:
			begin = i
		}
	}
	return pieces
}

// metaspace replaces each space by a mark. The mark stands at the beginning of words.
type metaspace struct {
	mark   string
	scheme string // "always", "first" or "never": which pieces get a mark in front, if they have none there
	split  bool   // whether to cut before each mark
}

func (m metaspace) cut(p piece) []piece {
	p.text = strings.ReplaceAll(p.text, " ", m.mark)
	if !strings.HasPrefix(p.text, m.mark) && (m.scheme == "always" || m.scheme == "first" && p.first) {
		p.text = m.mark + p.text
	}
	if !m.split {
		return []piece{p}
	}
	var pieces []piece
	for rest := p.text; rest != ""; {
		_, skip := utf8.DecodeRuneInString(rest)
		end := strings.Index(rest[skip:], m.mark)
		if end < 0 {
			end = len(rest) - skip
		}
		pieces = append(pieces, piece{rest[:skip+end], p.first && len(pieces) == 0})
		rest = rest[skip+end:]
	}
	return pieces
}

func (m metaspace) decode(tokens []string) []string {
	for i, t := range tokens {
		space := " "
		if i == 0 && m.scheme != "never" {
			space = ""
		}
		tokens[i] = strings.ReplaceAll(t, m.mark, space)
	}
	return tokens
}

// decodeBytes replaces the tokens <0x00> to <0xFF> by the bytes that they name. If the bytes of
// several of these tokens in a row are not UTF-8, each of the tokens becomes U+FFFD.
func decodeBytes(tokens []string) []string {
	var out []string
	var data []byte
	flush := func() {
		switch {
		case len(data) == 0:
		case utf8.Valid(data):
			out = append(out, string(data))
		default:
			for range data {
				out = append(out, "\uFFFD")
			}
		}
		data = nil
	}
	for _, t := range tokens {
		var b byte
		if len(t) == 6 && strings.HasPrefix(t, "<0x") && strings.HasSuffix(t, ">") {
			if n, err := fmt.Sscanf(t[3:5], "%02x", &b); n == 1 && err == nil {
				data = append(data, b)
				continue
			}
		}
		flush()
		out = append(out, t)
	}
	flush()
	return out
}
