package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// byteRunes are the characters for which byte-level tokenizers take the 256 bytes. The table is
// GPT-2's: printable characters of Latin-1 stand for themselves, and the other bytes are the
// characters from U+0100 on.
var byteRunes = func() (runes [256]rune) {
	next := rune(256)
	for b := range runes {
		if '!' <= b && b <= '~' || 0xA1 <= b && b <= 0xAC || 0xAE <= b && b <= 0xFF {
			runes[b] = rune(b)
		} else {
			runes[b] = next
			next++
		}
	}
	return runes
}()

// runeBytes is the way back from byteRunes: the byte of a character plus 1, or 0 for a character
// that stands for no byte.
var runeBytes = func() (bytes [324]int16) {
	for b, r := range byteRunes {
		bytes[r] = int16(b) + 1
	}
	return bytes
}()

// toByteLevel writes each byte of `text` as the character that stands for it.
func toByteLevel(text string) string {
	var b strings.Builder
	b.Grow(len(text) * 2)
	for i := range len(text) {
		b.WriteRune(byteRunes[text[i]])
	}
	return b.String()
}

// fromByteLevel returns the bytes for which the characters of `text` stand. ok is false if one of
// the characters stands for no byte.
func fromByteLevel(text string) (data string, ok bool) {
	var b strings.Builder
	b.Grow(len(text))
	for _, r := range text {
		if int(r) >= len(runeBytes) || runeBytes[r] == 0 {
			return "", false
		}
		b.WriteByte(byte(runeBytes[r] - 1))
	}
	return b.String(), true
}

// readBytes lets the model read bytes in place of byte-level characters. It reports whether the
// model can: each byte needs a token at each place of a word.
func (m *bpe) readBytes() bool {
	raw := &rawBytes{ids: make(map[string]int64, len(m.ids))}
	for p := range raw.symbols {
		for b, r := range byteRunes {
			name := string(r)
			if p&1 == 0 {
				name = m.prefix + name
			}
			if p&2 != 0 {
				name += m.suffix
			}
			id, ok := m.ids[name]
			if !ok {
				return false
			}
			raw.symbols[p][b] = id
		}
	}
	for name, id := range m.ids {
		if data, ok := fromByteLevel(name); ok && utf8.ValidString(name) {
			raw.ids[data] = id
		}
	}
	m.raw = raw
	return true
}
