package tokenizer

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// Note [Patterns]
//
// A tokenizer.json has regular expressions in Oniguruma's syntax. Go's package regexp has no
// look-ahead, and other character classes: \s and \w are ASCII there. This package therefore has a
// matcher of its own. It reads the constructs of Oniguruma that tokenizers have, and refuses others
// by name. Like Oniguruma it goes back and tries again. It notes the states that failed, so a match
// takes time in proportion to the text's length. Look-around does not share these notes.

// pattern is a compiled regular expression.
type pattern struct {
	program []instruction
	first   [256]bool // bytes with which a match can begin
	empty   bool      // a match can be empty
}

// node is a part of a regular expression.
type node struct {
	kind     kind
	set      *runeSet // of kindSet
	parts    []node   // of kindSequence and kindEither; one of kindRepeat, kindLook and kindAtomic
	min, max int      // of kindRepeat; max is -1 without a limit
	mode     mode     // of kindRepeat
	assert   byte     // of kindAssert
	behind   bool     // of kindLook
	negative bool     // of kindLook
}

type kind uint8

const (
	kindSequence kind = iota // an empty sequence matches the empty text
	kindEither
	kindSet
	kindRepeat
	kindAssert
	kindLook
	kindAtomic
)

// A longer pattern, and one that compiles to more instructions, is refused.
const (
	longestPattern = 1 << 13
	longestProgram = 1 << 15
	deepestPattern = 100
)

// newPattern compiles a regular expression. The error names what is not known.
func newPattern(text string) (*pattern, error) {
	if len(text) > longestPattern {
		return nil, fmt.Errorf("it has %d bytes, and the most is %d", len(text), longestPattern)
	}
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("%q is not UTF-8", text)
	}
	r := &patternReader{text: text}
	tree, err := r.either(flags{}, 0)
	if err == nil && r.at < len(text) {
		err = fmt.Errorf("%q has a ) too many", text)
	}
	if err != nil {
		return nil, err
	}
	c := &compiler{}
	if err := c.compile(tree); err != nil {
		return nil, err
	}
	c.emit(instruction{op: opMatch})
	p := &pattern{program: c.program}
	first, empty := tree.begin()
	p.empty = empty
	first.prepare()
	for b := range p.first {
		p.first[b] = b >= utf8.RuneSelf || first.has(rune(b))
	}
	return p, nil
}

// begin returns the characters with which a match can begin. empty reports whether a match can
// be empty.
func (n *node) begin() (first *runeSet, empty bool) {
	switch n.kind {
	case kindSet:
		return n.set, false
	case kindAssert, kindLook:
		return &runeSet{}, true
	case kindRepeat:
		first, empty = n.parts[0].begin()
		return first, empty || n.min == 0
	case kindEither:
		first = &runeSet{}
		for i := range n.parts {
			f, e := n.parts[i].begin()
			first, empty = first.union(f), empty || e
		}
		return first, empty
	}
	first, empty = &runeSet{}, true
	for i := 0; i < len(n.parts) && empty; i++ {
		var f *runeSet
		f, empty = n.parts[i].begin()
		first = first.union(f)
	}
	return first, empty
}

// width returns how many characters a match has. ok is false if the number is not fixed.
func (n *node) width() (width int, ok bool) {
	switch n.kind {
	case kindSet:
		return 1, true
	case kindAssert, kindLook:
		return 0, true
	case kindRepeat:
		width, ok = n.parts[0].width()
		return width * n.min, ok && n.min == n.max
	case kindEither:
		for i := range n.parts {
			w, fixed := n.parts[i].width()
			if !fixed || i > 0 && w != width {
				return 0, false
			}
			width = w
		}
		return width, true
	}
	for i := range n.parts {
		w, fixed := n.parts[i].width()
		if !fixed {
			return 0, false
		}
		width += w
	}
	return width, true
}

// compiler makes a program of nodes.
type compiler struct {
	program []instruction
	sets    []*runeSet // that are prepared
	loops   int        // how many repeats without limit are around
}

func (c *compiler) emit(in instruction) int {
	c.program = append(c.program, in)
	return len(c.program) - 1
}

