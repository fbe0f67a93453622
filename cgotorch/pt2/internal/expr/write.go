package expr

import (
	"fmt"
	"strings"
)

// pythonText are the operators of pythonLevels by their functions.
var pythonText = func() map[string]string {
	text := map[string]string{}
	for _, level := range pythonLevels {
		for sign, of := range level {
			text[of] = sign
		}
	}
	return text
}()

// Python returns an expression as Python has it.
func (e *Expr) Python() string {
	var b strings.Builder
	e.write(&b)
	return b.String()
}

func (e *Expr) write(b *strings.Builder) {
	arg := func(i int) {
		a := e.Args[i]
		inside := len(a.Args) > 1 && (pythonText[a.Of] != "" || a.Of == "if")
		if inside {
			b.WriteByte('(')
		}
		a.write(b)
		if inside {
			b.WriteByte(')')
		}
	}
	list := func(between string) {
		for i := range e.Args {
			if i > 0 {
				b.WriteString(between)
			}
			arg(i)
		}
	}
	switch {
	case e.Of == "symbol":
		b.WriteString(e.Symbol)
	case e.Of == "constant":
		text := fmt.Sprint(e.Value)
		if v, ok := e.Value.(bool); ok {
			text = map[bool]string{true: "True", false: "False"}[v]
		}
		b.WriteString(text)
	case e.Of == "if":
		arg(1)
		b.WriteString(" if ")
		arg(0)
		b.WriteString(" else ")
		arg(2)
	case e.Of == "_operator.not_":
		b.WriteString("not ")
		arg(0)
	case len(e.Args) == 1 && strings.HasPrefix(e.Of, "_operator."):
		b.WriteString(map[string]string{"_operator.neg": "-", "_operator.pos": "", "_operator.invert": "~"}[e.Of])
		arg(0)
	case e.Of == "_operator.pow":
		list(" ** ")
	case pythonText[e.Of] != "":
		list(" " + pythonText[e.Of] + " ")
	default:
		b.WriteString(e.Of[strings.LastIndexByte(e.Of, '.')+1:] + "(")
		list(", ")
		b.WriteByte(')')
	}
}
