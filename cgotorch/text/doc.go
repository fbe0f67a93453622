// Package text has text models with Hugging Face's parameter names and results.
//
// The Switch Transformer is an encoder and a decoder. Some of their blocks route each token to
// one of many feed-forward experts:
//
//	o := text.LoadOptions{SwitchOptions: text.SwitchOptions{DType: cgotorch.BFloat16}}
//	m, err := text.LoadSwitch(x, o, "switch-base-8")
//	…
//	tokens, err := m.Generate(ctx, x, ids, mask, text.SwitchGenerateOptions{MaxNewTokens: 32})
//
// [Switch.Logits] is the whole forward pass, and [Switch.Generate] decodes greedily. Each block
// ends with a [FeedForward]. A FeedForward is dense, or it routes tokens to experts.
//
// Experts may run anywhere. [Sparse].Override gives a sparse layer [Experts] of the program, as in
// m.Encoder.Block[1].FF.Sparse.Override = experts. A step of the decoder computes the next token of
// each sequence. [Pieces] cuts a step at the sparse layers, for [RoutedExperts] of the program.
//
// The models are for inference. Nothing is recorded for backward, and there is no dropout.
// Autocast is ignored, because [SwitchOptions] sets the dtype. A method does not wait for the
// device unless its comment says so. Package tokenizer, in a folder below this one, turns text
// into ids and ids into text.
package text
