package text

import "fmt"

// ExpertPattern is a regular expression for the beginning of a tensor's name. It matches the name
// of the tensor's expert.
const ExpertPattern = `^(encoder|decoder)\.block\.\d+\.layer\.\d+\.mlp\.experts\.expert_\d+`

// ExpertNames returns the experts' names by layer and expert, for the sparse layers of the decoder,
// or of the encoder. The names of an expert's tensors begin with its name.
//
// As in transformers, blocks 1, 1+step, … are sparse, and every block where step is 1. step is the
// whole quotient of NumLayers and NumSparseEncoderLayers, or of the decoder's numbers. There may be
// more sparse blocks than that number. A number of 0 makes step NumLayers, so block 1 is sparse
// even then.
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
