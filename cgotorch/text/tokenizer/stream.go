package tokenizer

import "strings"

// Stream makes text of tokens that come one after another. Its zero value needs Tokenizer alone.
// The pieces of text that [Stream.Add] and [Stream.Flush] return are whole UTF-8. Joined they are
// what [Tokenizer.Decode] returns for all tokens.
type Stream struct {
	Tokenizer *Tokenizer

	decoder decoder
	text    strings.Builder
	special bool // the names of special tokens are text too
}

// Add returns the text that a token adds. The text is "" while a later token can still change it:
// inside a character, and inside a word of some tokenizers. A special token adds nothing, and
// neither does an id that no token has.
func (s *Stream) Add(id int64) string {
	s.add(id)
	return s.take()
}

// Flush returns the text that is left behind the last token. The next Add begins a new text.
func (s *Stream) Flush() string {
	if s.decoder == nil {
		return ""
	}
	s.decoder.end(s.write)
	s.decoder = nil
	return s.take()
}

func (s *Stream) add(id int64) {
	name, ok := s.Tokenizer.Token(id)
	if !ok || !s.special && s.Tokenizer.special[name] {
		return
	}
	if s.decoder == nil {
		s.decoder = s.Tokenizer.decoder()
	}
	s.decoder.add(token(name), s.write)
}

func (s *Stream) write(p part) { s.text.WriteString(p.text) }

func (s *Stream) take() string {
	text := s.text.String()
	s.text.Reset()
	return text
}