// prepared returns a prepared set that is equal to s. Equal sets share their memory.
func (c *compiler) prepared(s *runeSet) *runeSet {
	for _, known := range c.sets {
		if slices.Equal(known.ranges, s.ranges) {
			return known
		}
	}
	c.sets = append(c.sets, s.prepare())
	return s
}

func (c *compiler) compile(n node) error {
	if len(c.program) > longestProgram || len(c.sets) > 1<<10 {
		return fmt.Errorf("it is too large: its repeats make more than %d steps", longestProgram)
	}
	switch n.kind {
	case kindSequence:
		for _, part := range n.parts {
			if err := c.compile(part); err != nil {
				return err
			}
		}
	case kindSet:
		c.emit(instruction{op: opSet, set: c.prepared(n.set)})
	case kindAssert:
		in := instruction{op: opAssert, assert: n.assert}
		if n.assert == 'b' || n.assert == 'B' {
			in.set = c.prepared(onigurumaWordSet().union(latinDigits()))
		}
		c.emit(in)
	case kindEither:
		return c.either(n.parts)
	case kindRepeat:
		return c.repeat(n)
	case kindLook:
		return c.look(n)
	case kindAtomic:
		return c.part(instruction{op: opAtomic}, n.parts[0])
	}
	return nil
}

func (c *compiler) either(parts []node) error {
	var ends []int
	for i, part := range parts {
		if i == len(parts)-1 {
			if err := c.compile(part); err != nil {
				return err
			}
			break
		}
		split := instruction{op: opSplit, next: len(c.program) + 1}
		if first, empty := part.begin(); !empty {
			split.set = c.prepared(first)
		}
		at := c.emit(split)
		if err := c.compile(part); err != nil {
			return err
		}
		ends = append(ends, c.emit(instruction{op: opJump}))
		c.program[at].other = len(c.program)
	}
	for _, end := range ends {
		c.program[end].next = len(c.program)
	}
	return nil
}

func (c *compiler) repeat(n node) error {
	part := n.parts[0]
	// A loop inside a loop goes step by step. The notes of failed states then bound its time.
	if part.kind == kindSet && (c.loops == 0 || n.max >= 0) {
		c.emit(instruction{op: opLoop, set: c.prepared(part.set), min: n.min, max: n.max, mode: n.mode})
		return nil
	}
	if n.mode == possessive {
		n.mode = greedy
		return c.part(instruction{op: opAtomic}, n)
	}
	if _, empty := part.begin(); empty && n.max != 1 {
		return fmt.Errorf("a repeat of a part that can be empty is not known")
	}
	if n.max < 0 {
		c.loops++
		defer func() { c.loops-- }()
	}
	for range n.min {
		if err := c.compile(part); err != nil {
			return err
		}
	}
	split := func() int {
		if n.mode == lazy {
			return c.emit(instruction{op: opSplit, other: len(c.program) + 1})
		}
		return c.emit(instruction{op: opSplit, next: len(c.program) + 1})
	}
	leave := func(at int) {
		if n.mode == lazy {
			c.program[at].next = len(c.program)
		} else {
			c.program[at].other = len(c.program)
		}
	}
	if n.max < 0 {
		at := split()
		if err := c.compile(part); err != nil {
			return err
		}
		c.emit(instruction{op: opJump, next: at})
		leave(at)
		return nil
	}
	var splits []int
	for range n.max - n.min {
		splits = append(splits, split())
		if err := c.compile(part); err != nil {
			return err
		}
	}
	for _, at := range splits {
		leave(at)
	}
	return nil
}

// part compiles a part that runs by itself.
func (c *compiler) part(in instruction, part node) error {
	in.next = len(c.program) + 1
	at := c.emit(in)
	if err := c.compile(part); err != nil {
		return err
	}
	c.emit(instruction{op: opMatch})
	c.program[at].other = len(c.program)
	return nil
}

func (c *compiler) look(n node) error {
	in := instruction{op: opLook, negative: n.negative}
	if n.behind {
		width, ok := n.parts[0].width()
		if !ok {
			return fmt.Errorf("a look-behind whose length is not fixed is not known")
		}
		in.back = width
	}
	return c.part(in, n.parts[0])
}
