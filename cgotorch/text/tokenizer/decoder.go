package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Note [Decoders]
//
// A decoder gets the names of tokens one after another, and passes tokens on to the next decoder.
// It passes a part of a token on as soon as no later token can change the part. Joined, the parts
// are what Hugging Face's library makes of all tokens at once.

// decoder is the state of one text. See Note [Decoders].
type decoder interface {
	add(p part, next sink)
	// end is called once, behind the last token.
	end(next sink)
}

// part is a part of a token.
type part struct {
	text         string
	begins, ends bool // whether it is the token's first, and its last
}

// sink takes what a decoder passes on.
type sink func(p part)

// token returns a part that is a whole token.
func token(text string) part { return part{text, true, true} }

// newDecoder makes the state for one text.
type newDecoder func() decoder

// whole is a decoder that reads whole tokens.
type whole struct {
	parts strings.Builder // of a token that has not ended
	fn    func(token string, next sink)
	last  func(next sink) // behind the last token; nil for nothing
}

func (w *whole) add(p part, next sink) {
	if p.begins && p.ends {
		w.fn(p.text, next)
		return
	}
	w.parts.WriteString(p.text)
	if p.ends {
		w.fn(w.parts.String(), next)
		w.parts.Reset()
	}
}

func (w *whole) end(next sink) {
	if w.last != nil {
		w.last(next)
	}
}

// each is a decoder that changes every token by itself.
func each(fn func(token string) string) newDecoder {
	return func() decoder {
		return &whole{fn: func(name string, next sink) { next(token(fn(name))) }}
	}
}

// chained are decoders, each of which gets what the one before passes on.
type chained struct {
	decoders []decoder
	sinks    []sink // by decoder, what takes its tokens
	out      sink   // what takes the last decoder's tokens
}

func newChained(makers []newDecoder) *chained {
	c := &chained{}
	for i, make := range makers {
		c.decoders = append(c.decoders, make())
		c.sinks = append(c.sinks, func(p part) { c.pass(i+1, p) })
	}
	return c
}

// pass gives a part to a decoder, or out.
func (c *chained) pass(to int, p part) {
	if to < len(c.decoders) {
		c.decoders[to].add(p, c.sinks[to])
	} else {
		c.out(p)
	}
}

func (c *chained) add(p part, next sink) {
	c.out = next
	c.pass(0, p)
}

func (c *chained) end(next sink) {
	c.out = next
	for i, d := range c.decoders {
		d.end(c.sinks[i])
	}
}

// fuse makes one token of all.
type fuse struct{ begun bool }

func (f *fuse) add(p part, next sink) {
	next(part{text: p.text, begins: !f.begun})
	f.begun = true
}

func (f *fuse) end(next sink) { next(part{begins: !f.begun, ends: true}) }

// byteLevel turns byte-level characters into bytes. It passes on one token, of whole UTF-8.
func byteLevel() decoder {
	var one fuse
	var data []byte // that are no whole character yet
	write := func(count int, next sink) {
		if count > 0 {
			one.add(part{text: validUTF8(string(data[:count]))}, next)
			data = data[:copy(data, data[count:])]
		}
	}
	return &whole{
		fn: func(name string, next sink) {
			if raw, ok := fromByteLevel(name); ok {
				name = raw
			}
			data = append(data, name...)
			write(len(data)-incomplete(data), next)
		},
		last: func(next sink) {
			write(len(data), next)
			one.end(next)
		},
	}
}

// incomplete returns how many bytes at the end may be the beginning of a character.
func incomplete(data []byte) int {
	for n := 1; n <= min(3, len(data)); n++ {
		if b := data[len(data)-n]; b >= utf8.RuneSelf && utf8.RuneStart(b) {
			if utf8.FullRune(data[len(data)-n:]) {
				return 0
			}
			return n
		}
	}
	return 0
}

// validUTF8 replaces each part that is no UTF-8 by U+FFFD. A part is a beginning of a character,
// or one byte, as Unicode recommends.
func validUTF8(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for text != "" {
		r, width := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && width == 1 {
			for width < len(text) && !utf8.FullRuneInString(text[:width]) && !utf8.FullRuneInString(text[:width+1]) {
				width++
			}
		}
		b.WriteRune(r)
		text = text[width:]
	}
	return b.String()
}

func (m metaspace) decoder() decoder {
	return &metaspaceDecoder{metaspace: m, first: true}
}

// metaspaceDecoder turns marks into spaces. The first token's marks are no spaces.
type metaspaceDecoder struct {
	metaspace
	begun, first bool
}

func (d *metaspaceDecoder) add(p part, next sink) {
	if p.begins {
		d.first, d.begun = !d.begun, true
	}
	space := " "
	if d.first && d.scheme != "never" {
		space = ""
	}
	p.text = strings.ReplaceAll(p.text, d.mark, space)
	next(p)
}

func (d *metaspaceDecoder) end(sink) {}

// byteFallback turns the tokens <0x00> to <0xFF> into the bytes that they name. If the bytes of
// several of these tokens in a row are not UTF-8, each of the tokens becomes U+FFFD.
func byteFallback() decoder {
	var data []byte
	flush := func(next sink) {
		if utf8.Valid(data) {
			if len(data) > 0 {
				next(token(string(data)))
			}
		} else {
			for range data {
				next(token("\uFFFD"))
			}
		}
		data = data[:0]
	}
	return &whole{last: flush, fn: func(name string, next sink) {
		if b, ok := fallbackByte(name); ok {
			data = append(data, b)
			return
		}
		flush(next)
		next(token(name))
	}}
}

// fallbackByte returns the byte that a token such as <0x0A> names.
func fallbackByte(name string) (b byte, ok bool) {
	if len(name) != 6 || !strings.HasPrefix(name, "<0x") || name[5] != '>' {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(name[3:5], "+"), 16, 8) // Rust takes a + too
	return byte(n), err == nil
}

// spaced joins tokens by spaces, where a file has no decoder.
func spaced() decoder {
	begun := false
	return &whole{fn: func(name string, next sink) {
		if begun {
			name = " " + name
		}
		begun = true
		next(token(name))
	}}
}

func readDecoder(data json.RawMessage, field string) (newDecoder, error) {
	var s stage
	ok, err := s.read(data, field)
	if err != nil {
		return nil, err
	}
	if !ok {
		return spaced, nil
	}
	switch s.Type {
	case "Sequence":
		var all []newDecoder
		for i, data := range s.Decoders {
			d, err := readDecoder(data, fmt.Sprintf("%s.decoders[%d]", field, i))
			if err != nil {
				return nil, err
			}
			all = append(all, d)
		}
		return func() decoder { return newChained(all) }, nil
	case "Metaspace":
		m, err := s.metaspace(field)
		return m.decoder, err
	case "ByteLevel":
		return byteLevel, nil
	case "ByteFallback":
		return byteFallback, nil
	case "Fuse":
		return func() decoder { return &fuse{} }, nil
	case "Replace":
		c, err := s.cutter(field)
		return each(func(token string) string { return c.replace(piece{text: token}, s.Content).text }), err
	case "Strip":
		return s.stripDecoder(field)
	}
	return s.wordDecoder(field)
}
