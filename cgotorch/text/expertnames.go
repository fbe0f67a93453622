package text

import "fmt"

// ExpertPattern is a regular expression that matches, at the beginning of a tensor's name, the name of the expert that it belongs to.
const ExpertPattern = `^(encoder|decoder)\.block\.\d+\.layer\.\d+\.mlp\.experts\.expert_\d+`

// ExpertNames returns the experts' names, which their tensors' begin with, of the decoder's sparse layers, or of the encoder's, by layer and expert.
func (c SwitchConfig) ExpertNames(decoder bool) [][]string {
	stack, layer, blocks, sparse := "encoder", 1, c.NumLayers, c.SparseEncoder
	if decoder {
		stack, layer, blocks, sparse = "decoder", 2, c.NumDecoderLayers, c.SparseDecoder
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
