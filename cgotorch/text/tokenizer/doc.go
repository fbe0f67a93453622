// Package tokenizer turns text into the tokens of T5's family, and tokens into text, by a Hugging
// Face tokenizer.json.
//
//	t, err := tokenizer.Open("switch-base-8/tokenizer.json")
//	…
//	ids := t.Encode("Where do the experts live?") // with </s> at the end
//	text := t.Decode(ids)                         // without it
//
// It reads unigram models, which are SentencePiece's, with or without byte fallback. Its ids
// equal those of transformers, rules for Unicode included. Files of other kinds are refused by
// name.
package tokenizer
