package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// piece is a part of a text on its way to the model.
type piece struct {
	text string
	// zero is the number of bytes at the beginning of `text` that come from the first character of
	// the encoder's input. Normalization may change this number. It is 0 for a piece without the
	// beginning of the input.
	zero int
}

// part returns a part of a piece.
func (p piece) part(from, to int) piece {
	return piece{p.text[from:to], min(max(0, p.zero-from), to-from)}
}

// prepend puts a text before a piece that is not empty.
func (p piece) prepend(text string) piece {
	if p.text == "" {
		return p
	}
	p.text = text + p.text
	if p.zero > 0 {
		p.zero += len(text)
	}
	return p
}

// cutter cuts a text. It calls fn for each match of some kind, and for each text between matches.
type cutter func(text string, fn func(from, to int, match bool))

// eachRune cuts a text at single characters.
func eachRune(is func(r rune) bool) cutter {
	return func(text string, fn func(from, to int, match bool)) {
		done := 0
		for at, r := range text {
			if !is(r) {
				continue
			}
			if done < at {
				fn(done, at, false)
			}
			done = at + utf8.RuneLen(r)
			fn(at, done, true)
		}
		if done < len(text) {
			fn(done, len(text), false)
		}
	}
}

// eachText cuts a text at another text. An empty text stands before and behind each character.
func eachText(sought string) cutter {
	if sought == "" {
		return func(text string, fn func(from, to int, match bool)) {
			for at, r := range text {
				fn(at, at, true)
				fn(at, at+utf8.RuneLen(r), false)
			}
			if text != "" {
				fn(len(text), len(text), true)
			}
		}
	}
	return func(text string, fn func(from, to int, match bool)) {
		for done := 0; done < len(text); {
			at := strings.Index(text[done:], sought)
			if at < 0 {
				fn(done, len(text), false)
				return
			}
			if at > 0 {
				fn(done, done+at, false)
			}
			done += at + len(sought)
			fn(done-len(sought), done, true)
		}
	}
}

// replace puts a text in the place of each match.
func (c cutter) replace(p piece, content string) piece {
	var b strings.Builder
	zero := 0
	c(p.text, func(from, to int, match bool) {
		if match {
			b.WriteString(content)
			if to-1 < p.zero && p.zero > 0 {
				zero = b.Len()
			}
			return
		}
		if from < p.zero {
			zero = b.Len() + min(to, p.zero) - from
		}
		b.WriteString(p.text[from:to])
	})
	return piece{b.String(), zero}
}

// behavior tells what becomes of the matches at which a text is cut.
type behavior string

const (
	removed            behavior = "Removed"
	isolated           behavior = "Isolated"
	mergedWithPrevious behavior = "MergedWithPrevious"
	mergedWithNext     behavior = "MergedWithNext"
	contiguous         behavior = "Contiguous"
)

// cut cuts a piece. With `invert` the matches are the texts between matches.
func (c cutter) cut(p piece, how behavior, invert bool, emit func(piece)) {
	begin, end, before := 0, 0, false // the part that is open; whether its last span is a match
	flush := func() {
		if begin < end {
			emit(p.part(begin, end))
		}
	}
	c(p.text, func(from, to int, match bool) {
		match = match != invert
		joined := false // to the part that is open
		switch how {
		case removed:
			flush()
			if begin, end = from, to; match {
				begin = end
			}
			return
		case contiguous:
			joined = match == before
		case mergedWithPrevious:
			joined = match && !before
		case mergedWithNext:
			joined = before && !match
		}
		if !joined || end == begin {
			flush()
			begin = from
		}
		end, before = to, match
	})
	flush()
}
