package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch/internal/bodies"
)

// input is a text, or tokens.
type input struct {
	text string
	ids  []int64 // nil for a text
}

// startsNumber reports whether a list begins with a number.
func startsNumber(list json.RawMessage) bool {
	first := bytes.TrimLeft(list[1:], " \t\r\n")
	return list[0] == '[' && len(first) > 0 && (first[0] == '-' || first[0] >= '0' && first[0] <= '9')
}

// inputs takes a text, texts, tokens or lists of tokens: at least one, at most `most`, and of ids
// below `size`. It fails with a [refusal].
func (c *call) inputs(name string, most int, size int64) (list []input, err error) {
	raw := c.in.take(name)
	tokens := func(at string, raw json.RawMessage) (in input, err error) {
		if bodies.Commas(raw) >= mostTokens {
			return in, refuse(at, "it has more than %d tokens", mostTokens)
		}
		in.ids = []int64{}
		if bytes.Contains(raw, []byte("null")) || json.Unmarshal(raw, &in.ids) != nil { // a null would become 0
			return in, refuse(at, "want a text or a list of tokens, got %s", short(raw))
		}
		for i, id := range in.ids {
			if id < 0 || id >= size {
				most := "more"
				if size < math.MaxInt64 {
					most = fmt.Sprint(size - 1)
				}
				return in, refuse(fmt.Sprintf("%s[%d]", at, i), "is %d, and tokens are 0 to %s", id, most)
			}
		}
		return in, nil
	}
	switch {
	case raw == nil:
		return nil, refuse(name, "want a text, texts, tokens, or lists of tokens")
	case raw[0] == '"':
		list = make([]input, 1)
		return list, json.Unmarshal(raw, &list[0].text)
	case startsNumber(raw):
		one, err := tokens(name, raw)
		return []input{one}, err
	}
	raws, err := listOf(name, raw, most)
	if err == nil && len(raws) == 0 {
		err = refuse(name, "want a text, texts, tokens, or lists of tokens")
	}
	for i, raw := range raws {
		at, one := fmt.Sprintf("%s[%d]", name, i), input{}
		if raw[0] == '"' {
			err = json.Unmarshal(raw, &one.text)
		} else {
			one, err = tokens(at, raw)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, err
}
