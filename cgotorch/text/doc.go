// Package text has text models with Hugging Face's parameter names and numbers.
//
// The Switch Transformer is an encoder and a decoder. Some of their blocks route each token to one
// of many feed-forward experts:
//
//	o := text.LoadOptions{SwitchOptions: text.SwitchOptions{DType: cgotorch.BFloat16}}
//	m, err := text.LoadSwitch(x, o, "switch-base-8")
//	…
//	tokens, err := m.Generate(ctx, x, ids, mask, text.GenerateOptions{MaxNewTokens: 32})
//
// [Switch.Logits] is the whole forward pass, and [Switch.Generate] decodes greedily. Each block
// ends with a [FeedForward], which is dense or routes tokens to experts. The experts may run
// anywhere: [Sparse].Override takes other [Experts], and [Pieces] cuts the decoder's step at its
// sparse layers. [Decoder.Begin] says how a program cuts the step itself. There Route chooses an
// expert for each token, and Combine takes the experts' results.
//
// The models are for inference: nothing is recorded for backward, and dropout does nothing.
// Autocast is ignored, since [SwitchOptions] sets the dtype. No method waits for the device unless
// its comment says so. Package tokenizer, in the folder below, turns text into ids and ids into
// text.
package text
