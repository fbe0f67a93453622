// Package tokenizer turns text into the tokens of T5's model family, and tokens into text. The
// rules come from a Hugging Face tokenizer.json.
//
//	t, err := tokenizer.Open("switch-base-8/tokenizer.json")
//	…
//	ids := t.Encode("Where do the experts live?") // with </s> at the end
//	text := t.Decode(ids)                         // without </s>
//
// The package reads unigram models, as SentencePiece makes them, with or without byte fallback.
// The ids equal those of Hugging Face's transformers. This includes the rules for Unicode
// characters. If a file has a kind of model or rule that the package does not know, Open fails
// and names the kind.
package tokenizer
