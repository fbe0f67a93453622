package jsonschema

import (
	"math/big"
	"strings"
)

// See Note [Form] for these numbers.
const (
	mostInteger  = 1<<53 - 1
	mostDigits   = 15   // of a number that is no integer
	mostMultiple = 1000 // of multipleOf
)

// digitsOf is a number in decimal digits.
type digitsOf struct{ whole, fraction string }

func decimal(r *big.Rat) digitsOf {
	whole, fraction, _ := strings.Cut(r.FloatString(400), ".")
	return digitsOf{whole, strings.TrimRight(fraction, "0")}
}

// magnitudes is a range of numbers without a sign.
type magnitudes struct {
	some                bool
	low                 digitsOf
	high                *digitsOf // nil for no bound
	lowStrict, hiStrict bool
}

// numbers is a set of numbers to write.
type numbers struct {
	signs    [2]magnitudes // those that are not negative, and those that are
	integer  bool
	exponent bool
	multiple int // 1 for all
}

// numeral is a number of which some characters are written. It has all that the next ones depend
// on: see Note [Numerals].
type numeral struct {
	begun, negative bool
	whole           int8 // digits before the point
	zero            bool // the whole part is 0
	point           bool
	fraction        int8  // digits behind the point
	low, high       int8  // how the digits compare with those of the bounds: -1, 0 or 1
	exponent        int8  // 1 behind e, 2 behind its sign, 3 and 4 behind its digits
	rest            int16 // of the whole part by numbers.multiple
}

// automaton returns that of the numbers' texts, or nil if there are none.
func (n *numbers) automaton(c *compiler, at *location) *dfa {
	return explore(c, at, numeral{}, func(s numeral) (edges []edge, to []numeral, accept bool) {
		for _, b := range "+-.0123456789e" {
			if next, ok := n.step(s, b); ok {
				edges, to = append(edges, edge{lo: b, hi: b}), append(to, next)
			}
		}
		return edges, to, n.ends(s)
	})
}

// step returns the numeral behind one more character, and reports whether this may come.
func (n *numbers) step(s numeral, b rune) (numeral, bool) {
	if s.exponent > 0 || b == 'e' {
		return n.stepExponent(s, b)
	}
	digits := int(s.whole + s.fraction)
	switch {
	case b == '-':
		ok := !s.begun && n.signs[1].some
		s.begun, s.negative = true, true
		return s, ok
	case b == '.':
		ok := !n.integer && s.whole > 0 && !s.point
		s.low, s.high = n.compared(s)
		s.point = true
		return s, ok
	case b == '+':
		return s, false
	}
	m := n.magnitude(s)
	most := mostDigits
	if n.integer {
		most = mostDigits + 1
	}
	if digits >= most || !m.some {
		return s, false
	}
	digit := byte(b)
	s.begun = true
	if s.point {
		at := int(s.fraction)
		s.low = compare(s.low, digit, m.low.fraction, at, '0')
		if m.high != nil {
			s.high = compare(s.high, digit, m.high.fraction, at, '0')
		}
		s.fraction++
		return s, true
	}
	if s.zero {
		return s, false
	}
	at := int(s.whole)
	s.low = compare(s.low, digit, m.low.whole, at, 0)
	if m.high != nil {
		s.high = compare(s.high, digit, m.high.whole, at, 0)
	}
	s.zero = at == 0 && digit == '0'
	s.whole++
	s.rest = int16((int(s.rest)*10 + int(digit-'0')) % n.multiple)
	return s, true
}

func (n *numbers) magnitude(s numeral) *magnitudes {
	if s.negative {
		return &n.signs[1]
	}
	return &n.signs[0]
}

// compare compares a text, one digit longer, with a bound. Behind its end the bound has the digit
// `beyond`, and 0 makes a longer text the greater one.
func compare(so int8, digit byte, bound string, at int, beyond byte) int8 {
	if at >= len(bound) {
		if beyond == 0 {
			return 1
		}
		bound, at = string(beyond), 0
	}
	switch {
	case so != 0:
		return so
	case digit < bound[at]:
		return -1
	case digit > bound[at]:
		return 1
	}
	return 0
}

// compared returns how the number that is written compares with the bounds.
func (n *numbers) compared(s numeral) (low, high int8) {
	m := n.magnitude(s)
	one := func(so int8, bound digitsOf) int8 {
		switch {
		case !s.point && int(s.whole) < len(bound.whole):
			return -1
		case s.point && so == 0 && int(s.fraction) < len(bound.fraction):
			return -1
		}
		return so
	}
	low = one(s.low, m.low)
	if high = -1; m.high != nil {
		high = one(s.high, *m.high)
	}
	return low, high
}

// ends reports whether a number may end here: it is complete, in the range, and a multiple.
func (n *numbers) ends(s numeral) bool {
	if s.exponent > 0 {
		return s.exponent > 2
	}
	if s.whole == 0 || s.point && s.fraction == 0 || s.rest != 0 {
		return false
	}
	m := n.magnitude(s)
	low, high := n.compared(s)
	if !s.point && low == 0 && m.low.fraction != "" {
		low = -1
	}
	if !s.point && m.high != nil && high == 0 && m.high.fraction != "" {
		high = -1
	}
	return (low > 0 || low == 0 && !m.lowStrict) && (high < 0 || high == 0 && !m.hiStrict)
}

