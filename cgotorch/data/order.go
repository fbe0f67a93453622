package data

import "math/bits"

// Note [Order of samples]
//
// An epoch is a sequence of windows. The window of a Dataset is all of it. A window of a Stream is
// the next ShuffleBuffer samples of the file, or fewer if they fill BufferBytes. Each window but
// the last has a multiple of World samples, so no round of the ranks crosses a window. The order
// inside a window is a permutation that depends on the seed, the epoch and the window's first row.
//
// A state therefore needs only the first row of its window and the number of samples so far. A
// resumed epoch skips the rows before the window, and permutes the window again.
//
// When the number of ranks changes, the samples so far are the beginning of the order, because the
// ranks take its samples in turns. The new ranks take what is left of the window in turns, and fill
// their last round of this window. They then cut the windows that follow by their own number.
//
// The hash and the algorithm are in this package, because Go's own random generators may change
// between versions. Saved states must keep their meaning.

// mix is the finalizer of SplitMix64.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// permutation returns the numbers 0 to n-1 in a random order. Each order is equally likely, but
// for a bias of n / 2^64.
func permutation(n int, seed uint64, epoch int, row int64) []int32 {
	order := make([]int32, n)
	key := mix(mix(mix(seed)^uint64(epoch)) ^ uint64(row))
	for i := range order {
		high, _ := bits.Mul64(mix(key^uint64(i)), uint64(i+1))
		order[i] = order[high]
		order[high] = int32(i)
	}
	return order
}

// window is some samples of an epoch, with their order.
type window struct {
	rows  *Rows   // nil if `set` gives the samples
	set   Dataset // nil if `rows` has the samples
	row   int64   // number of samples of the epoch before the window
	n     int     // number of samples
	from  int     // number of samples at its beginning that other ranks had
	order []int32 // nil if the samples come in their own order
}

// share returns this rank's number of samples of the window. Only the last window of an epoch has
// a rest, and the window in which the number of ranks changes.
func (w *window) share(o Options) int { return o.share(w.n - w.from) }

// sample returns the number, in the window, of the k-th sample of this rank.
func (w *window) sample(o Options, k int) int32 {
	i := w.from + k*o.World
	if rest := w.n - i; rest < o.World {
		i += o.Rank % rest
	} else {
		i += o.Rank
	}
	if w.order == nil {
		return int32(i)
	}
	return w.order[i]
}

// appendSamples appends the places, in the window, of some samples of this rank to `places`. They
// are the rank's samples [from, to).
func (w *window) appendSamples(o Options, from, to int, places []int32) []int32 {
	for k := from; k < to; k++ {
		places = append(places, w.sample(o, k))
	}
	return places
}
