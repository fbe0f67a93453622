package text

import "fmt"

// ExpertPattern is a regular expression for names of tensors. It matches the beginning of the
// name of an expert's tensor. That beginning is the name of the expert.
const ExpertPattern = `^(encoder|decoder)\.block\.\d+\.layer\.\d+\.mlp\.experts\.expert_\d+`

// ExpertNames returns the names of the experts, by sparse layer and expert. If decoder is set,
// the layers are those of the decoder. Otherwise the layers are those of the encoder. The names
// of an expert's tensors begin with the expert's name.
//
// The sparse blocks are the same as in Hugging Face's transformers. For the encoder, step is
// NumLayers divided by NumSparseEncoderLayers, rounded down. For the decoder, step is
// NumDecoderLayers divided by NumSparseDecoderLayers. Blocks 1, 1+step, 1+2*step and so on are
// sparse. If step is 1, every block is sparse.
//
// There may be more sparse blocks than NumSparseEncoderLayers. If NumSparseEncoderLayers is 0,
// step is NumLayers. Block 1 is then still sparse.
func (c SwitchConfig) ExpertNames(decoder bool) [][]string {
	stack, layer, blocks, sparse := "encoder", 1, c.NumLayers, c.sparseEncoder
	if decoder {
		stack, layer, blocks, sparse = "decoder", 2, c.NumDecoderLayers, c.sparseDecoder
	}
	var names [][]string
	for block := range blocks {
		if !sparse(block) {
			continue
		}
		experts := make([]string, c.NumExperts)
		for i := range experts {
			experts[i] = fmt.Sprintf("%s.block.%d.layer.%d.mlp.experts.expert_%d", stack, block, layer, i)
		}
		names = append(names, experts)
	}
	return names
}
