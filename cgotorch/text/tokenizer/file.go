package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Open reads a tokenizer.json. It fails with [ErrFormat] for a damaged file. It fails with
// [ErrUnsupported] if the file has a kind of model or rule that this package does not know. The
// error names the file and the field.
func Open(path string) (*Tokenizer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	t.chat = chatsOf(filepath.Dir(path))
	return t, nil
}

func parse(data []byte) (*Tokenizer, error) {
	var file struct {
		AddedTokens   []addedToken    `json:"added_tokens"`
		Normalizer    json.RawMessage `json:"normalizer"`
		PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
		PostProcessor json.RawMessage `json:"post_processor"`
		Decoder       json.RawMessage `json:"decoder"`
		Model         json.RawMessage `json:"model"`
	}
	if err := unmarshal(data, "", &file); err != nil {
		return nil, err
	}
	t := &Tokenizer{extra: map[int64]string{}, special: map[string]bool{}}
	var err error
	if t.model, err = readModel(file.Model); err != nil {
		return nil, err
	}
	if t.normalize, err = readNormalizer(file.Normalizer, "normalizer"); err != nil {
		return nil, err
	}
	if err = t.add(file.AddedTokens); err != nil {
		return nil, err
	}
	if t.pre, err = readPreTokenizer(file.PreTokenizer, "pre_tokenizer"); err != nil {
		return nil, err
	}
	if err = t.readPostProcessor(file.PostProcessor); err != nil {
		return nil, err
	}
	t.decoder, err = readDecoder(file.Decoder, "decoder")
	return t, err
}

// add stores the added tokens, and checks that ids and contents do not contradict each other.
func (t *Tokenizer) add(tokens []addedToken) error {
	var asGiven, normalized []addedToken
	for i, token := range tokens {
		field := fmt.Sprintf("added_tokens[%d]", i)
		own, taken := t.model.token(token.ID)
		before, twice := t.extra[token.ID]
		switch {
		case token.Content == "":
			return bad(field, "content is empty")
		case token.ID < 0 || token.ID > 1<<31:
			return bad(field, "id is %d", token.ID)
		case taken && own != token.Content:
			return bad(field, "id is %d for %q, and in model.vocab that is %q", token.ID, token.Content, own)
		case twice && before != token.Content:
			return bad(field, "id is %d for %q, and for %q too", token.ID, token.Content, before)
		}
		t.extra[token.ID] = token.Content
		if token.Special {
			t.special[token.Content] = true
		}
		if token.Normalized {
			token.Content = t.normalize(token.Content)
			normalized = append(normalized, token)
		} else {
			asGiven = append(asGiven, token)
		}
	}
	t.added, t.normalized = newAdded(asGiven), newAdded(normalized)
	return nil
}

func readModel(data json.RawMessage) (*unigram, error) {
	var m struct {
		Unknown      *int64            `json:"unk_id"`
		Vocab        []json.RawMessage `json:"vocab"`
		ByteFallback bool              `json:"byte_fallback"`
	}
	const field = "model"
	if data == nil {
		return nil, bad(field, "it is missing")
	}
	var kind struct {
		Type string `json:"type"`
	}
	if err := unmarshal(data, field, &kind); err != nil {
		return nil, err
	}
	if kind.Type != "Unigram" {
		return nil, unsupported(field+".type", kind.Type, "Unigram")
	}
	if err := unmarshal(data, field, &m); err != nil {
		return nil, err
	}
	if len(m.Vocab) == 0 {
		return nil, bad(field+".vocab", "it is empty")
	}
	var tokens []string
	var scores []float64
	for i, entry := range m.Vocab {
		var pair []any
		err := json.Unmarshal(entry, &pair)
		if err != nil || len(pair) != 2 {
			pair = []any{nil, nil}
		}
		token, isText := pair[0].(string)
		score, isNumber := pair[1].(float64)
		if !isText || !isNumber {
			return nil, bad(fmt.Sprintf("%s.vocab[%d]", field, i), "%.40s is no token with its score", entry)
		}
		tokens, scores = append(tokens, token), append(scores, score)
	}
	if m.Unknown == nil {
		return nil, bad(field+".unk_id", "it is missing, and some characters are in no vocabulary")
	}
	if *m.Unknown < 0 || *m.Unknown >= int64(len(tokens)) {
		return nil, bad(field+".unk_id", "it is %d, and the vocabulary has %d tokens", *m.Unknown, len(tokens))
	}
	return newUnigram(tokens, scores, *m.Unknown, m.ByteFallback), nil
}

