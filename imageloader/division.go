package imageloader

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Note [Divisions]
//
// Ranks divide the order of an epoch. Each rank has a contiguous part of the order. When a program
// goes on with another number of ranks, some places of each part are over. The places that are left
// are divided again, and each new rank has a contiguous part of these. This may happen many times
// in one epoch.
//
// State.Ranks is the list of these divisions, as a text: "8@120 6". Here each of 8 ranks has gone
// through 120 places of its part, and now 6 ranks divide what is left. Skipped images let the
// ranks of a division be at different places. The text then has the place of every rank:
// "3@7,8+1,7". The number after "+" is how many of these images were skipped. A letter behind the
// number of ranks is for Options.Ranks.DropRest ("8d") or Options.Ranks.EachOnce ("8x"). "8?" says
// that images may be skipped, so the position of one rank does not tell those of the others.
// JoinStates removes the "?".
//
// In the first division of an epoch the parts are equally long. The last parts go on at the
// beginning of the order, where the images do not divide evenly. Later parts do not overlap, and
// some have one place less. The rank of a shorter part repeats one image.

// span is the places `from` to `to` of an order, without `to`.
type span struct{ from, to int }

// places returns the number of places.
func places(spans []span) (n int) {
	for _, s := range spans {
		n += s.to - s.from
	}
	return n
}

// pick returns some of the places of `spans`. The places of spans are counted from 0, and `which`
// are the counts of those that are wanted.
func pick(spans, which []span) (picked []span) {
	i, before := 0, 0 // before: number of places before spans[i]
	for _, w := range which {
		if w.from < before {
			i, before = 0, 0
		}
		for w.from < w.to {
			s := spans[i]
			if n := s.to - s.from; before+n <= w.from {
				i, before = i+1, before+n
				continue
			}
			from := s.from + w.from - before
			n := min(w.to-w.from, s.to-from)
			picked = append(picked, span{from, from + n})
			w.from += n
		}
	}
	return picked
}

// ascending returns up to `most` places of `spans`, after the first `skip`. It ends before a span
// that lies before its predecessor.
func ascending(spans []span, skip, most int) (some []span) {
	for _, s := range spans {
		n := min(skip, s.to-s.from)
		s.from, skip = s.from+n, skip-n
		s.to = s.from + min(most, s.to-s.from)
		if s.from == s.to {
			continue
		}
		if len(some) > 0 && s.from < some[len(some)-1].to {
			break
		}
		some, most = append(some, s), most-(s.to-s.from)
	}
	return some
}

// between returns the places of `spans` that are at least `from` and less than `to`.
func between(spans []span, from, to int) (some []span) {
	for _, s := range spans {
		if s.from, s.to = max(s.from, from), min(s.to, to); s.from < s.to {
			some = append(some, s)
		}
	}
	return some
}

// sharing says what happens if the images do not divide evenly.
type sharing string

const (
	evenly   sharing = ""  // some images come twice
	dropRest sharing = "d" // some images are left out
	eachOnce sharing = "x" // some ranks have one image less
)

// progress is how far a rank is.
type progress struct{ position, skipped int }

// division is how ranks divide the images of an epoch that are left.
type division struct {
	ranks   int
	sharing sharing
	apart   bool       // images may be skipped, so the ranks may be at different places
	at      []progress // of each rank. One element is for all ranks. nil: only one rank is known
}

// These bound the time that a state takes.
const (
	mostRanks     = 1 << 16
	mostDivisions = 256     // of an epoch
	mostTogether  = 1 << 20 // ranks of all divisions of an epoch
)

func (o Options) division() division {
	d := division{ranks: o.Ranks.World}
	switch {
	case o.Ranks.World == 1:
	case o.Ranks.DropRest:
		d.sharing = dropRest
	case o.Ranks.EachOnce:
		d.sharing = eachOnce
	}
	d.apart = o.Ranks.World > 1 && o.Reading.MaxSkipRate > 0
	return d
}

// same reports whether d and `other` divide in the same way.
func (d division) same(other division) bool {
	return d.ranks == other.ranks && d.sharing == other.sharing
}

