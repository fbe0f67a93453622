package prefetcher

import "math/bits"

// Note [Random choices]
//
// The random choices for an image are computed from the key of the image
// ([imageloader.HostBatch].Keys). The key depends only on the seed, the epoch and the image.
// Choices for a whole batch use the key of its first image. So a choice does not depend on the
// number of workers, or on the place where a run was resumed. The choices for an image are the
// same in every batch that may have the image.
//
// The generator is the one of package decode, Philox4x32-10. It computes two 64-bit numbers from
// a key and a counter. The key is the image's key, low word first. The counter says which choice
// the numbers are for. Each choice has its own fixed counter. So if one augmentation is turned on
// or off, the choices of all others stay the same:
//
//	64      TrivialAugmentWide: the operation, the magnitude
//	65      TrivialAugmentWide: the sign
//	66      ColorJitter: the order
//	67      ColorJitter: brightness, contrast
//	68      ColorJitter: saturation, hue
//	69      RandomErasing: whether the image has a box
//	70      VerticalFlip, Grayscale
//	71      AutoAugment: the pair
//	72+i    AutoAugment: whether operation i is done, its sign
//	74      GaussianBlur: whether the image is blurred, the standard deviation
//	75      AugMix: the weight of the image, which takes both numbers
//	80+i    RandomErasing: the area and the shape of try i
//	96+i    RandomErasing: the top and the left of try i
//	112+i   RandAugment: operation i, its sign
//	128     for a batch: MixUp or CutMix
//	129     for a batch: lambda of MixUp or CutMix, which takes both numbers
//	130     for a batch: the row and the column of the middle of CutMix's box
//	136+i   AugMix: the depth of copy i
//	144+..  AugMix: for each of 8 operations of each copy, the operation and the strength; the sign
//	512+..  AugMix: the weights of the copies, 64 counters for each
const (
	drawTrivial = 64 + iota
	drawTrivialSign
	drawJitterOrder
	drawJitter
	drawJitterColour
	drawErase
	drawFlipGrey
	drawAuto
	drawAutoOperation // and the next
	drawBlur          = 74
	drawShare         = 75
	drawEraseShape    = 80
	drawErasePlace    = 96
	drawRand          = 112 // to 127
	drawMixOrCut      = 128
	drawLambda        = 129
	drawCut           = 130
	drawChainDepth    = 136 // to 143
	drawChain         = 144 // to 271
	drawChainWeight   = 512 // to 1023
)

// key is the number from which all random choices for an image, or for a batch, are computed.
type key uint64

// draw returns the two random numbers that belong to key k and to the counter `number`.
func (k key) draw(number uint32) (first, second choice) {
	c := philox([4]uint32{number}, [2]uint32{uint32(k), uint32(k >> 32)})
	return choice(c[1])<<32 | choice(c[0]), choice(c[3])<<32 | choice(c[2])
}

// choice is 64 random bits.
type choice uint64

// unit returns a number in [0, 1), in steps of 2^-53.
func (c choice) unit() float64 { return float64(c>>11) * 0x1p-53 }

// between returns a number in [low, high).
func (c choice) between(low, high float64) float64 { return low + (high-low)*c.unit() }

// below returns a number from 0 to n-1. Its bias is n / 2^64.
func (c choice) below(n int) int {
	high, _ := bits.Mul64(uint64(c), uint64(n))
	return int(high)
}

// philox is the generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
// easy as 1, 2, 3", 2011).
func philox(c [4]uint32, k [2]uint32) [4]uint32 {
	for range 10 {
		a, b := uint64(0xD2511F53)*uint64(c[0]), uint64(0xCD9E8D57)*uint64(c[2])
		c = [4]uint32{uint32(b>>32) ^ c[1] ^ k[0], uint32(b), uint32(a>>32) ^ c[3] ^ k[1], uint32(a)}
		k[0] += 0x9E3779B9
		k[1] += 0xBB67AE85
	}
	return c
}
