package tokenizer

import (
	"cmp"
	"slices"
	"unicode"
	"unicode/utf8"
)

// span of runes, both ends included.
type runeRange struct{ low, high rune }

// runeSet is a set of characters. The ranges are sorted and lie apart.
type runeSet struct {
	ranges []runeRange
	plane  []uint64 // a bit for each character below U+10000, after prepare
}

// newRuneSet makes a set of ranges in any order.
func newRuneSet(ranges ...runeRange) *runeSet {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b runeRange) int { return cmp.Compare(a.low, b.low) })
	s := &runeSet{}
	for _, r := range ranges {
		last := len(s.ranges) - 1
		switch {
		case r.low > r.high:
		case last >= 0 && r.low <= s.ranges[last].high+1:
			s.ranges[last].high = max(s.ranges[last].high, r.high)
		default:
			s.ranges = append(s.ranges, r)
		}
	}
	return s
}

func setOfRunes(text string) *runeSet {
	var ranges []runeRange
	for _, r := range text {
		ranges = append(ranges, runeRange{r, r})
	}
	return newRuneSet(ranges...)
}

// setOf returns the characters of tables.
func setOf(tables ...*unicode.RangeTable) *runeSet {
	var ranges []runeRange
	add := func(low, high, stride rune) {
		if stride == 1 {
			ranges = append(ranges, runeRange{low, high})
			return
		}
		for r := low; r <= high; r += stride {
			ranges = append(ranges, runeRange{r, r})
		}
	}
	for _, t := range tables {
		for _, r := range t.R16 {
			add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
		for _, r := range t.R32 {
			add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
	}
	return newRuneSet(ranges...)
}

func (s *runeSet) union(others ...*runeSet) *runeSet {
	ranges := slices.Clone(s.ranges)
	for _, o := range others {
		ranges = append(ranges, o.ranges...)
	}
	return newRuneSet(ranges...)
}

func (s *runeSet) negate() *runeSet {
	n, next := &runeSet{}, rune(0)
	for _, r := range s.ranges {
		if next < r.low {
			n.ranges = append(n.ranges, runeRange{next, r.low - 1})
		}
		next = r.high + 1
	}
	if next <= utf8.MaxRune {
		n.ranges = append(n.ranges, runeRange{next, utf8.MaxRune})
	}
	return n
}

func (s *runeSet) intersect(o *runeSet) *runeSet { return s.negate().union(o.negate()).negate() }

// fold adds the characters that differ from those of the set in case alone.
func (s *runeSet) fold() *runeSet {
	ranges := slices.Clone(s.ranges)
	add := func(r rune) {
		if !s.search(r) {
			return
		}
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			ranges = append(ranges, runeRange{f, f})
		}
	}
	for _, c := range unicode.CaseRanges {
		for r := rune(c.Lo); r <= rune(c.Hi); r++ {
			add(r)
		}
	}
	return newRuneSet(ranges...)
}

// prepare makes the method has fast.
func (s *runeSet) prepare() *runeSet {
	size := 2
	if len(s.ranges) > 0 && s.ranges[len(s.ranges)-1].high >= utf8.RuneSelf {
		size = 1 << 10
	}
	s.plane = make([]uint64, size)
	for _, r := range s.ranges {
		for c := r.low; c <= r.high && int(c) < size*64; c++ {
			s.plane[c>>6] |= 1 << (c & 63)
		}
	}
	return s
}

func (s *runeSet) has(r rune) bool {
	if at := int(r >> 6); at < len(s.plane) {
		return s.plane[at]>>(r&63)&1 != 0
	}
	return s.search(r)
}

func (s *runeSet) search(r rune) bool {
	_, found := slices.BinarySearchFunc(s.ranges, r, func(e runeRange, r rune) int {
		switch {
		case e.high < r:
			return -1
		case e.low > r:
			return 1
		}
		return 0
	})
	return found
}
