package expr

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ParsePython reads an expression of Python, as a file has it for a guard, such as
//
//	(L['x'].size()[0] % 2) == 0
//
// A value that begins with a name, such as L['x'].size()[0], becomes a symbol with that text.
func ParsePython(text string) (*Expr, error) {
	if len(text) > mostPythonText {
		return nil, fmt.Errorf("a text of %d bytes, more than %d", len(text), mostPythonText)
	}
	p := &pythonParser{rest: text}
	p.next()
	e, err := p.choice(0)
	if err == nil && p.token != "" {
		err = p.unexpected()
	}
	return e, err
}

const mostPythonText = 1 << 16 // bytes

// pythonParser reads one token ahead.
type pythonParser struct {
	token string // "" is the end
	rest  string
}

// pythonSigns are the tokens that are no names or numbers. Longer ones come first.
var pythonSigns = []string{"**", "//", "<<", ">>", "<=", ">=", "==", "!=", "(", ")", "[", "]", ",", ".", "+", "-", "*", "/", "%", "<", ">", "&", "|", "^", "~"}

func isNamePart(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// next reads the next token. A character that begins no token becomes one.
func (p *pythonParser) next() {
	p.rest = strings.TrimLeft(p.rest, " \t\r\n")
	n := min(1, len(p.rest))
	if n > 0 {
		switch c := p.rest[0]; {
		case c >= '0' && c <= '9' || c == '.' && len(p.rest) > 1 && p.rest[1] >= '0' && p.rest[1] <= '9':
			for n < len(p.rest) && (isNamePart(p.rest[n]) || p.rest[n] == '.' || strings.IndexByte("+-", p.rest[n]) >= 0 && strings.IndexByte("eE", p.rest[n-1]) >= 0) {
				n++
			}
		case isNamePart(c):
			for n < len(p.rest) && isNamePart(p.rest[n]) {
				n++
			}
		case c == '\'' || c == '"':
			for n < len(p.rest) && p.rest[n] != c {
				n += 1 + map[bool]int{true: 1}[p.rest[n] == '\\']
			}
			n = min(n+1, len(p.rest))
		default:
			for _, sign := range pythonSigns {
				if strings.HasPrefix(p.rest, sign) {
					n = len(sign)
					break
				}
			}
		}
	}
	p.token, p.rest = p.rest[:n], p.rest[n:]
}

func (p *pythonParser) take(token string) bool {
	if p.token != token {
		return false
	}
	p.next()
	return true
}

func (p *pythonParser) unexpected() error {
	if p.token == "" {
		return errors.New("it ends too early")
	}
	return fmt.Errorf("%.40q is not expected", p.token)
}

// choice reads `a if condition else b`, or what binds more tightly.
func (p *pythonParser) choice(depth int) (*Expr, error) {
	if depth > mostExprDepth {
		return nil, fmt.Errorf("more than %d expressions inside each other", mostExprDepth)
	}
	then, err := p.operators(0, depth)
	if err != nil || !p.take("if") {
		return then, err
	}
	condition, err := p.operators(0, depth)
	if err != nil {
		return nil, err
	}
	if !p.take("else") {
		return nil, p.unexpected()
	}
	otherwise, err := p.choice(depth + 1)
	return &Expr{Of: "if", Args: []*Expr{condition, then, otherwise}}, err
}

// pythonLevels are the operators of two values, from those that bind loosely to those that bind
// tightly. Unary ones stand between, as in Python: `not` behind level 1, signs behind the last.
var pythonLevels = []map[string]string{
	{"or": "or"},
	{"and": "and"},
	{"==": "_operator.eq", "!=": "_operator.ne", "<": "_operator.lt", "<=": "_operator.le", ">": "_operator.gt", ">=": "_operator.ge"},
	{"|": "_operator.or_"},
	{"^": "_operator.xor"},
	{"&": "_operator.and_"},
	{"<<": "_operator.lshift", ">>": "_operator.rshift"},
	{"+": "_operator.add", "-": "_operator.sub"},
	{"*": "_operator.mul", "/": "_operator.truediv", "//": "_operator.floordiv", "%": "_operator.mod"},
}

const pythonComparisons = 2 // the level of comparisons

// operators reads operators of a level and of tighter ones.
func (p *pythonParser) operators(level, depth int) (*Expr, error) {
	if level == len(pythonLevels) {
		return p.signed(depth)
	}
	if level == pythonComparisons && p.take("not") {
		if depth > mostExprDepth {
			return nil, fmt.Errorf("more than %d expressions inside each other", mostExprDepth)
		}
		e, err := p.operators(level, depth+1)
		return &Expr{Of: "_operator.not_", Args: []*Expr{e}}, err
	}
	e, err := p.operators(level+1, depth)
	var chain []*Expr // of comparisons: a < b < c is a < b and b < c
	for err == nil && pythonLevels[level][p.token] != "" {
		of := pythonLevels[level][p.token]
		p.next()
		var right *Expr
		right, err = p.operators(level+1, depth)
		if level == pythonComparisons {
			left := e
			if n := len(chain); n > 0 {
				if left = chain[n-1].Args[1]; depth > 0 && len(left.Args) > 0 { // copies of copies have no bound
					return nil, errors.New("a formula between two comparisons in brackets")
				}
				left = left.clone()
			}
			chain = append(chain, &Expr{Of: of, Args: []*Expr{left, right}})
			continue
		}
		e = &Expr{Of: of, Args: []*Expr{e, right}}
	}
	switch len(chain) {
	case 0:
		return e, err
	case 1:
		return chain[0], err
	}
	return &Expr{Of: "and", Args: chain}, err
}

// signed reads a value with its signs and its power.
func (p *pythonParser) signed(depth int) (*Expr, error) {
	if depth > mostExprDepth {
		return nil, fmt.Errorf("more than %d expressions inside each other", mostExprDepth)
	}
	if of := map[string]string{"-": "_operator.neg", "+": "_operator.pos", "~": "_operator.invert"}[p.token]; of != "" {
		p.next()
		e, err := p.signed(depth + 1)
		return &Expr{Of: of, Args: []*Expr{e}}, err
	}
	e, err := p.value(depth)
	if err != nil || !p.take("**") {
		return e, err
	}
	exponent, err := p.signed(depth + 1)
	return &Expr{Of: "_operator.pow", Args: []*Expr{e, exponent}}, err
}

// pythonNames are the functions that guards call, by their names in guards.
var pythonNames = map[string]string{
	"abs": "builtins.abs", "round": "builtins.round", "max": "torch.sym_max", "min": "torch.sym_min", "int": "torch.sym_int",
	"float": "torch.sym_float",
}

// value reads a number, a truth value, a call, a symbol, or an expression in brackets.
func (p *pythonParser) value(depth int) (*Expr, error) {
	switch {
	case p.token == "":
		return nil, p.unexpected()
	case p.take("("):
		e, err := p.choice(depth + 1)
		if err == nil && !p.take(")") {
			err = p.unexpected()
		}
		return e, err
	case p.token == "True" || p.token == "False":
		v := p.token == "True"
		p.next()
		return &Expr{Of: "constant", Value: v}, nil
	case strings.IndexByte("0123456789.", p.token[0]) >= 0:
		return p.number()
	case !isNamePart(p.token[0]):
		return nil, p.unexpected()
	}
	name := []byte(p.token)
	p.next()
	for p.token == "." || p.token == "[" || p.token == "(" {
		if of := string(name[:min(len(name), 100)]); p.token == "(" && (pythonNames[of] != "" || Functions[of] != nil) {
			return p.call(of, depth)
		}
		part, err := p.trailer()
		if err != nil {
			return nil, err
		}
		name = append(name, part...)
	}
	if string(name) == "math.inf" {
		return &Expr{Of: "constant", Value: math.Inf(1)}, nil
	}
	return &Expr{Of: "symbol", Symbol: string(name)}, nil
}

// trailer reads what follows a name: .name, [key] or ().
func (p *pythonParser) trailer() (string, error) {
	switch {
	case p.take("."):
		name := p.token
		if name == "" || !isNamePart(name[0]) {
			return "", p.unexpected()
		}
		p.next()
		return "." + name, nil
	case p.take("["):
		key := p.token
		if key == "" || !isNamePart(key[0]) && key[0] != '\'' && key[0] != '"' {
			return "", p.unexpected()
		}
		p.next()
		if !p.take("]") {
			return "", p.unexpected()
		}
		return "[" + key + "]", nil
	}
	p.next()
	if !p.take(")") {
		return "", p.unexpected()
	}
	return "()", nil
}

func (p *pythonParser) number() (*Expr, error) {
	text := p.token
	p.next()
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return &Expr{Of: "constant", Value: n}, nil
	}
	if !strings.ContainsAny(text, ".eE") || strings.ContainsAny(text, "xX_") {
		return nil, fmt.Errorf("the number %.40s is not known", text)
	}
	f, err := strconv.ParseFloat(text, 64)
	return &Expr{Of: "constant", Value: f}, err
}

// call reads the arguments of a call.
func (p *pythonParser) call(name string, depth int) (*Expr, error) {
	e := &Expr{Of: name}
	if of := pythonNames[name]; of != "" {
		e.Of = of
	}
	for p.next(); p.token != ")"; {
		arg, err := p.choice(depth + 1)
		if err != nil {
			return nil, err
		}
		e.Args = append(e.Args, arg)
		if !p.take(",") && p.token != ")" {
			return nil, p.unexpected()
		}
	}
	p.next()
	if len(e.Args) == 0 {
		return nil, fmt.Errorf("%.40s has no argument", name)
	}
	return e, nil
}

func (e *Expr) clone() *Expr {
	c := *e
	c.Args = make([]*Expr, len(e.Args))
	for i, arg := range e.Args {
		c.Args[i] = arg.clone()
	}
	return &c
}

// Symbols appends the texts of the symbols, each once.
func (e *Expr) Symbols(list []string) []string {
	if e.Of == "symbol" && !slices.Contains(list, e.Symbol) {
		list = append(list, e.Symbol)
	}
	for _, arg := range e.Args {
		list = arg.Symbols(list)
	}
	return list
}
