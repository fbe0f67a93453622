package openai

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// embedding is a vector in a response.
type embedding struct {
	Object string `json:"object"`
	Index  int    `json:"index"`
	Vector any    `json:"embedding"` // numbers, or base64 of little-endian float32
}

// embeddings answers with vectors of texts.
func (c *call) embeddings() error {
	if err := c.encodes(false); err != nil {
		return err
	}
	in, encoding, dimensions, truncate, user := c.in, "float", 0, false, ""
	in.choice("encoding_format", &encoding, "float", "base64")
	in.count("dimensions", &dimensions, 1, 1<<20)
	in.truth("truncate", &truncate)
	in.text("user", &user)
	list, err := c.inputs("input", c.h.o.Texts, math.MaxInt64)
	if err == nil {
		err = in.done()
	}
	if err != nil {
		return err
	}
	ids, tokens, err := c.encoderTokens(list, truncate)
	if err != nil {
		return err
	}
	vectors, err := c.model.Encoder.EmbedTokens(c.r.Context(), ids)
	if errors.Is(err, cgotorch.ErrInvalidArgument) {
		return refuse("input", "%v", err)
	}
	if err != nil {
		return err
	}
	out := make([]embedding, len(vectors))
	for i, v := range vectors {
		if dimensions > len(v) {
			return refuse("dimensions", "is %d, and the model's vectors have %d", dimensions, len(v))
		}
		if dimensions > 0 {
			v = unit(v[:dimensions])
		}
		out[i] = embedding{"embedding", i, v}
		if encoding == "base64" {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			out[i].Vector = base64.StdEncoding.EncodeToString(raw)
		}
	}
	return c.reply(map[string]any{
		"object": "list", "data": out, "model": c.model.Name, "usage": map[string]int{"prompt_tokens": tokens, "total_tokens": tokens},
	})
}

// encoderTokens returns the tokens of texts, and how many they are. A text that is too long is
// refused, unless it may be cut.
func (c *call) encoderTokens(list []input, truncate bool) (ids [][]int64, tokens int, err error) {
	for i, one := range list {
		if one.ids == nil {
			cut := 0
			err := c.reading(fmt.Sprintf("input[%d]", i), len(one.text), func() { one.ids, cut = c.model.Encoder.Tokens(one.text) })
			if err != nil {
				return nil, 0, err
			}
			if cut > 0 && !truncate {
				return nil, 0, &refusal{param: fmt.Sprintf("input[%d]", i), code: "context_length_exceeded", text: fmt.Sprintf(
					"it has %d tokens, and the model takes %d: divide it, or send truncate: true", len(one.ids)+cut, len(one.ids))}
			}
		}
		ids, tokens = append(ids, one.ids), tokens+len(one.ids)
	}
	return ids, tokens, nil
}

// unit returns a vector of the same direction with the length 1. A vector of zeros stays as it is.
func unit(v []float32) []float32 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return v
	}
	out := slices.Clone(v)
	for i := range out {
		out[i] = float32(float64(out[i]) / math.Sqrt(sum))
	}
	return out
}

// ranked is a text in the response of rerank.
type ranked struct {
	Index    int            `json:"index"`
	Score    float32        `json:"relevance_score"`
	Document map[string]any `json:"document,omitempty"`
}

// rerank answers with the scores of texts for a query, the best first.
func (c *call) rerank() error {
	if err := c.encodes(true); err != nil {
		return err
	}
	in, query, most, longest, returned := c.in, "", c.h.o.Texts, math.MaxInt32, false
	if !in.text("query", &query) || query == "" {
		in.refuse("query", "want a text")
	}
	in.count("top_n", &most, 1, 1<<30)
	in.truth("return_documents", &returned)
	in.count("max_tokens_per_doc", &longest, 1, math.MaxInt32)
	in.ignore("priority")
	in.neutral("truncate", "true")
	in.neutral("truncation", "true")
	texts := documents(in, c.h.o.Texts)
	if err := in.done(); err != nil {
		return err
	}
	scores, err := c.scores(query, texts, longest)
	if err != nil {
		return err
	}
	out := make([]ranked, len(scores))
	for i, score := range scores {
		out[i] = ranked{Index: i, Score: score}
		if returned {
			out[i].Document = map[string]any{"text": texts[i]}
		}
	}
	slices.SortStableFunc(out, func(a, b ranked) int { return cmp.Compare(b.Score, a.Score) })
	return c.reply(map[string]any{"id": newID("rerank-"), "object": "list", "model": c.model.Name, "results": out[:min(most, len(out))]})
}

// scores returns those of texts for a query. None may have more tokens than `longest`.
func (c *call) scores(query string, texts []string, longest int) (scores []float32, err error) {
	e := c.model.Encoder
	size := len(query)
	for _, text := range texts {
		size = max(size, len(query)+len(text))
	}
	over := c.reading("documents", size, func() {
		// A longer query would leave the texts no room, and be read again for each.
		if ids, cut := e.Tokens(query); cut > 0 {
			err = &refusal{param: "query", code: "context_length_exceeded", text: fmt.Sprintf("it has %d tokens, and the model takes %d, with a text", len(ids)+cut, len(ids))}
			return
		}
		for i := 0; longest < math.MaxInt32 && i < len(texts) && c.over() == nil; i++ {
			if ids, _ := e.Tokens(texts[i]); len(ids) > longest {
				err = refuse("max_tokens_per_doc", "is %d, and documents[%d] has more: cut it, or leave the field out", longest, i)
				return
			}
		}
		scores, err = e.Rank(c.r.Context(), query, texts)
	})
	if over != nil {
		return nil, over
	}
	return scores, err
}

// documents takes the texts to rank: texts, or objects with a text.
func documents(in *fields, most int) (texts []string) {
	list := in.list("documents", most)
	if len(list) == 0 {
		in.refuse("documents", "want a list of texts")
	}
	for i, raw := range list {
		text, at := "", fmt.Sprintf("documents[%d]", i)
		if raw[0] == '"' {
			if err := json.Unmarshal(raw, &text); err != nil {
				in.refuse(at, "%v", err)
			}
		} else if f, err := newFields(at, raw); err != nil {
			if raw[0] != '{' {
				err = refuse(at, "want a text, or an object with a text, got %s", short(raw))
			}
			in.keep(err)
		} else {
			if !f.text("text", &text) {
				f.refuse("text", "it is missing")
			}
			in.within(f)
		}
		texts = append(texts, text)
	}
	return texts
}
