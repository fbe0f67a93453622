package tokenizer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// charsmap is SentencePiece's table of characters and their replacements, such as those of NFKC.
// `units` is a double-array trie. Each leaf of the trie is an offset in the field `text`. A
// replacement begins at this offset and ends with a 0 byte.
type charsmap struct {
	units []uint32
	text  []byte
}

func newCharsmap(data []byte) (*charsmap, error) {
	if len(data) < 4 {
		return nil, errors.New("it is too short")
	}
	size := uint64(binary.LittleEndian.Uint32(data))
	if size%4 != 0 || size == 0 || size > uint64(len(data)-4) {
		return nil, errors.New("its trie does not lie within it")
	}
	m := &charsmap{text: data[4+size:]}
	for trie := data[4 : 4+size]; len(trie) > 0; trie = trie[4:] {
		m.units = append(m.units, binary.LittleEndian.Uint32(trie))
	}
	return m, nil
}

func offset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// lookup finds the shortest beginning of s that is in the table, and returns its replacement.
func (m *charsmap) lookup(s string) (string, bool) {
	at := offset(m.units[0])
	for i := range len(s) {
		if s[i] == 0 {
			break
		}
		at ^= uint32(s[i])
		if at >= uint32(len(m.units)) || m.units[at]&(1<<31|0xff) != uint32(s[i]) {
			break
		}
		unit := m.units[at]
		at ^= offset(unit)
		if unit>>8&1 == 1 && at < uint32(len(m.units)) {
			value := m.units[at] & (1<<31 - 1)
			if value > uint32(len(m.text)) {
				break
			}
			to, _, _ := bytes.Cut(m.text[value:], []byte{0})
			return string(to), true
		}
	}
	return "", false
}

// normalize replaces the characters of a text that are in the table. It first looks up a short
// grapheme as a whole. The table may have a replacement for a beginning of the grapheme. This
// replacement then replaces the whole grapheme, as in Hugging Face's tokenizers. If the table has
// no such replacement, or if the grapheme is long, `normalize` looks up each code point of the
// grapheme.
func (m *charsmap) normalize(p piece) piece {
	const short = 6 // a grapheme of fewer bytes is looked up as a whole
	var b strings.Builder
	zero, done := 0, 0
	// write notes which bytes come from the first character of the text.
	write := func(to, from string) {
		if done < p.zero {
			first, _ := utf8.DecodeRuneInString(to)
			zero = b.Len() + len(to)
			if utf8.RuneCountInString(from) > 1 && to != "" {
				zero = b.Len() + utf8.RuneLen(first)
			}
		}
		b.WriteString(to)
		done += len(from)
	}
	state := -1
	for text := p.text; text != ""; {
		var character string
		character, text, _, state = uniseg.FirstGraphemeClusterInString(text, state)
		if len(character) < short {
			if to, ok := m.lookup(character); ok {
				write(to, character)
				continue
			}
		}
		for i, r := range character {
			part := character[i : i+utf8.RuneLen(r)]
			if to, ok := m.lookup(part); ok {
				write(to, part)
			} else {
				write(part, part)
			}
		}
	}
	return piece{b.String(), zero}
}