// stage is a normalizer, a pre-tokenizer or a decoder.
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

	Pattern pattern         `json:"pattern"` // belongs to Replace
	Content string          `json:"content"` // belongs to Replace, and to Strip in a decoder
	Left    bool            `json:"strip_left"`
	Right   bool            `json:"strip_right"`
	Start   json.RawMessage `json:"start"`
	Stop    json.RawMessage `json:"stop"`
}

// read parses `data` into s. It reports whether `data` has a stage.
func (s *stage) read(data json.RawMessage, field string) (bool, error) {
	if len(data) == 0 || string(data) == "null" {
		return false, nil
	}
	return true, unmarshal(data, field, s)
}

func readNormalizer(data json.RawMessage, field string) (normalizer, error) {
	var s stage
	if ok, err := s.read(data, field); !ok || err != nil {
		return func(text string) string { return text }, err
	}
	switch s.Type {
	case "Sequence":
		var all []normalizer
		for i, data := range s.Normalizers {
			n, err := readNormalizer(data, fmt.Sprintf("%s.normalizers[%d]", field, i))
			if err != nil {
				return nil, err
			}
			all = append(all, n)
		}
		return func(text string) string {
			for _, n := range all {
				text = n(text)
			}
			return text
		}, nil
	case "Precompiled":
		field += ".precompiled_charsmap"
		if s.Charsmap == nil {
			return nil, bad(field, "it is missing")
		}
		table, err := base64.StdEncoding.DecodeString(*s.Charsmap)
		if err != nil {
			return nil, bad(field, "%v", err)
		}
		m, err := newCharsmap(table)
		if err != nil {
			return nil, bad(field, "%v", err)
		}
		return m.normalize, nil
	case "Strip":
		return func(text string) string {
			if s.Left {
				text = strings.TrimLeftFunc(text, unicode.IsSpace)
			}
			if s.Right {
				text = strings.TrimRightFunc(text, unicode.IsSpace)
			}
			return text
		}, nil
	case "Replace":
		re, err := s.Pattern.compile()
		if err != nil {
			return nil, bad(field+".pattern", "%v", err)
		}
		return func(text string) string { return re.ReplaceAllLiteralString(text, s.Content) }, nil
	}
	return nil, unsupported(field+".type", s.Type, "Precompiled, Strip, Replace or Sequence")
}

func readPreTokenizer(data json.RawMessage, field string) ([]preTokenizer, error) {
	var s stage
	if ok, err := s.read(data, field); !ok || err != nil {
		return nil, err
	}
	switch s.Type {
	case "Sequence":
		var all []preTokenizer
		for i, data := range s.PreTokenizers {
			pre, err := readPreTokenizer(data, fmt.Sprintf("%s.pretokenizers[%d]", field, i))
			if err != nil {
				return nil, err
			}
			all = append(all, pre...)
		}
		return all, nil
	case "WhitespaceSplit":
		return []preTokenizer{splitAtSpaces}, nil
	case "Metaspace":
		m, err := s.metaspace(field)
		return []preTokenizer{m.cut}, err
	}
	return nil, unsupported(field+".type", s.Type, "Metaspace, WhitespaceSplit or Sequence")
}