func (n *numbers) stepExponent(s numeral, b rune) (numeral, bool) {
	switch {
	case b == 'e':
		ok := n.exponent && s.exponent == 0 && n.ends(s)
		return numeral{begun: true, exponent: 1}, ok
	case b == '+' || b == '-':
		ok := s.exponent == 1
		s.exponent = 2
		return s, ok
	case b == '.' || s.exponent == 4:
		return s, false
	}
	s.exponent = max(s.exponent+1, 3)
	return s, true
}

// numbersOf returns the automaton of the numbers that a spec accepts. Without any it returns nil,
// and sets the spec's `why`.
func (c *compiler) numbersOf(s *spec) *dfa {
	n := numbers{integer: s.integer, multiple: 1}
	if m := lcm(s.multiple); m != nil {
		at := s.multiple[len(s.multiple)-1].at
		for _, one := range s.multiple {
			if !n.integer && !one.of.IsInt() {
				panic(bad(one.at, "beside the type number it is refused unless it is an integer"))
			}
		}
		if !m.IsInt64() || m.Int64() > mostMultiple {
			panic(bad(at, "it is refused above %d", mostMultiple))
		}
		n.integer, n.multiple = true, int(m.Int64())
	}
	low, high := s.low, s.high
	n.exponent = !n.integer && low == nil && high == nil
	if n.integer {
		low, high = integerBounds(low, high)
	} else {
		low, high = rounded(low, 1), rounded(high, -1)
	}
	n.signs[0] = above(low, high, false)
	n.signs[1] = above(negated(high), negated(low), true)
	d := n.automaton(c, s.boundAt(low, high))
	if d == nil {
		at := s.boundAt(s.low, s.high)
		s.why = bad(at, "no number of the written form is in the range: integers have at most 16 digits and other numbers 15")
	}
	return d
}

// lcm returns the least common multiple of numbers, or nil for none.
func lcm(all []multiple) *big.Int {
	var of *big.Int
	for _, m := range all {
		n := m.of.Num() // an integer is a multiple of p/q in lowest terms if it is one of p
		if of == nil {
			of = new(big.Int).Set(n)
			continue
		}
		of.Div(new(big.Int).Mul(of, n), new(big.Int).GCD(nil, nil, of, n))
	}
	return of
}

// integerBounds returns the least and the greatest integer of a range.
func integerBounds(low, high *bound) (*bound, *bound) {
	one := func(b *bound, sign int64) *bound {
		edge := big.NewRat(-sign*mostInteger, 1)
		if b == nil {
			return &bound{value: edge}
		}
		v := new(big.Rat).Set(b.value)
		whole := new(big.Int).Div(v.Num(), v.Denom()) // rounds down
		if !v.IsInt() && sign > 0 || v.IsInt() && b.strict && sign > 0 {
			whole.Add(whole, big.NewInt(1))
		}
		if v.IsInt() && b.strict && sign < 0 {
			whole.Sub(whole, big.NewInt(1))
		}
		v.SetInt(whole)
		if v.Cmp(edge)*int(sign) < 0 {
			v = edge
		}
		return &bound{value: v, at: b.at}
	}
	return one(low, 1), one(high, -1)
}

// rounded returns a bound of at most 15 digits that lies inside. Readers that round see it alike.
func rounded(b *bound, sign int) *bound {
	if b == nil || b.value.Sign() == 0 {
		return b
	}
	f := new(big.Float).SetPrec(2048).SetRat(b.value)
	v, _ := new(big.Rat).SetString(f.Text('e', mostDigits-1))
	if v.Cmp(b.value)*sign < 0 { // one step inside
		e := f.Text('e', mostDigits-1)
		exponent := e[strings.IndexByte(e, 'e'):]
		step, _ := new(big.Rat).SetString("1" + exponent)
		step.Quo(step, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(mostDigits-1), nil)))
		if sign < 0 {
			step.Neg(step)
		}
		v.Add(v, step)
	}
	return &bound{v, b.strict, b.at}
}

func negated(b *bound) *bound {
	if b == nil {
		return nil
	}
	return &bound{new(big.Rat).Neg(b.value), b.strict, b.at}
}

// above returns the part of a range at and above 0, or strictly above.
func above(low, high *bound, strict bool) magnitudes {
	zero := new(big.Rat)
	if low == nil || low.value.Cmp(zero) < 0 || low.value.Sign() == 0 && strict {
		low = &bound{value: zero, strict: strict}
	}
	m := magnitudes{some: true, low: decimal(low.value), lowStrict: low.strict}
	if high != nil {
		d := decimal(high.value)
		m.high, m.hiStrict = &d, high.strict
		m.some = high.value.Sign() > 0 || high.value.Sign() == 0 && !strict
	}
	return m
}
