package text

// A graph has one size. So sizes are rounded up to a few, for which graphs are made.

// leastOf returns the first of `size`, size*factor, size*factor*factor, … that is at least n.
func leastOf(n, size, factor int) int {
	for size < n {
		size *= factor
	}
	return size
}

// roundUp returns the first of 8, 12, 16, 24, 32, 48, … that is at least n, but not more than
// `most`. Blocks of captured steps and bytes of host slabs are rounded so.
func roundUp(n, most int) int {
	size := 8
	for size < n {
		if size&(size-1) == 0 {
			size += size / 2
		} else {
			size = size / 3 * 4
		}
	}
	return min(size, most)
}

// roundBlocks rounds the blocks of a step with a piece: 64 times a power of 4. The tables of pieces
// are 64 times a power of 16, because attention of prompts takes no longer with a longer table.
func roundBlocks(n int) int { return leastOf(n, 64, 4) }

// roundLongest returns 128 times a power of 4: flash attention has blocks of 128 tokens.
func roundLongest(n int) int { return leastOf(n, 128, 4) }

// roundRows returns a multiple of 64 that is at least n: at most a quarter more beyond 256, and an
// eighth beyond 4,096.
func roundRows(n int) int {
	step, parts := 64, 8
	if n > 4096 {
		parts = 16
	}
	for parts*step < n {
		step *= 2
	}
	return (n + step - 1) / step * step
}
