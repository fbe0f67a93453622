package gosource

import (
	"strconv"
	"strings"
	"unicode"
)

// goReserved are the names that source must not give to a value: keywords, predeclared names that
// source uses, packages that source may import, its helpers, the receiver and the Exec.
const goReserved = " break case chan const continue default defer else fallthrough for func go goto if import interface map package range " +
	"return select struct switch type var any append bool cap clear close complex copy error false float64 imag int int64 iota len make max " +
	"min new nil panic print println real recover string true uint8 _ init main cgotorch embed errors fft linalg math nn safetensors special " +
	"strings strconv fmt constants m x floorDiv floorMod power product sum difference roundTo require checkSizes parameter free "

func reserved(name string) bool { return strings.Contains(goReserved, " "+name+" ") }

// identifier returns a Go name made of the letters and digits of a name of Python.
func identifier(name string, exported bool) string {
	var b strings.Builder
	upper := exported
	for _, r := range name {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r) || r == unicode.ReplacementChar:
			upper = b.Len() > 0 || exported
			continue
		case b.Len() == 0 && unicode.IsDigit(r):
			b.WriteRune(map[bool]rune{true: 'M', false: 'v'}[exported])
		case b.Len() == 0 && exported && !unicode.IsUpper(unicode.ToUpper(r)):
			b.WriteByte('M')
		case b.Len() == 0 && !exported:
			r = unicode.ToLower(r)
		}
		if upper {
			r = unicode.ToUpper(r)
		}
		upper = false
		b.WriteRune(r)
	}
	if b.Len() == 0 {
		return map[bool]string{true: "M", false: "v"}[exported]
	}
	return b.String()
}

// unique returns a name that is not taken, and takes it. Names that are taken get a number.
func unique(name string, taken map[string]bool) string {
	free := name
	for i := 2; taken[free] || reserved(free); i++ {
		free = name + strconv.Itoa(i)
	}
	taken[free] = true
	return free
}

// nodeBase returns the name of a node without the number that PyTorch has put behind it.
func nodeBase(name string) string {
	base := strings.TrimRight(name, "_0123456789")
	if rest := name[len(base):]; rest != "" && rest[0] != '_' { // a digit of the name, as in conv2d_1
		digits := strings.TrimLeft(rest, "0123456789")
		base += rest[:len(rest)-len(digits)]
	}
	if base == "" {
		return "v"
	}
	return base
}

// commentText returns text for one line of a comment.
func commentText(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if letters := []rune(text); len(letters) > most {
		text = string(letters[:most-1]) + "…"
	}
	return text
}
