// Package tokenizer turns text into the tokens of T5's family, and tokens into text, as a Hugging Face tokenizer.json says.
//
//	t, err := tokenizer.Open("switch-base-8/tokenizer.json")
//	…
//	ids := t.Encode("Where do the experts live?") // with </s> at the end
//	text := t.Decode(ids)                         // without it
//
// It reads unigram models, which are SentencePiece's, with or without byte fallback, and gives the ids that transformers gives, rules for Unicode
// included. Files of other kinds are refused by name.
package tokenizer
