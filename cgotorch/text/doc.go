// Package text has text models with Hugging Face's parameter names and numbers.
//
// The Switch Transformer is an encoder and a decoder in which every few blocks route each token to one of many feed-forward experts:
//
//	m, err := text.LoadSwitch(x, text.LoadOptions{SwitchOptions: text.SwitchOptions{DType: cgotorch.BFloat16}}, "switch-base-8")
//	…
//	tokens, err := m.Generate(ctx, x, ids, mask, text.GenerateOptions{MaxNewTokens: 32})
//
// [Switch.Logits] is the whole forward pass, [Switch.Generate] decodes greedily. Both can be had in pieces: an [Encoder] or [Decoder] begins with
// its embedding, attends block by block, and each block ends with a [FeedForward], which is dense, or routes tokens to experts: Route says which
// expert each token wants, Combine takes what the experts made of them. Between the two the experts may run anywhere, under [Experts].
//
// The models are for inference: nothing is recorded for backward, dropout does nothing, and autocast is passed over, since
// [SwitchOptions] says the dtype. No method waits for the device unless its comment says so. Package tokenizer, in the folder below, turns text into ids
// and ids into text.
package text