func (s *stage) metaspace(field string) (metaspace, error) {
	m := metaspace{mark: s.Replacement, scheme: "always", split: s.Split == nil || *s.Split}
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

// readPostProcessor reads the tokens that are put around a text.
func (t *Tokenizer) readPostProcessor(data json.RawMessage) error {
	const field = "post_processor"
	var p struct {
		Type   string `json:"type"`
		Single []struct {
			Sequence *struct {
				ID string `json:"id"`
			}
			SpecialToken *struct {
				ID string `json:"id"`
			}
		} `json:"single"`
		SpecialTokens map[string]struct {
			IDs []int64 `json:"ids"`
		} `json:"special_tokens"`
	}
	if len(data) == 0 || string(data) == "null" {
		return nil
	}
	if err := unmarshal(data, field, &p); err != nil {
		return err
	}
	if p.Type != "TemplateProcessing" {
		return unsupported(field+".type", p.Type, "TemplateProcessing")
	}
	texts := 0
	for i, part := range p.Single {
		switch {
		case part.Sequence != nil:
			texts++
		case part.SpecialToken == nil:
			return bad(fmt.Sprintf("%s.single[%d]", field, i), "it is neither Sequence nor SpecialToken")
		default:
			token, ok := p.SpecialTokens[part.SpecialToken.ID]
			if !ok {
				return bad(field+".special_tokens", "%q is missing", part.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if _, ok := t.Token(id); !ok {
					return bad(field+".special_tokens", "%q is %d, which is no token", part.SpecialToken.ID, id)
				}
			}
			if texts == 0 {
				t.prefix = append(t.prefix, token.IDs...)
			} else {
				t.suffix = append(t.suffix, token.IDs...)
			}
		}
	}
	if texts != 1 {
		return bad(field+".single", "it has the text %d times, want once", texts)
	}
	return nil
}

func readDecoder(data json.RawMessage, field string) (decoder, error) {
	var s stage
	ok, err := s.read(data, field)
	if err != nil {
		return nil, err
	}
	if !ok {
		return func(tokens []string) []string { return []string{strings.Join(tokens, " ")} }, nil
	}
	switch s.Type {
	case "Sequence":
		var all []decoder
		for i, data := range s.Decoders {
			d, err := readDecoder(data, fmt.Sprintf("%s.decoders[%d]", field, i))
			if err != nil {
				return nil, err
			}
			all = append(all, d)
		}
		return func(tokens []string) []string {
			for _, d := range all {
				tokens = d(tokens)
			}
			return tokens
		}, nil
	case "Metaspace":
		m, err := s.metaspace(field)
		return m.decode, err
	case "ByteFallback":
		return decodeBytes, nil
	case "Fuse":
		return func(tokens []string) []string { return []string{strings.Join(tokens, "")} }, nil
	case "Replace":
		re, err := s.Pattern.compile()
		if err != nil {
			return nil, bad(field+".pattern", "%v", err)
		}
		return each(func(token string) string { return re.ReplaceAllLiteralString(token, s.Content) }), nil
	case "Strip":
		var start, stop int
		if err := errors.Join(unmarshal(s.Start, field+".start", &start), unmarshal(s.Stop, field+".stop", &stop)); err != nil {
			return nil, err
		}
		return each(func(token string) string {
			for i := 0; i < start && s.Content != "" && strings.HasPrefix(token, s.Content); i++ {
				token = token[len(s.Content):]
			}
			for i := 0; i < stop && s.Content != "" && strings.HasSuffix(token, s.Content); i++ {
				token = token[:len(token)-len(s.Content)]
			}
			return token
		}), nil
	}
	return nil, unsupported(field+".type", s.Type, "Metaspace, ByteFallback, Fuse, Replace, Strip or Sequence")
}

func each(fn func(token string) string) decoder {
	return func(tokens []string) []string {
		for i, token := range tokens {
			tokens[i] = fn(token)
		}
		return tokens
	}
}

func unmarshal(data []byte, field string, to any) error {
	err := json.Unmarshal(data, to)
	if err == nil {
		return nil
	}
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return bad(strings.Trim(field+"."+kind.Field, "."), "it is a %s", kind.Value)
	}
	if field == "" {
		return bad(field, "%v; give a tokenizer.json", err)
	}
	return bad(field, "%v", err)
}

func bad(field, format string, args ...any) error {
	if field != "" {
		field += ": "
	}
	return fmt.Errorf("%s%s: %w", field, fmt.Sprintf(format, args...), ErrFormat)
}

func unsupported(field, got, want string) error {
	return fmt.Errorf("%s: it is %q, and only %s is known: %w", field, got, want, ErrUnsupported)
}
