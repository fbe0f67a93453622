package tokenizer

import "unicode/utf8"

// wordPiece cuts a word into the longest tokens, from left to right.
type wordPiece struct {
	vocabulary
	first, later *trie // tokens at the beginning of a word, and behind it
	unknownID    int64 // for a word that has no such tokens
	longest      int   // a word with more characters is unknown
}

func newWordPiece(v vocabulary, prefix string, unknown int64, longest int) *wordPiece {
	m := &wordPiece{vocabulary: v, first: newTrie(), later: newTrie(), unknownID: unknown, longest: longest}
	for name, id := range v.ids {
		if name == "" {
			continue
		}
		m.first.add(name, id)
		if len(name) > len(prefix) && name[:len(prefix)] == prefix {
			m.later.add(name[len(prefix):], id)
		}
	}
	return m
}

func (m *wordPiece) encode(ids []int64, text string) []int64 {
	if text == "" {
		return ids
	}
	if utf8.RuneCountInString(text) > m.longest {
		return append(ids, m.unknownID)
	}
	begin, words := len(ids), m.first
	for at := 0; at < len(text); words = m.later {
		id, length := words.longest(text[at:])
		if length == 0 {
			return append(ids[:begin], m.unknownID)
		}
		ids = append(ids, id)
		at += length
	}
	return ids
}

// wordLevel has a token for each word.
type wordLevel struct {
	vocabulary
	unknownID int64
}

func (m *wordLevel) encode(ids []int64, text string) []int64 {
	if text == "" {
		return ids
	}
	if id, ok := m.ids[text]; ok {
		return append(ids, id)
	}
	return append(ids, m.unknownID)
}
