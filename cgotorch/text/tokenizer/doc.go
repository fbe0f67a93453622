// Package tokenizer turns text into the tokens of a language model, and tokens into text. The
// rules come from a Hugging Face tokenizer.json.
//
//	t, err := tokenizer.Open("switch-base-8")
//	…
//	ids := t.Encode("Where do the experts live?") // with </s> at the end
//	text := t.Decode(ids)                         // without </s>
//
// A [Stream] makes text of tokens while they come. [Tokenizer.Chat] makes the text of a chat, with
// the template of the model's folder.
//
// The package reads all four kinds of models: BPE, WordPiece, Unigram and WordLevel, with the
// normalizers, pre-tokenizers, post-processors and decoders of these files. It reads Mistral's
// tekken.json too. The ids equal those of Hugging Face's library, tokenizers 0.23. This includes
// the versions of Unicode that the library knows. If a file has a kind of model or rule that the
// package does not know, Open fails and names the kind.
package tokenizer
