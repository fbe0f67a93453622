// Package text has language models with the numbers of Hugging Face's transformers.
//
// # Decoders
//
// [Open] makes a [Model] of a folder as save_pretrained writes it: its config.json, its safetensors
// files and its tokenizer. A [Conversation] answers, token by token:
//
//	m, err := text.Open(cgotorch.CUDA(0), "Llama-3.2-1B-Instruct", text.Options{})
//	…
//	defer m.Close()
//	talk := m.NewConversation()
//	defer talk.Close()
//	messages := []tokenizer.Message{{Role: "user", Content: "Where do streams end?"}}
//	answer := talk.Chat(ctx, messages, tokenizer.ChatOptions{}, text.GenerateOptions{})
//	for token, err := range answer {
//		…
//		fmt.Print(token.Text)
//	}
//
// The next turn gives all messages, with the answer and the next question behind them. What the
// cache has of them is not computed again. [Conversation.Generate] takes tokens in place of
// messages. [GenerateOptions] say how tokens are drawn, on the device.
//
// Keys and values lie in pages of a pool that [Options] bound. Conversations take pages as they
// grow, and give them back in Close. They take turns on the model's stream.
//
// The families llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, olmo2, mixtral, qwen3_moe and
// gpt_oss run through one decoder. The file families.go is the table of what they do differently.
// What is computed in which dtype: products and attention in the dtype of the weights; norms,
// rotations and the sum that goes from layer to layer in float32.
//
// # Many callers
//
// A [Batcher] answers the requests of many goroutines with one model, and reads the weights once
// for all of them in each step:
//
//	batcher, err := m.NewBatcher(text.BatcherOptions{})
//	…
//	defer batcher.Close()
//	answer := batcher.Chat(ctx, messages, tokenizer.ChatOptions{}, text.GenerateOptions{})
//	for token, err := range answer { // in any goroutine
//		…
//	}
//
// Prompts that begin alike share the pages of the beginning. Answers that lack pages wait in host
// memory. [Batcher.Stats] has counts and times. [BatcherOptions].Reproducible makes the bits of an
// answer independent of the others. [Plan] tells how many conversations fit into a memory, before
// anything is loaded.
//
// # Answers that fit a schema
//
// A [Schema] binds an answer to a JSON schema. The answer is a value that fits, or MaxTokens has
// cut it:
//
//	schema, err := text.CompileSchema(document) // {"type": "array", "items": {"type": "integer"}}
//	…
//	mask, err := m.SchemaMask(schema) // for one answer
//	…
//	answer := talk.Chat(ctx, messages, tokenizer.ChatOptions{}, text.GenerateOptions{Mask: mask})
//
// # Training
//
// [Model.Forward] is the whole pass without a cache, for training. The model's Weights are its
// parameters, and [Model.Save] writes a folder that transformers reads.
//
// # Encoders of sentences
//
// [OpenEncoder] makes an [Encoder] of a folder as sentence-transformers writes it. It makes vectors
// of texts, or scores of pairs if the folder has a cross-encoder:
//
//	e, err := text.OpenEncoder(cgotorch.CUDA(0), "all-MiniLM-L6-v2", text.EncoderOptions{})
//	…
//	defer e.Close()
//	vectors, err := e.Embed(ctx, []string{"Where do streams end?", "At an event."})
//
// Any number of goroutines may call it. Their texts become batches together, which are bounded by
// tokens and hold no padding. The families bert, roberta, xlm-roberta, mpnet and modernbert are
// known, and the decoders above. The numbers are those of sentence-transformers 6.2.
//
// # The Switch Transformer
//
// The Switch Transformer is an encoder and a decoder. Some of their blocks route each token to
// one of many feed-forward experts:
//
//	m, err := text.LoadSwitch(x, text.SwitchOptions{DType: cgotorch.BFloat16}, "switch-base-8")
//	…
//	tokens, err := m.Generate(ctx, x, ids, mask, text.SwitchGenerateOptions{MaxNewTokens: 32})
//
// [Switch.Logits] is the whole forward pass, and [Switch.Generate] decodes greedily. Each block
// ends with a [FeedForward]. A FeedForward is dense, or it routes tokens to experts.
//
// Experts may be larger than the device. With [SwitchOptions].Slots they lie in host memory, and
// the device keeps those that tokens have chosen last. A step of the decoder, [Switch.Step],
// computes the next token of each sequence, and can be captured.
//
// A Switch is for inference. Nothing is recorded for backward, and there is no dropout. Autocast is
// ignored, because [SwitchOptions] sets the dtype. A method does not wait for the device unless its
// comment says so.
package text
