package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Open reads a tokenizer.json or a tekken.json, or that of a folder. It fails with [ErrFormat] for
// a damaged file. It fails with [ErrUnsupported] for files of SentencePiece and tiktoken, and if
// the file has a kind of model or rule that this package does not know. The error names the file
// and the field.
func Open(path string) (*Tokenizer, error) {
	path = inFolder(path)
	switch {
	case strings.HasSuffix(path, ".model"), strings.HasPrefix(filepath.Base(path), "tokenizer.model"):
		return nil, otherForm(path, "a SentencePiece model")
	case strings.HasSuffix(path, ".tiktoken"):
		return nil, otherForm(path, "a tiktoken vocabulary, which has no rules")
	}
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

// inFolder returns the tokenizer's file in a folder. The path of a file stays as it is.
func inFolder(path string) string {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return path
	}
	files, _ := os.ReadDir(path)
	for _, ending := range []string{"tokenizer.json", "tekken.json", "tokenizer.model", ".model", ".tiktoken"} {
		for _, file := range files {
			if name := file.Name(); name == ending || ending[0] == '.' && strings.HasSuffix(name, ending) {
				return filepath.Join(path, name)
			}
		}
	}
	return filepath.Join(path, "tokenizer.json")
}

func otherForm(path, what string) error {
	return fmt.Errorf("tokenizer: %s: it is %s; write a tokenizer.json in Python, with "+
		"transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder): %w", path, what, ErrUnsupported)
}

