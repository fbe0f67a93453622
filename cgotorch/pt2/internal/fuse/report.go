package fuse

import "fmt"

// report counts what a fuser has done.
type report struct {
	dropouts, norms, sums, activations, convolutions int
	normActivations, scaledSums                      int
	pools, layerNorms, products                      int
	means, pixelConvolutions, squeezeExcitations     int
	plainNorms, biases, biasSums, masks              int
	linearBiases                                     int
	constants, windows                               int
}

// String tells what was done.
func (r report) String() string {
	text := fmt.Sprintf("%d of %d convolutions took a batch norm in, %d a ReLU, %d a sum; %d dropouts left out", r.norms, r.convolutions, r.activations, r.sums, r.dropouts)
	if r.normActivations > 0 {
		text += fmt.Sprintf("; %d batch norms took an activation or a sum in", r.normActivations)
	}
	if r.scaledSums > 0 {
		text += fmt.Sprintf("; %d sums took a product in", r.scaledSums)
	}
	if r.pools+r.layerNorms+r.products > 0 {
		text += fmt.Sprintf("; own kernels for %d pools, %d layer norms of sums, %d products with channels", r.pools, r.layerNorms, r.products)
	}
	for _, more := range []struct {
		count int
		what  string
	}{
		{r.means, "means of channels"}, {r.pixelConvolutions, "convolutions of one pixel as linear layers"},
		{r.squeezeExcitations, "squeezes and excitations"},
		{r.plainNorms, "own kernels for layer norms"}, {r.biases, "biases of convolutions in the layer norms behind them"},
		{r.biasSums, "biases of convolutions added by a kernel of their own"}, {r.linearBiases, "biases of linear layers in the kernel behind them, if there are many rows"}, {r.constants, "steps computed once"}, {r.windows, "attentions in windows"}, {r.masks, "attentions with a mask made dense"},
	} {
		if more.count > 0 {
			text += fmt.Sprintf("; %s: %d", more.what, more.count)
		}
	}
	return text
}
