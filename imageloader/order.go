package imageloader

import "math/bits"

// Note [Order of an epoch]
//
// The image at each place of an epoch, and its random key, depend only on the seed, the epoch,
// the options and the archive. No random generator is shared by several goroutines. No generator
// lives from one epoch to the next. So neither the number of workers nor the place where a
// program resumes can change the images or the keys.
//
// Every random number is a hash of its purpose and its place. The hash and the algorithms are in
// this package, because Go's own random generators may change between versions. Saved states must
// keep their meaning.

// purpose is the use of random numbers. Numbers of one seed and epoch are different for each
// purpose.
type purpose uint64

const (
	forOrder purpose = 1 + iota
	forKeys
	forGroups
	forBatches
)

// random returns the i-th random number of an epoch for one purpose. It applies SplitMix64's
// finalizer to each input, one after another.
func random(seed uint64, epoch int, p purpose, i uint64) uint64 {
	return mix(mix(mix(mix(seed)^uint64(epoch))^uint64(p)) ^ i)
}

func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// draws is a sequence of random numbers for the order of an epoch.
type draws struct {
	seed  uint64
	epoch int
	what  purpose // 0 means forOrder
	i     uint64
}

// below returns the next number, which is at least 0 and less than n. Its bias is n / 2^64.
func (d *draws) below(n int) int {
	high, _ := bits.Mul64(random(d.seed, d.epoch, max(d.what, forOrder), d.i), uint64(n))
	d.i++
	return int(high)
}

// permutation returns the numbers 0 to n-1 in a random order. Each order is equally likely. If
// `shuffled` is false, the numbers are in order.
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
