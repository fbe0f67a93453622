package imageloader

import "math/bits"

// Note [Order of an epoch]
//
// The image at each place of an epoch, and its random key, are functions of the seed, the epoch,
// the options and the archive alone. No draw is from a generator that several goroutines share or
// that lives from one epoch to the next. So neither the number of workers nor the place of a
// resumption can change them. Every random number is a hash of its purpose. The hash and the
// algorithms here are our own because Go's may change between versions. Saved states may not.

// purpose keeps apart the random numbers of one seed and epoch.
type purpose uint64

const (
	forOrder purpose = 1 + iota
	forKeys
	forGroups
	forBatches
)

// random returns the i-th random number of an epoch for one purpose: SplitMix64's finalizer over
// each input, one after the other.
func random(seed uint64, epoch int, p purpose, i uint64) uint64 {
	return mix(mix(mix(mix(seed)^uint64(epoch))^uint64(p)) ^ i)
}

func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// draws is a sequence of an epoch's random numbers for its order.
type draws struct {
	seed  uint64
	epoch int
	what  purpose // 0 is forOrder
	i     uint64
}

// below returns the next number in [0, n). Its bias is n / 2^64.
func (d *draws) below(n int) int {
	high, _ := bits.Mul64(random(d.seed, d.epoch, max(d.what, forOrder), d.i), uint64(n))
	d.i++
	return int(high)
}

// permutation returns the numbers 0 to n-1, each order as likely as any other. Without shuffled
// they are in order.
func permutation(n int, d *draws, shuffled bool) []int32 {
	order := make([]int32, n)
	for i := range order {
		if !shuffled {
			order[i] = int32(i)
			continue
		}
		j := d.below(i + 1)
		order[i] = order[j]
		order[j] = int32(i)
	}
	return order
}
