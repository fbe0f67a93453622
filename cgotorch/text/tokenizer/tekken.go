package tokenizer

import "fmt"

// tekkenFile is a tekken.json, as Mistral writes it: tokens by rank, which also are the merges.
type tekkenFile struct {
	Config *struct {
		Pattern  string `json:"pattern"`
		Size     int    `json:"default_vocab_size"`
		Specials int    `json:"default_num_special_tokens"`
		Version  string `json:"version"`
	} `json:"config"`
	Vocab []struct {
		Rank  int    `json:"rank"`
		Bytes []byte `json:"token_bytes"`
	} `json:"vocab"`
	Specials []struct {
		Rank int    `json:"rank"`
		Name string `json:"token_str"`
	} `json:"special_tokens"`
}

// oldSpecials are the special tokens of files up to version 7, which do not name them.
var oldSpecials = []string{"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
	"[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
	"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"}

// longestToken bounds the time that a damaged file can ask for, in bytes.
const longestToken = 1 << 10

// parseTekken reads a tekken.json. It puts no tokens around a text.
func parseTekken(data []byte) (*Tokenizer, error) {
	var file tekkenFile
	if err := unmarshal(data, "", &file); err != nil {
		return nil, err
	}
	if file.Config == nil {
		return nil, bad("config", "it is null; give a tekken.json")
	}
	count := file.Config.Size - file.Config.Specials
	if file.Config.Specials < 0 || count <= 0 || count > len(file.Vocab) {
		return nil, bad("config", "default_vocab_size is %d and default_num_special_tokens %d, of %d tokens in vocab",
			file.Config.Size, file.Config.Specials, len(file.Vocab))
	}
	ids := make(map[string]int64, count)
	for i, token := range file.Vocab[:count] {
		if token.Rank != i || len(token.Bytes) == 0 || len(token.Bytes) > longestToken {
			return nil, bad(fmt.Sprintf("vocab[%d]", i), "rank is %d, with %d bytes", token.Rank, len(token.Bytes))
		}
		ids[toByteLevel(string(token.Bytes))] = int64(i + file.Config.Specials)
	}
	names, err := file.names()
	if err != nil {
		return nil, err
	}
	split, err := newPattern(file.Config.Pattern)
	if err != nil {
		return nil, fmt.Errorf("config.pattern: %w: %w", err, ErrUnsupported)
	}
	v, err := newVocabulary(ids, "vocab")
	if err != nil {
		return nil, err
	}
	model := &bpe{vocabulary: v, unknown: -1, ignoreMerges: true, cache: newCache()}
	if !model.readBytes() {
		return nil, bad("vocab", "a byte is no token")
	}
	model.mergeByRank()
	t := &Tokenizer{model: model, pre: []preTokenizer{cutter(split.each).isolate}, around: bare, extra: map[int64]string{}, special: map[string]bool{},
		normalize: func(p piece) piece { return p }, decoder: byteLevel, bytes: byteLevelBytes}
	var specials []addedToken
	for id, name := range names {
		t.extra[int64(id)], t.special[name] = name, true
		specials = append(specials, addedToken{ID: int64(id), Content: name})
	}
	if t.added, err = newAdded(specials); err != nil {
		return nil, bad("special_tokens", "two of them have one name")
	}
	t.normalized, err = newAdded(nil)
	return t, err
}

// names returns the names of the special tokens, which have the lowest ids.
func (f *tekkenFile) names() ([]string, error) {
	var names []string
	if f.Specials == nil {
		names = oldSpecials
	}
	for i, special := range f.Specials {
		if special.Rank != i {
			return nil, bad(fmt.Sprintf("special_tokens[%d]", i), "rank is %d", special.Rank)
		}
		names = append(names, special.Name)
	}
	if len(names) > f.Config.Specials {
		return nil, bad("special_tokens", "there are %d, and config says %d", len(names), f.Config.Specials)
	}
	for i := len(names); i < f.Config.Specials; i++ {
		names = append(names[:i:i], fmt.Sprintf("<SPECIAL_%d>", i))
	}
	return names, nil
}

// mergeByRank lets two tokens merge if their bytes are a token. The rank is the id of that token.
func (b *bpe) mergeByRank() {
	b.merges = newTable(len(b.raw.ids) * 4)
	for text, id := range b.raw.ids {
		for at := 1; at < len(text); at++ {
			left, ok := b.raw.ids[text[:at]]
			right, both := b.raw.ids[text[at:]]
			if ok && both {
				b.merges.set(pairKey(left, right), uint64(id)<<32|uint64(id))
			}
		}
	}
}
