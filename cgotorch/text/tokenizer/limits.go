package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// truncation tells how texts are cut that have too many tokens.
type truncation struct {
	Length    *int   `json:"max_length"` // nil if texts are not cut
	Strategy  string `json:"strategy"`
	Direction string `json:"direction"` // the end that is cut off
	Stride    int    `json:"stride"`
}

// padding tells how texts are filled up that have too few tokens.
type padding struct {
	Strategy  json.RawMessage `json:"strategy"`
	Direction string          `json:"direction"`
	Multiple  *int            `json:"pad_to_multiple_of"`
	ID        int64           `json:"pad_id"`
	Kind      int64           `json:"pad_type_id"`
	length    int
}

// longestPadding bounds the memory that a damaged file can ask for.
const longestPadding = 1 << 24

func (t *Tokenizer) readLimits(cut, pad json.RawMessage) error {
	if len(cut) > 0 && string(cut) != "null" {
		if err := t.readTruncation(cut, "truncation"); err != nil {
			return err
		}
	}
	if len(pad) > 0 && string(pad) != "null" {
		return t.readPadding(pad, "padding")
	}
	return nil
}

func (t *Tokenizer) readTruncation(data json.RawMessage, field string) error {
	c := truncation{Direction: "Right"}
	if err := unmarshal(data, field, &c); err != nil {
		return err
	}
	switch {
	case c.Length == nil:
		return bad(field+".max_length", "it is missing")
	case *c.Length < t.around.single.added()+c.Stride || c.Stride < 0:
		return bad(field+".max_length", "it is %d, with a stride of %d and %d tokens around each text",
			*c.Length, c.Stride, t.around.single.added())
	case !slices.Contains([]string{"LongestFirst", "OnlyFirst", "OnlySecond"}, c.Strategy):
		return bad(field+".strategy", "it is %q", c.Strategy)
	case c.Direction != "Left" && c.Direction != "Right":
		return bad(field+".direction", "it is %q", c.Direction)
	}
	t.truncation = c
	return nil
}

func (t *Tokenizer) readPadding(data json.RawMessage, field string) error {
	p := padding{}
	if err := unmarshal(data, field, &p); err != nil {
		return err
	}
	var fixed struct{ Fixed *int }
	if string(p.Strategy) != `"BatchLongest"` {
		if err := unmarshal(p.Strategy, field+".strategy", &fixed); err != nil {
			return err
		}
		if fixed.Fixed == nil || *fixed.Fixed < 0 || *fixed.Fixed > longestPadding {
			return bad(field+".strategy", "it is %.40s", p.Strategy)
		}
		p.length = *fixed.Fixed
	}
	switch _, ok := t.Token(p.ID); {
	case !ok:
		return bad(field+".pad_id", "it is %d, which is no token", p.ID)
	case p.Direction != "Left" && p.Direction != "Right":
		return bad(field+".direction", "it is %q", p.Direction)
	case p.Multiple != nil && *p.Multiple > longestPadding:
		return bad(field+".pad_to_multiple_of", "it is %d", *p.Multiple)
	}
	t.padding = &p
	return nil
}

// Limit returns a Tokenizer of the same rules that cuts rows to `length` tokens, with those around
// the texts, and fills none up. Of a pair the longer text is cut first. The file's fields
// truncation and padding do not count, except for the end that is cut off. A row never has fewer
// tokens than stand around the texts.
func (t *Tokenizer) Limit(length int) *Tokenizer {
	limited := *t
	limited.truncation = truncation{Length: &length, Strategy: "LongestFirst", Direction: t.truncation.Direction}
	limited.padding = nil
	return &limited
}

// errTooLong is the error of a pair of texts of which only one may be cut.
var errTooLong = errors.New("the text that may not be cut is too long")

// cut cuts texts to `most` tokens. `second` is nil for a single text. A single text stays whole if
// only second texts may be cut.
func (c *truncation) cut(first, second []int64, most int) (one, two []int64, err error) {
	total := len(first) + len(second)
	if total <= most {
		return first, second, nil
	}
	a, b := len(first), len(second)
	ok := true
	switch {
	case most <= 0:
		a, b = 0, 0
	case c.Strategy == "OnlyFirst":
		a = most - b
		ok = a > 0
	case c.Strategy == "OnlySecond":
		if second == nil {
			return first, second, nil
		}
		b = most - a
		ok = b > 0
	case second == nil:
		a = most
	default:
		a, b = longestFirst(a, b, most)
	}
	if !ok {
		return nil, nil, fmt.Errorf("tokenizer: texts of %d and %d tokens, and %d may be cut to %d: %w",
			len(first), len(second), total, most, errTooLong)
	}
	return c.keep(first, a), c.keep(second, b), nil
}

// longestFirst returns how many tokens are left of two texts if the longer one is cut first.
func longestFirst(a, b, most int) (int, int) {
	short, long := min(a, b), max(a, b)
	if short > most {
		long = short
	} else {
		long = max(short, most-short)
	}
	if short+long > most {
		short = most / 2
		long = short + most%2
	}
	if a > b {
		return long, short
	}
	return short, long
}

func (c *truncation) keep(ids []int64, count int) []int64 {
	if count >= len(ids) {
		return ids
	}
	if c.Direction == "Left" {
		return ids[len(ids)-count:]
	}
	return ids[:count]
}

// fill fills a row up.
func (p *padding) fill(row []int64, with int64) []int64 {
	length := p.length
	if p.length == 0 {
		length = len(row)
	}
	if p.Multiple != nil && *p.Multiple > 0 && length%*p.Multiple > 0 {
		length += *p.Multiple - length%*p.Multiple
	}
	if len(row) >= length {
		return row
	}
	more := slices.Repeat([]int64{with}, length-len(row))
	if p.Direction == "Left" {
		return append(more, row...)
	}
	return append(row, more...)
}
