package jsonschema

import "strings"

// lex is the place of a frame within a string. The frame's part is the known beginning of a
// character. If all characters with this beginning lead to one place, the frame goes there at once.
// A rest follows then: bytes or digits that tell nothing. See Note [Characters].
type lex uint8

const (
	lexQuote  lex = iota // before the quote
	lexBody              // between two characters
	lexBytes1            // so many bytes of a character of UTF-8 are missing; part has those before
	lexBytes2
	lexBytes3
	lexRest1
	lexRest2
	lexRest3
	lexEscape // behind a backslash
	lexHex1   // so many digits of \u are missing; part has those before
	lexHex2
	lexHex3
	lexHex4
	lexHexRest1
	lexHexRest2
	lexHexRest3
	lexBackslash // behind the first half of a pair, which part has
	lexU
	lexLow1 // so many digits of the second half are missing; part has the first half above those before
	lexLow2
	lexLow3
	lexLow4
)

// lex adds the frame that a frame in a string becomes with a byte, if the byte may come.
func (s *stepper) lex(f frame, b byte, up *State) {
	switch f.lex {
	case lexQuote:
		if b == '"' {
			f.lex = lexBody
			s.add(f, up)
		}
	case lexBody:
		s.body(f, b, up)
	case lexBytes1, lexBytes2, lexBytes3:
		if b&0xC0 == 0x80 {
			s.bytes(f, f.part<<6|int32(b&0x3F), f.lex-lexBytes1, up)
		}
	case lexRest1, lexRest2, lexRest3:
		if b&0xC0 == 0x80 {
			if f.lex--; f.lex < lexRest1 {
				f.lex = lexBody
			}
			s.add(f, up)
		}
	case lexEscape:
		s.escape(f, b, up)
	default:
		s.hex(f, b, up)
	}
}

// body reads a byte between two characters.
func (s *stepper) body(f frame, b byte, up *State) {
	switch {
	case b == '"':
		s.quote(f, up)
	case b == '\\':
		if s.more(f, 0, 0x10FFFF) {
			f.lex = lexEscape
			s.add(f, up)
		}
	case b < 0x20:
	case b < 0x80:
		s.whole(f, rune(b), up)
	case b >= 0xC2 && b < 0xE0:
		s.bytes(f, int32(b&0x1F), 1, up)
	case b >= 0xE0 && b < 0xF0:
		s.bytes(f, int32(b&0x0F), 2, up)
	case b >= 0xF0 && b < 0xF5:
		s.bytes(f, int32(b&0x07), 3, up)
	}
}

// bytes adds a frame behind a part of a character of which so many bytes are missing.
func (s *stepper) bytes(f frame, part int32, missing lex, up *State) {
	if missing == 0 {
		f.part = 0
		s.whole(f, part, up)
		return
	}
	lo, hi := part<<(6*missing), (part+1)<<(6*missing)-1
	whole := [2]rune{lo, hi}
	// Overlong forms, surrogates and what is above U+10FFFF are no characters. f.lex still counts the
	// bytes that were missing before this one.
	switch {
	case missing == 3 && part == 0, missing == 2 && part < 0x10 && f.lex == lexBytes3:
		lo = max(lo, 0x10000)
	case missing == 2 && part == 0, missing == 1 && part < 0x20 && f.lex == lexBytes2:
		lo = max(lo, 0x800)
	}
	if lo >= 0xD800 && lo < 0xE000 {
		return
	}
	if lo < 0xD800 && hi >= 0xD800 && hi < 0xE000 {
		hi = 0xD7FF
	}
	if hi = min(hi, 0x10FFFF); lo > hi {
		return
	}
	s.partly(f, lo, hi, part, lexBytes1+missing-1, lexRest1+missing-1, whole == [2]rune{lo, hi}, up)
}

// partly adds a frame behind a part of a character from lo to hi. `all` says that every rest gives
// a character.
func (s *stepper) partly(f frame, lo, hi rune, part int32, missing, rest lex, all bool, up *State) {
	if !s.more(f, lo, hi) {
		return
	}
	if all && s.alike(f, lo, hi) {
		if next, ok := s.take(f, lo); ok {
			next.lex, next.part = rest, 0
			s.add(next, up)
		}
		return
	}
	f.lex, f.part = missing, part
	s.add(f, up)
}

// whole adds a frame behind a character.
func (s *stepper) whole(f frame, c rune, up *State) {
	if next, ok := s.take(f, c); ok {
		next.lex, next.part = lexBody, 0
		s.add(next, up)
	}
}

func (s *stepper) escape(f frame, b byte, up *State) {
	if b == 'u' {
		f.lex = lexHex4
		s.add(f, up)
		return
	}
	if at := strings.IndexByte(`"\/bfnrt`, b); at >= 0 {
		s.whole(f, rune("\"\\/\b\f\n\r\t"[at]), up)
	}
}

// hexDigit returns the value of a hexadecimal digit, or -1.
func hexDigit(b byte) int32 {
	at := strings.IndexByte("0123456789abcdefABCDEF", b)
	if at > 15 {
		at -= 6
	}
	return int32(at)
}