// jsonFile is a tokenizer.json.
type jsonFile struct {
	Version       json.RawMessage `json:"version"`
	Config        json.RawMessage `json:"config"` // of a tekken.json
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

func parse(data []byte) (*Tokenizer, error) {
	var file jsonFile
	if err := unmarshal(data, "", &file); err != nil {
		return nil, err
	}
	if file.Model == nil && file.Config != nil {
		return parseTekken(data)
	}
	if v := string(file.Version); v != "" && v != `"1.0"` {
		return nil, unsupported("version", v, `"1.0"`)
	}
	for i, data := range []json.RawMessage{file.Normalizer, file.PreTokenizer, file.Decoder} {
		if growth(data, 0) > mostGrowth {
			field := []string{"normalizer", "pre_tokenizer", "decoder"}[i]
			return nil, fmt.Errorf("%s: it can make a text more than %d times as long: %w", field, mostGrowth, ErrUnsupported)
		}
	}
	t := &Tokenizer{extra: map[int64]string{}, special: map[string]bool{}}
	var pre preTokenizers
	var err error
	if err = pre.read(file.PreTokenizer, "pre_tokenizer"); err != nil {
		return nil, err
	}
	if t.model, err = readModel(file.Model, &pre); err != nil {
		return nil, err
	}
	t.pre = pre.all
	if t.normalize, err = readNormalizer(file.Normalizer, "normalizer"); err != nil {
		return nil, err
	}
	if err = t.add(file.AddedTokens); err != nil {
		return nil, err
	}
	if t.around, _, err = t.readAround(file.PostProcessor, "post_processor"); err != nil {
		return nil, err
	}
	if t.decoder, err = readDecoder(file.Decoder, "decoder"); err != nil {
		return nil, err
	}
	t.bytes = tokenBytes(file.Decoder)
	return t, t.readLimits(file.Truncation, file.Padding)
}

// mostGrowth bounds the memory that a damaged file can ask for.
const mostGrowth = 1 << 12

// growth returns how many times as long a text can become in a stage, apart from a few bytes.
func growth(data json.RawMessage, depth int) float64 {
	var s stage
	if len(data) == 0 || depth > deepestSequence || json.Unmarshal(data, &s) != nil {
		return 1
	}
	switch s.Type {
	case "Sequence":
		all := 1.0
		for _, part := range slices.Concat(s.Normalizers, s.PreTokenizers, s.Decoders) {
			all *= growth(part, depth+1)
		}
		return all
	case "ByteLevel":
		return 2
	case "Replace":
		if s.Pattern != nil && s.Pattern.String != nil && *s.Pattern.String != "" {
			return max(1, float64(len(s.Content))/float64(len(*s.Pattern.String)))
		}
		return max(1, float64(len(s.Content)))
	}
	return 1
}

// add stores the added tokens. Hugging Face's library gives each token the id that the model has
// for it, or else the next free id. The ids of the file have to be these.
func (t *Tokenizer) add(tokens []addedToken) error {
	byName := map[string]int{} // the last index of each name
	next := int64(t.model.count())
	for i := range tokens {
		token := &tokens[i]
		field := fmt.Sprintf("added_tokens[%d]", i)
		if token.Content == "" {
			return bad(field, "content is empty")
		}
		want, known := t.model.lookup(token.Content)
		if before, ok := byName[token.Content]; ok && !known {
			want, known = tokens[before].ID, true
		}
		if !known {
			want = next
			next++
		}
		if token.ID != want {
			return bad(field, "id is %d for %q, and the other fields say that it is %d", token.ID, token.Content, want)
		}
		byName[token.Content] = i
	}
	var asGiven, normalized []addedToken
	for i, token := range tokens {
		if byName[token.Content] != i {
			continue
		}
		if token.Special {
			t.special[token.Content] = true
		}
		if token.Normalized {
			token.Content = t.normalize(piece{text: token.Content}).text
			normalized = append(normalized, token)
		} else {
			asGiven = append(asGiven, token)
		}
		t.extra[token.ID] = token.Content
	}
	var err error
	if t.added, err = newAdded(asGiven); err == nil {
		t.normalized, err = newAdded(normalized)
	}
	return err
}

// modelField is the field model, whose vocab differs by type.
type modelField struct {
	Type         string          `json:"type"`
	Vocab        json.RawMessage `json:"vocab"`
	Merges       json.RawMessage `json:"merges"`
	UnknownID    *int64          `json:"unk_id"` // belongs to Unigram
	UnknownToken *string         `json:"unk_token"`
	Prefix       *string         `json:"continuing_subword_prefix"`
	Suffix       *string         `json:"end_of_word_suffix"`
	Longest      *int            `json:"max_input_chars_per_word"`
	Dropout      *float64        `json:"dropout"`
	FuseUnknown  bool            `json:"fuse_unk"`
	ByteFallback bool            `json:"byte_fallback"`
	IgnoreMerges bool            `json:"ignore_merges"`
}

// kind returns the type. Old files have none, and then the fields tell.
func (m *modelField) kind() string {
	switch {
	case m.Type != "":
		return m.Type
	case m.Merges != nil:
		return "BPE"
	case m.Longest != nil:
		return "WordPiece"
	case len(m.Vocab) > 0 && m.Vocab[0] == '{':
		return "WordLevel"
	}
	return "Unigram"
}

func readModel(data json.RawMessage, pre *preTokenizers) (model, error) {
	const field = "model"
	if data == nil || string(data) == "null" {
		return nil, bad(field, "it is missing")
	}
	var m modelField
	if err := unmarshal(data, field, &m); err != nil {
		return nil, err
	}
	switch m.kind() {
	case "Unigram":
		return m.unigram(field, pre)
	case "BPE", "WordPiece", "WordLevel":
	default:
		return nil, unsupported(field+".type", m.Type, "BPE, WordPiece, WordLevel or Unigram")
	}
	ids := map[string]int64{}
	if err := unmarshal(m.Vocab, field+".vocab", &ids); err != nil {
		return nil, err
	}
	v, err := newVocabulary(ids, field+".vocab")
	if err != nil {
		return nil, err
	}
	if m.kind() == "BPE" {
		return m.bpe(v, field, pre)
	}
	pre.write()
	unknown, err := v.unknown(m.UnknownToken, field+".unk_token")
	if err != nil {
		return nil, err
	}
	if m.kind() == "WordLevel" {
		return &wordLevel{v, unknown}, nil
	}
	if m.Longest == nil || m.Prefix == nil {
		return nil, bad(field, "max_input_chars_per_word or continuing_subword_prefix is missing")
	}
	return newWordPiece(v, *m.Prefix, unknown, *m.Longest), nil
}

func (m *modelField) unigram(field string, pre *preTokenizers) (model, error) {
	pre.write()
	var entries []json.RawMessage
	if err := unmarshal(m.Vocab, field+".vocab", &entries); err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, bad(field+".vocab", "it is empty")
	}
	var tokens []string
	var scores []float64
	for i, entry := range entries {
		var token *string
		var score *json.Number
		pair := []any{&token, &score}
		if err := json.Unmarshal(entry, &pair); err != nil || len(pair) != 2 || token == nil || score == nil {
			return nil, bad(fmt.Sprintf("%s.vocab[%d]", field, i), "%.40s is no token with its score", entry)
		}
		tokens, scores = append(tokens, *token), append(scores, readScore(score.String()))
	}
	if m.UnknownID == nil {
		return nil, bad(field+".unk_id", "it is missing, and some characters are in no vocabulary")
	}
	if *m.UnknownID < 0 || *m.UnknownID >= int64(len(tokens)) {
		return nil, bad(field+".unk_id", "it is %d, and the vocabulary has %d tokens", *m.UnknownID, len(tokens))
	}
	return newUnigram(tokens, scores, *m.UnknownID, m.ByteFallback), nil
}

func unmarshal(data []byte, field string, to any) error {
	if data == nil {
		return bad(field, "it is missing")
	}
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