// of returns the progress of a rank.
func (d division) of(rank int) progress {
	if len(d.at) == 1 {
		return d.at[0]
	}
	return d.at[rank]
}

// images returns the number of images that a rank delivers when `left` images are left.
func (d division) images(left, rank int) int {
	whole, rest := left/d.ranks, left%d.ranks
	if d.sharing == evenly && rest > 0 || d.sharing == eachOnce && rank < rest {
		return whole + 1
	}
	return whole
}

// part returns the part of a rank when `left` images are left. `first` is for the first division
// of an epoch.
func (d division) part(left, rank int, first bool) []span {
	n := d.images(left, rank)
	if n == 0 {
		return nil
	}
	if first && d.sharing == evenly {
		from := rank * n % left
		if from+n > left {
			return []span{{from, left}, {0, from + n - left}}
		}
		return []span{{from, from + n}}
	}
	whole, rest := left/d.ranks, left%d.ranks
	if d.sharing == dropRest {
		rest = 0
	}
	from := rank*whole + min(rank, rest)
	to := from + whole
	if rank < rest {
		to++
	}
	return []span{{from, to}}
}

// after returns the places that are left of an epoch of n images after some divisions.
func after(past []division, n int) ([]span, error) {
	left := []span{{0, n}}
	for i, d := range past {
		total := places(left)
		over := make([]span, 0, d.ranks+1)
		for rank := range d.ranks {
			count := d.of(rank).position
			if count > d.images(total, 0) {
				return nil, fmt.Errorf("it has %d ranks at image %d of %d", d.ranks, count, d.images(total, 0))
			}
			for _, s := range d.part(total, rank, i == 0) {
				n := min(count, s.to-s.from)
				over, count = append(over, span{s.from, s.from + n}), count-n
			}
		}
		slices.SortFunc(over, func(a, b span) int { return a.from - b.from })
		var still []span
		at := 0
		for _, s := range append(over, span{total, total}) {
			if s.from > at {
				still = append(still, span{at, s.from})
			}
			at = max(at, s.to)
		}
		left = pick(left, still)
	}
	return left, nil
}

// share is what one rank delivers of an epoch.
type share struct {
	own    int    // number of places of the rank's part; MaxInt while it is not known
	part   []span // these places, in order
	again  []span // the places of images that come again, in place of images that are missing
	images int    // usable images that the rank delivers. MaxInt: those of its part, and none again

	firstOfOne bool // one rank has begun the epoch
}

// share returns what a rank delivers from a state. The state is one that the method `startFor`
// returned.
func (s State) share(o Options) share {
	n := s.Samples
	if n == 0 {
		return share{own: math.MaxInt, part: []span{{0, math.MaxInt}}, images: math.MaxInt, firstOfOne: true}
	}
	divisions, err := parseDivisions(s.Ranks)
	if err != nil {
		panic(err) // startFor has parsed it
	}
	past, d := divisions[:len(divisions)-1], divisions[len(divisions)-1]
	left, err := after(past, n)
	if err != nil {
		panic(err) // startFor has called `after`
	}
	total := places(left)
	which := d.part(total, o.Ranks.Rank, len(past) == 0)
	sh := share{part: pick(left, which), images: math.MaxInt, firstOfOne: divisions[0].ranks == 1}
	sh.own = places(sh.part)
	if d.ranks > 1 && d.sharing != eachOnce {
		sh.images = d.images(total, o.Ranks.Rank)
	}
	if sh.again = sh.part; len(past) > 0 { // perhaps no image of the part is usable, or the part is empty
		from := 0
		if len(sh.part) > 0 {
			from = sh.part[0].from
		}
		sh.again = []span{{from, n}, {0, from}}
	}
	return sh
}

// spans returns the places of the rank's images from number k on, as far as these places ascend.
// It returns at least one place and at most `most`.
func (s *share) spans(k, most int) []span {
	if k < s.own {
		return ascending(s.part, k, most)
	}
	return ascending(s.again, (k-s.own)%places(s.again), most)
}

