package text

import "fmt"

// ExpertNames returns the names of the experts. Element [i][k] of the result is the name of
// expert k of sparse layer i. If `decoder` is true, the layers are those of the decoder.
// Otherwise the layers are those of the encoder. The names of an expert's tensors begin with the
// expert's name. No other names match ^.*\.expert_\d+, whose match is the expert's name.
//
// The sparse blocks are the same as in Hugging Face's transformers. In the encoder, the distance
// from a sparse block to the next sparse block is d = NumLayers / NumSparseEncoderLayers, rounded
// down. In the decoder, d is NumDecoderLayers / NumSparseDecoderLayers, rounded down. Blocks 1,
// 1+d, 1+2*d and so on are sparse. If d is 1, every block is sparse.
//
// There may be more sparse blocks than NumSparseEncoderLayers. If NumSparseEncoderLayers is 0, d
// is NumLayers. Block 1 is then still sparse.
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
