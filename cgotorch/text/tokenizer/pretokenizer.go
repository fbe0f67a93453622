package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// preTokenizer cuts a piece of text into smaller pieces. The model then encodes each piece alone.
type preTokenizer func(p piece, emit func(piece))

// stage is a normalizer, a pre-tokenizer or a decoder of a file.
type stage struct {
	Type string `json:"type"`

	Normalizers   []json.RawMessage `json:"normalizers"` // this field and the two below belong to Sequence
	PreTokenizers []json.RawMessage `json:"pretokenizers"`
	Decoders      []json.RawMessage `json:"decoders"`

	Charsmap *string `json:"precompiled_charsmap"`

	Replacement    string  `json:"replacement"` // this field and the three below belong to Metaspace
	AddPrefixSpace *bool   `json:"add_prefix_space"`
	PrependScheme  *string `json:"prepend_scheme"`
	Split          *bool   `json:"split"`
	UseRegex       *bool   `json:"use_regex"` // belongs to ByteLevel

	Pattern  *patternField `json:"pattern"` // belongs to Replace and Split
	Content  string        `json:"content"` // belongs to Replace, and to Strip in a decoder
	Behavior behavior      `json:"behavior"`
	Invert   bool          `json:"invert"`

	Left    bool            `json:"strip_left"`
	Right   bool            `json:"strip_right"`
	Start   json.RawMessage `json:"start"`
	Stop    json.RawMessage `json:"stop"`
	Prepend string          `json:"prepend"`

	CleanText    *bool `json:"clean_text"` // this field and the three below belong to BertNormalizer
	ChineseChars *bool `json:"handle_chinese_chars"`
	StripAccents *bool `json:"strip_accents"`
	Lowercase    *bool `json:"lowercase"`

	Individual bool   `json:"individual_digits"`
	Delimiter  string `json:"delimiter"`
	Length     *int   `json:"length"`

	Prefix        *string `json:"prefix"` // belongs to WordPiece
	Suffix        *string `json:"suffix"` // belongs to BPEDecoder
	Cleanup       *bool   `json:"cleanup"`
	PadToken      *string `json:"pad_token"`
	WordDelimiter *string `json:"word_delimiter_token"`
}

// patternField is a string or a regular expression.
type patternField struct{ String, Regex *string }

// cutter returns what cuts a text at the pattern.
func (s *stage) cutter(field string) (cutter, error) {
	switch {
	case s.Pattern == nil:
	case s.Pattern.String != nil:
		return eachText(*s.Pattern.String), nil
	case s.Pattern.Regex != nil:
		p, err := newPattern(*s.Pattern.Regex)
		if err != nil {
			return nil, fmt.Errorf("%s.pattern.Regex: %w: %w", field, err, ErrUnsupported)
		}
		return p.each, nil
	}
	return nil, bad(field+".pattern", "it has neither String nor Regex")
}

// read parses `data` into s. It reports whether `data` has a stage.
func (s *stage) read(data json.RawMessage, field string) (bool, error) {
	if len(data) == 0 || string(data) == "null" {
		return false, nil
	}
	if strings.Count(field, "[") > deepestSequence {
		return true, unsupported(field, "a Sequence", fmt.Sprintf("a depth of %d", deepestSequence))
	}
	return true, unmarshal(data, field, s)
}

const deepestSequence = 20

// yes returns a flag, or the flag that holds if the file has none.
func yes(flag *bool, otherwise bool) bool {
	if flag == nil {
		return otherwise
	}
	return *flag
}

// preTokenizers are those of a file, in the order in which they run.
type preTokenizers struct {
	all []preTokenizer
	// byteLevel is whether a last one is missing: the pieces are to be written as byte-level
	// characters.
	byteLevel bool
}

func (t *preTokenizers) add(pre preTokenizer) {
	t.write()
	t.all = append(t.all, pre)
}

// write adds the last pre-tokenizer if it is missing.
func (t *preTokenizers) write() {
	if t.byteLevel {
		t.byteLevel = false
		t.all = append(t.all, writeByteLevel)
	}
}

func writeByteLevel(p piece, emit func(piece)) {
	zero := p.zero
	if zero > 0 {
		zero = len(toByteLevel(p.text[:zero]))
	}
	emit(piece{toByteLevel(p.text), zero})
}

func (t *preTokenizers) read(data json.RawMessage, field string) error {
	var s stage
	if ok, err := s.read(data, field); !ok || err != nil {
		return err
	}
	switch s.Type {
	case "Sequence":
		for i, data := range s.PreTokenizers {
			if err := t.read(data, fmt.Sprintf("%s.pretokenizers[%d]", field, i)); err != nil {
				return err
			}
		}
	case "ByteLevel":
		return t.addByteLevel(&s)
	case "Metaspace":
		m, err := s.metaspace(field)
		if err != nil {
			return err
		}
		t.add(m.cut)
	case "Split":
		c, err := s.cutter(field)
		if err != nil {
			return err
		}
		return t.addCut(c, s.Behavior, s.Invert, field)
	case "Punctuation":
		if s.Behavior == "" {
			s.Behavior = isolated
		}
		return t.addCut(eachRune(punctuationSet().prepare().has), s.Behavior, false, field)
	case "FixedLength":
		length := 5
		if s.Length != nil {
			length = *s.Length
		}
		if length < 1 {
			return bad(field+".length", "it is %d", length)
		}
		t.add(fixedLength(length))
	default:
		pre, err := s.simple(field)
		if err != nil {
			return err
		}
		t.add(pre)
	}
	return nil
}