// repeats reports whether the rank's image number k, counted from 0, came to this rank before. The
// images that replace missing ones may be of other ranks' parts.
func (s *share) repeats(k int) bool {
	again := k - s.own
	if again < 0 || again >= places(s.again) {
		return again >= 0
	}
	place := ascending(s.again, again, 1)[0]
	return len(between(s.part, place.from, place.to)) > 0
}

// parseDivisions reads State.Ranks. "" is one rank.
func parseDivisions(text string) (divisions []division, err error) {
	if text == "" {
		return []division{{ranks: 1}}, nil
	}
	words := strings.Split(text, " ")
	if len(words) > mostDivisions {
		return nil, errOften
	}
	together := 0
	for i, word := range words {
		d, ok := parseDivision(word)
		if !ok || d.at == nil && i < len(words)-1 {
			return nil, fmt.Errorf("its Ranks is %.60q, which no loader writes; give the State of a batch", text)
		}
		divisions = append(divisions, d)
		if together += d.ranks; together > mostTogether {
			return nil, errOften
		}
	}
	return divisions, nil
}

var errOften = errors.New("the number of ranks has changed too often in its epoch; begin its NextEpoch")

func parseDivision(word string) (d division, ok bool) {
	head, list, found := strings.Cut(word, "@")
	head, d.apart = strings.CutSuffix(head, "?")
	for _, s := range []sharing{dropRest, eachOnce} {
		if number, is := strings.CutSuffix(head, string(s)); is {
			head, d.sharing = number, s
			break
		}
	}
	d.ranks, ok = count(head)
	if !ok || d.ranks < 1 || d.ranks > mostRanks {
		return d, false
	}
	if !found {
		return d, true
	}
	for _, item := range strings.Split(list, ",") {
		position, skipped, some := strings.Cut(item, "+")
		if !some {
			skipped = "0"
		}
		p, ok := count(position)
		s, is := count(skipped)
		if !ok || !is || s > p {
			return d, false
		}
		d.at = append(d.at, progress{p, s})
	}
	return d, len(d.at) == 1 || len(d.at) == d.ranks
}

// count reads a number that was written with AppendInt and is not below 0.
func count(text string) (n int, ok bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == text
}

// textOf writes divisions as a State.Ranks.
func textOf(divisions []division) string {
	if len(divisions) == 1 && divisions[0].ranks == 1 {
		return ""
	}
	var text []byte
	for i, d := range divisions {
		if i > 0 {
			text = append(text, ' ')
		}
		text = append(strconv.AppendInt(text, int64(d.ranks), 10), d.sharing...)
		if d.apart {
			text = append(text, '?')
		}
		at := d.at
		if len(at) > 0 && !slices.ContainsFunc(at, func(p progress) bool { return p != at[0] }) {
			at = at[:1]
		}
		for i, p := range at {
			text = strconv.AppendInt(append(text, [...]byte{'@', ','}[min(i, 1)]), int64(p.position), 10)
			if p.skipped > 0 {
				text = strconv.AppendInt(append(text, '+'), int64(p.skipped), 10)
			}
		}
	}
	return string(text)
}

// divide returns the divisions of an epoch that goes on with the ranks of `own`. n is the number
// of images of the epoch. `old` are its divisions so far, and `at` is how far a rank of the last
// of them is.
func divide(old []division, at progress, own division, n int) ([]division, error) {
	past, last := old[:len(old)-1], old[len(old)-1]
	if last.at == nil {
		if last.ranks > 1 && (last.apart || at.skipped > 0) {
			return nil, fmt.Errorf("it is the state of one of %d ranks, which may have skipped images; restore what JoinStates makes of the states of all %d", last.ranks, last.ranks)
		}
		last.at = []progress{at}
	}
	left, err := after(past, n)
	if err != nil {
		return nil, err
	}
	most := last.images(places(left), 0)
	over := division{ranks: last.ranks, sharing: last.sharing}
	begun := false
	for _, p := range last.at {
		over.at = append(over.at, progress{position: min(p.position, most)})
		begun = begun || p.position > 0
	}
	divisions := slices.Clone(past)
	if begun {
		divisions = append(divisions, over)
	}
	_, err = parseDivisions(textOf(append(divisions, own))) // fails if there are too many
	return append(divisions, own), err
}
