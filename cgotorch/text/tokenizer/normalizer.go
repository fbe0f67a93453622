package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer changes a text before pre-tokenizers cut it.
type normalizer func(p piece) piece

// eachCharacter is a normalizer that writes something for each character.
func eachCharacter(write func(b *strings.Builder, r rune)) normalizer {
	return func(p piece) piece {
		var b strings.Builder
		b.Grow(len(p.text))
		zero := 0
		for at, r := range p.text {
			write(&b, r)
			if at < p.zero {
				zero = b.Len()
			}
		}
		return piece{b.String(), zero}
	}
}

// drop is a normalizer that takes characters away.
func drop(is func(r rune) bool) normalizer {
	return eachCharacter(func(b *strings.Builder, r rune) {
		if !is(r) {
			b.WriteRune(r)
		}
	})
}

// inOrder is a normalizer that runs several.
func inOrder(all ...normalizer) normalizer {
	if len(all) == 1 {
		return all[0]
	}
	return func(p piece) piece {
		for _, n := range all {
			p = n(p)
		}
		return p
	}
}

func readNormalizer(data json.RawMessage, field string) (normalizer, error) {
	var s stage
	if ok, err := s.read(data, field); !ok || err != nil {
		return func(p piece) piece { return p }, err
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
		return inOrder(all...), nil
	case "Precompiled":
		return s.precompiled(field + ".precompiled_charsmap")
	case "Strip":
		return func(p piece) piece { return strip(p, s.Left, s.Right) }, nil
	case "Replace":
		c, err := s.cutter(field)
		return func(p piece) piece { return c.replace(p, s.Content) }, err
	case "Prepend":
		return func(p piece) piece { return p.prepend(s.Prepend) }, nil
	case "NFC":
		return normalForm(norm.NFC), nil
	case "NFD":
		return normalForm(norm.NFD), nil
	case "NFKC":
		return normalForm(norm.NFKC), nil
	case "NFKD":
		return normalForm(norm.NFKD), nil
	case "Lowercase":
		return lowercase(), nil
	case "StripAccents":
		return drop(markSet().prepare().has), nil
	case "Nmt":
		return eachCharacter(nmt), nil
	case "ByteLevel":
		return eachCharacter(func(b *strings.Builder, r rune) { b.WriteString(toByteLevel(string(r))) }), nil
	case "BertNormalizer":
		return s.bert(), nil
	}
	return nil, unsupported(field+".type", s.Type, "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, "+
		"Prepend, Precompiled, BertNormalizer, Nmt, ByteLevel or Sequence")
}

func (s *stage) precompiled(field string) (normalizer, error) {
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
}

func lowercase() normalizer {
	return eachCharacter(func(b *strings.Builder, r rune) {
		if r < utf8.RuneSelf {
			b.WriteByte(byte(unicode.ToLower(r)))
			return
		}
		b.WriteString(toLower(r))
	})
}

func strip(p piece, left, right bool) piece {
	if left {
		rest := strings.TrimLeftFunc(p.text, unicode.IsSpace)
		p = p.part(len(p.text)-len(rest), len(p.text))
	}
	if right {
		p = p.part(0, len(strings.TrimRightFunc(p.text, unicode.IsSpace)))
	}
	return p
}

// nmt writes a character as SentencePiece's rules for machine translation want it.
func nmt(b *strings.Builder, r rune) {
	switch {
	case 1 <= r && r <= 8, r == 0xB, 0xE <= r && r <= 0x1F, r == 0x7F, r == 0x8F, r == 0x9F:
	case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, 0x200B <= r && r <= 0x200F,
		r == 0x2028, r == 0x2029, r == 0x2581, r == 0xFEFF, r == 0xFFFD:
		b.WriteByte(' ')
	default:
		b.WriteRune(r)
	}
}

// bert is the normalizer of BERT's family.
func (s *stage) bert() normalizer {
	var all []normalizer
	if yes(s.CleanText, true) {
		control := controlSet().prepare()
		all = append(all, eachCharacter(func(b *strings.Builder, r rune) {
			switch {
			case r == 0 || control.has(r):
			case unicode.IsSpace(r):
				b.WriteByte(' ')
			default:
				b.WriteRune(r)
			}
		}))
	}
	if yes(s.ChineseChars, true) {
		all = append(all, eachCharacter(func(b *strings.Builder, r rune) {
			if isChinese(r) {
				b.WriteString(" " + string(r) + " ")
			} else {
				b.WriteRune(r)
			}
		}))
	}
	if yes(s.StripAccents, yes(s.Lowercase, true)) {
		all = append(all, normalForm(norm.NFD), drop(accentSet().prepare().has))
	}
	if yes(s.Lowercase, true) {
		all = append(all, lowercase())
	}
	return inOrder(all...)
}

// isChinese reports whether BERT's normalizer puts spaces around a character.
func isChinese(r rune) bool {
	return 0x4E00 <= r && r <= 0x9FFF || 0x3400 <= r && r <= 0x4DBF || 0x20000 <= r && r <= 0x2A6DF ||
		0x2A700 <= r && r <= 0x2B73F || 0x2B740 <= r && r <= 0x2B81F || 0x2B920 <= r && r <= 0x2CEAF ||
		0xF900 <= r && r <= 0xFAFF || 0x2F800 <= r && r <= 0x2FA1F
}