func (t *preTokenizers) addByteLevel(s *stage) error {
	if yes(s.AddPrefixSpace, true) {
		t.add(func(p piece, emit func(piece)) {
			if !strings.HasPrefix(p.text, " ") {
				p = p.prepend(" ")
			}
			emit(p)
		})
	}
	if yes(s.UseRegex, true) {
		p, err := newPattern(gpt2Pattern)
		if err != nil {
			return err
		}
		t.add(cutter(p.each).isolate)
	}
	t.write()
	t.byteLevel = true
	return nil
}

// gpt2Pattern is what ByteLevel cuts at.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func (c cutter) isolate(p piece, emit func(piece)) { c.cut(p, isolated, false, emit) }

func (t *preTokenizers) addCut(c cutter, how behavior, invert bool, field string) error {
	switch how {
	case removed, isolated, mergedWithNext, mergedWithPrevious, contiguous:
	default:
		return bad(field+".behavior", "it is %q", how)
	}
	t.add(func(p piece, emit func(piece)) { c.cut(p, how, invert, emit) })
	return nil
}

// simple returns the pre-tokenizers that a file can only name.
func (s *stage) simple(field string) (preTokenizer, error) {
	remove := func(c cutter) preTokenizer {
		return func(p piece, emit func(piece)) { c.cut(p, removed, false, emit) }
	}
	spaces := eachRune(unicode.IsSpace)
	switch s.Type {
	case "WhitespaceSplit":
		return remove(spaces), nil
	case "Whitespace":
		return wordsAndSigns(), nil
	case "BertPreTokenizer":
		signs := eachRune(punctuationSet().prepare().has)
		return func(p piece, emit func(piece)) {
			spaces.cut(p, removed, false, func(p piece) { signs.cut(p, isolated, false, emit) })
		}, nil
	case "Digits":
		how := contiguous
		if s.Individual {
			how = isolated
		}
		digits := eachRune(numericSet().prepare().has)
		return func(p piece, emit func(piece)) { digits.cut(p, how, false, emit) }, nil
	case "CharDelimiterSplit", "Delimiter":
		r, width := utf8.DecodeRuneInString(s.Delimiter)
		if width == 0 || width != len(s.Delimiter) {
			return nil, bad(field+".delimiter", "it is %q, want one character", s.Delimiter)
		}
		return remove(eachRune(func(c rune) bool { return c == r })), nil
	case "UnicodeScripts":
		return newScripts().cut, nil
	}
	return nil, unsupported(field+".type", s.Type, "ByteLevel, Metaspace, Split, Whitespace, WhitespaceSplit, "+
		"Punctuation, Digits, CharDelimiterSplit, BertPreTokenizer, UnicodeScripts, FixedLength or Sequence")
}

// wordsAndSigns cuts out runs of \w, and runs of what is neither \w nor a space.
func wordsAndSigns() preTokenizer {
	words := wordSet().prepare()
	const (
		space = iota
		word
		sign
	)
	return func(p piece, emit func(piece)) {
		begin, open := 0, space
		for at, r := range p.text {
			class := sign
			switch {
			case words.has(r):
				class = word
			case unicode.IsSpace(r):
				class = space
			}
			if class == open {
				continue
			}
			if open != space {
				emit(p.part(begin, at))
			}
			begin, open = at, class
		}
		if open != space {
			emit(p.part(begin, len(p.text)))
		}
	}
}

// fixedLength cuts after each `length` characters.
func fixedLength(length int) preTokenizer {
	return func(p piece, emit func(piece)) {
		begin, count := 0, 0
		for at := range p.text {
			if count == length {
				emit(p.part(begin, at))
				begin, count = at, 0
			}
			count++
		}
		if begin < len(p.text) {
			emit(p.part(begin, len(p.text)))
		}
	}
}

// cut cuts where the script of the characters changes. Spaces before the first other
// character get lost, as in Hugging Face's library.
func (s *scripts) cut(p piece, emit func(piece)) {
	begin, last := -1, ""
	for at, r := range p.text {
		script := s.of(r)
		if script == "" {
			continue
		}
		if script != last {
			if begin >= 0 {
				emit(p.part(begin, at))
			}
			begin = at
		}
		last = script
	}
	if begin >= 0 {
		emit(p.part(begin, len(p.text)))
	}
}

// metaspace replaces each space by a mark. The mark stands at the beginning of words.
type metaspace struct {
	mark   string
	scheme string // "always", "first" or "never": which pieces get a mark in front, if they have none there
	split  bool   // whether to cut before each mark
}

func (s *stage) metaspace(field string) (metaspace, error) {
	m := metaspace{mark: s.Replacement, scheme: "always", split: yes(s.Split, true)}
	if s.PrependScheme != nil {
		m.scheme = *s.PrependScheme
	}
	if s.AddPrefixSpace != nil && !*s.AddPrefixSpace {
		m.scheme = "never"
	}
	switch m.scheme {
	case "always", "first", "never":
	default:
		return m, bad(field+".prepend_scheme", "it is %q, want always, first or never", m.scheme)
	}
	if utf8.RuneCountInString(m.mark) != 1 {
		return m, bad(field+".replacement", "it is %q, want one character", m.mark)
	}
	return m, nil
}

func (m metaspace) cut(p piece, emit func(piece)) {
	p = eachText(" ").replace(p, m.mark)
	if !strings.HasPrefix(p.text, m.mark) && (m.scheme == "always" || m.scheme == "first" && p.zero > 0) {
		p = p.prepend(m.mark)
	}
	if !m.split {
		emit(p)
		return
	}
	eachText(m.mark).cut(p, mergedWithNext, false, emit)
}
