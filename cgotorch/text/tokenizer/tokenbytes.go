package tokenizer

import (
	"encoding/json"
	"strings"
)

// Bytes returns the bytes that a token adds within a text. They may be a part of a character. At
// the ends of a text, [Tokenizer.Decode] may leave a space out. ok is false for a special token,
// and for an id that no token has. It is false for all tokens if the text of a token depends on
// those beside it, as in WordPiece and CTC.
func (t *Tokenizer) Bytes(id int64) (b []byte, ok bool) {
	name, ok := t.Token(id)
	if !ok || t.special[name] || t.bytes == nil {
		return nil, false
	}
	return t.bytes(name), true
}

// byteLevelBytes returns the bytes of a token of a byte-level tokenizer.
func byteLevelBytes(name string) []byte {
	if raw, ok := fromByteLevel(name); ok {
		name = raw
	}
	return []byte(name)
}

// fallbackBytes returns the bytes of a token of a tokenizer with tokens for bytes.
func fallbackBytes(name string) []byte {
	if b, ok := fallbackByte(name); ok {
		return []byte{b}
	}
	return []byte(name)
}

// tokenBytes returns what makes bytes of the name of a token, for a decoder of which each token
// adds the same bytes everywhere within a text. It returns nil for others. The decoder has been
// read before, so the field is sound.
func tokenBytes(data json.RawMessage) func(name string) []byte {
	stages := decoderStages(data, 0)
	var steps []func(name string) string
	bytes, fused := func(name string) []byte { return []byte(name) }, false
	final := false // the bytes are known, and nothing may change them
	for _, s := range stages {
		switch {
		case s.Type == "Fuse":
			fused = true
		case s.Type == "Strip" && fused: // takes from the ends of the text alone
		case final || fused:
			return nil
		case s.Type == "ByteLevel":
			bytes, final, fused = byteLevelBytes, true, true
		case s.Type == "ByteFallback":
			bytes, final = fallbackBytes, true
		case s.Type == "Metaspace":
			m, err := s.metaspace("")
			if err != nil {
				return nil
			}
			steps = append(steps, func(name string) string { return strings.ReplaceAll(name, m.mark, " ") })
		case s.Type == "Replace":
			c, err := s.cutter("")
			if err != nil {
				return nil
			}
			steps = append(steps, func(name string) string { return c.replace(piece{text: name}, s.Content).text })
		default:
			return nil
		}
	}
	if len(stages) == 0 {
		return nil
	}
	return func(name string) []byte {
		for _, step := range steps {
			name = step(name)
		}
		return bytes(name)
	}
}

// decoderStages returns the decoders of a field, one after another.
func decoderStages(data json.RawMessage, depth int) []*stage {
	s := &stage{}
	if ok, err := s.read(data, ""); !ok || err != nil || depth > deepestSequence {
		return nil
	}
	if s.Type != "Sequence" {
		return []*stage{s}
	}
	var all []*stage
	for _, part := range s.Decoders {
		inner := decoderStages(part, depth+1)
		if inner == nil {
			return nil
		}
		all = append(all, inner...)
	}
	return all
}
