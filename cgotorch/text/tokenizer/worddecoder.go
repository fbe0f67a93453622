package tokenizer

import "strings"

// stripDecoder takes a character from the ends of each token.
func (s *stage) stripDecoder(field string) (newDecoder, error) {
	var start, stop int
	if err := unmarshal(s.Start, field+".start", &start); err != nil {
		return nil, err
	}
	if err := unmarshal(s.Stop, field+".stop", &stop); err != nil {
		return nil, err
	}
	if start < 0 || stop < 0 {
		return nil, bad(field, "start is %d and stop is %d", start, stop)
	}
	return func() decoder { return &stripDecoder{content: s.Content, start: start, stop: stop} }, nil
}

type stripDecoder struct {
	content     string
	start, stop int
	left        int    // how many may still go from the beginning of the token
	held        string // the end of the token: it goes if nothing follows
	begins      bool   // nothing of the token was passed on
}

func (d *stripDecoder) add(p part, next sink) {
	if p.begins {
		d.left, d.held, d.begins = d.start, "", true
	}
	for d.left > 0 && p.text != "" {
		rest, ok := strings.CutPrefix(p.text, d.content)
		if d.left--; !ok || d.content == "" {
			d.left = 0
		}
		p.text = rest
	}
	text := d.held + p.text
	kept := text
	for i := 0; i < d.stop && d.content != ""; i++ {
		kept = strings.TrimSuffix(kept, d.content)
	}
	d.held = text[len(kept):]
	if kept != "" || p.ends {
		next(part{kept, d.begins, p.ends})
		d.begins = false
	}
}

func (d *stripDecoder) end(sink) {}

// wordDecoder reads the decoders that set spaces between words.
func (s *stage) wordDecoder(field string) (newDecoder, error) {
	text := func(value *string, otherwise string) string {
		if value == nil {
			return otherwise
		}
		return *value
	}
	switch s.Type {
	case "WordPiece":
		prefix, cleans := text(s.Prefix, "##"), yes(s.Cleanup, true)
		return func() decoder { return wordPieceDecoder(prefix, cleans) }, nil
	case "BPEDecoder":
		suffix := text(s.Suffix, "</w>")
		return func() decoder { return suffixDecoder(suffix) }, nil
	case "CTC":
		pad, delimiter, cleans := text(s.PadToken, "<pad>"), text(s.WordDelimiter, "|"), yes(s.Cleanup, true)
		return func() decoder { return ctcDecoder(pad, delimiter, cleans) }, nil
	}
	return nil, unsupported(field+".type", s.Type, "ByteLevel, WordPiece, Metaspace, BPEDecoder, ByteFallback, Fuse, "+
		"Strip, Replace, CTC or Sequence")
}

func wordPieceDecoder(prefix string, cleans bool) decoder {
	begun := false
	return &whole{fn: func(name string, next sink) {
		if begun {
			if rest, ok := strings.CutPrefix(name, prefix); ok {
				name = rest
			} else {
				name = " " + name
			}
		}
		begun = true
		if cleans {
			name = cleanUp(name)
		}
		next(token(name))
	}}
}

// cleanUp takes spaces away before signs and shortened words. The order of the rules counts.
func cleanUp(text string) string {
	for _, rule := range [...][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"},
		{" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}} {
		text = strings.ReplaceAll(text, rule[0], rule[1])
	}
	return text
}

// suffixDecoder replaces the suffix of words by a space. The last token ends without a space.
func suffixDecoder(suffix string) decoder {
	held, open := "", false
	return &whole{
		fn: func(name string, next sink) {
			if open {
				next(token(strings.ReplaceAll(held, suffix, " ")))
			}
			held, open = name, true
		},
		last: func(next sink) {
			if open {
				next(token(strings.ReplaceAll(held, suffix, "")))
			}
		},
	}
}

// ctcDecoder takes repeated tokens and padding away.
func ctcDecoder(pad, delimiter string, cleans bool) decoder {
	last, begun := "", false
	return &whole{fn: func(name string, next sink) {
		if begun && name == last {
			return
		}
		last, begun = name, true
		name = strings.ReplaceAll(name, pad, "")
		if cleans {
			name = strings.ReplaceAll(cleanUp(name), delimiter, " ")
		}
		if name != "" {
			next(token(name))
		}
	}}
}