// hex reads a byte of \u behind its u.
func (s *stepper) hex(f frame, b byte, up *State) {
	switch f.lex {
	case lexBackslash:
		if b == '\\' {
			f.lex = lexU
			s.add(f, up)
		}
		return
	case lexU:
		if b == 'u' {
			f.lex = lexLow4
			s.add(f, up)
		}
		return
	}
	digit := hexDigit(b)
	if digit < 0 {
		return
	}
	switch {
	case f.lex >= lexLow1:
		s.low(f, digit, up)
	case f.lex >= lexHexRest1:
		if f.lex--; f.lex < lexHexRest1 {
			f.lex = lexBody
		}
		s.add(f, up)
	default:
		s.unit(f, f.part<<4|digit, f.lex-lexHex1, up)
	}
}

// unit adds a frame behind a part of the digits of \u.
func (s *stepper) unit(f frame, part int32, missing lex, up *State) {
	lo, hi := part<<(4*missing), (part+1)<<(4*missing)-1
	if hi < 0xD800 || lo >= 0xE000 {
		if missing == 0 {
			f.part = 0
			s.whole(f, lo, up)
			return
		}
		s.partly(f, lo, hi, part, lexHex1+missing-1, lexHexRest1+missing-1, true, up)
		return
	}
	if missing == 3 { // D, behind which come characters and halves of pairs
		if s.more(f, 0xD000, 0xD7FF) || s.more(f, 0x10000, 0x10FFFF) {
			f.lex, f.part = lexHex3, part
			s.add(f, up)
		}
		return
	}
	if lo >= 0xDC00 { // the second half
		return
	}
	if s.more(f, 0x10000+(lo-0xD800)<<10, 0x10000+(hi-0xD800)<<10+0x3FF) {
		f.lex, f.part = lexHex1+missing-1, part
		if missing == 0 {
			f.lex, f.part = lexBackslash, part-0xD800
		}
		s.add(f, up)
	}
}

// low adds a frame behind a digit of the second half of a pair. Its part is the first half's ten
// bits, and behind them the digits.
func (s *stepper) low(f frame, digit int32, up *State) {
	missing := f.lex - lexLow1
	switch {
	case f.lex == lexLow4 && digit != 0xD, f.lex == lexLow3 && digit < 0xC:
		return
	case f.lex == lexLow4:
		f.lex = lexLow3
		s.add(f, up)
		return
	case f.lex == lexLow3:
		digit -= 0xC
		f.part = f.part<<2 | digit
	default:
		f.part = f.part<<4 | digit
	}
	lo := 0x10000 + f.part<<(4*missing)
	if missing == 0 {
		f.part = 0
		s.whole(f, lo, up)
	} else if s.more(f, lo, lo+1<<(4*missing)-1) {
		f.lex--
		s.add(f, up)
	}
}

// more reports whether some character of a range may come.
func (s *stepper) more(f frame, lo, hi rune) bool {
	n := &s.g.nodes[f.node]
	switch f.kind {
	case inText:
		if n.dfa == nil {
			return f.z != 0
		}
		some, _ := n.dfa.any(f.x, lo, hi)
		return some
	case inKey:
		from, to := n.keyRange(f.y, f.z)
		return n.keys.any(f.x, lo, hi, from, to)
	}
	return true
}

// alike reports whether all characters of a range may come and lead to one place.
func (s *stepper) alike(f frame, lo, hi rune) bool {
	n := &s.g.nodes[f.node]
	switch f.kind {
	case inText:
		if n.dfa == nil {
			return true
		}
		_, same := n.dfa.any(f.x, lo, hi)
		return same
	case inKey:
		return false
	}
	return f.x < 0 || !n.keys.touches(f.x, lo, hi)
}

// take returns the frame behind a character.
func (s *stepper) take(f frame, c rune) (frame, bool) {
	n := &s.g.nodes[f.node]
	switch f.kind {
	case inText:
		if n.dfa != nil {
			f.x = n.dfa.step(f.x, c)
			return f, f.x >= 0
		}
		if f.z == 0 {
			return f, false
		}
		f.y, f.z = max(f.y-1, 0), max(f.z-1, unbounded)
		return f, true
	case inKey:
		if f.x = n.keys.step(f.x, c); f.x < 0 {
			return f, false
		}
		lo, hi := n.keyRange(f.y, f.z)
		return f, n.keys.leads(f.x, lo, hi)
	}
	if f.x >= 0 {
		f.x = n.keys.step(f.x, c)
	}
	return f, true
}

// quote ends a string if it may end.
func (s *stepper) quote(f frame, up *State) {
	n := &s.g.nodes[f.node]
	switch f.kind {
	case inText:
		if n.dfa == nil && f.y == 0 || n.dfa != nil && n.dfa.accept[f.x] {
			s.leave(up)
		}
	case inKey:
		end := n.keys.ends[f.x]
		if lo, hi := n.keyRange(f.y, f.z); end >= lo && end <= hi {
			s.keyEnd(n, f, up)
		}
	case inOther:
		if f.x < 0 || n.keys.ends[f.x] == keyNone {
			s.keyEnd(n, f, up)
		}
	}
}
