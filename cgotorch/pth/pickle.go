package pth

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Object stands for a Python object of a class that this package does not build.
type Object struct {
	Class string // such as "argparse.Namespace"
	args  any
	state any
	items any // a *dict or *list: those of a class that is like a dict or a list
}

// A dict is a Python dict. Its keys keep their order.
type dict struct {
	keys   []any
	values []any
}

// get returns the value of a key that is a text.
func (d *dict) get(name string) any {
	for i, k := range d.keys {
		if k == name {
			return d.values[i]
		}
	}
	return nil
}

// A list is a Python list or tuple.
type list struct{ items []any }

// A global is the name of a Python class or function.
type global string

// mark is where a group of values begins on the stack.
type mark struct{}

// An unpickler runs the instructions of a pickle. It has no instruction that calls Python code.
type unpickler struct {
	in    []byte
	at    int
	stack []any
	memo  map[int]any
	// storage returns the storage for the arguments of a persistent id.
	storage func(id []any) (any, error)
	steps   int
}

// errPickle is the panic of an instruction that cannot be run.
type errPickle struct{ error }

func (u *unpickler) fail(format string, args ...any) {
	panic(errPickle{fmt.Errorf("byte %d of the pickle: %w", u.at, fmt.Errorf(format, args...))})
}

// unpickle returns the object of the pickle at the beginning of `in`, and the number of bytes of
// the pickle.
func unpickle(in []byte, storage func(id []any) (any, error)) (value any, length int, err error) {
	u := &unpickler{in: in, memo: map[int]any{}, storage: storage}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case errPickle:
			err = r.error
		default:
			panic(r)
		}
	}()
	for {
		if done := u.step(); done {
			return u.pop(), u.at, nil
		}
	}
}

func (u *unpickler) bytes(n int) []byte {
	if n < 0 || n > len(u.in)-u.at {
		u.fail("it ends early")
	}
	u.at += n
	return u.in[u.at-n : u.at]
}

func (u *unpickler) uint(n int) int {
	var wide [8]byte
	copy(wide[:], u.bytes(n))
	v := binary.LittleEndian.Uint64(wide[:])
	if v > math.MaxInt32 && n > 4 {
		u.fail("a length of %d", v)
	}
	return int(v)
}

func (u *unpickler) line() string {
	end := bytes.IndexByte(u.in[u.at:], '\n')
	if end < 0 {
		u.fail("it ends early")
	}
	text := string(u.bytes(end))
	u.at++
	return text
}

func (u *unpickler) push(v any) { u.stack = append(u.stack, v) }

func (u *unpickler) pop() any {
	v := u.top()
	u.stack = u.stack[:len(u.stack)-1]
	if _, ok := v.(mark); ok {
		u.fail("a mark in place of a value")
	}
	return v
}

func (u *unpickler) top() any {
	if len(u.stack) == 0 {
		u.fail("its stack is empty")
	}
	return u.stack[len(u.stack)-1]
}

// group pops the values behind the last mark.
func (u *unpickler) group() []any {
	for i := len(u.stack) - 1; i >= 0; i-- {
		if _, ok := u.stack[i].(mark); ok {
			values := append([]any(nil), u.stack[i+1:]...)
			u.stack = u.stack[:i]
			return values
		}
	}
	u.fail("its stack has no mark")
	return nil
}

func (u *unpickler) recall(i int) any {
	v, ok := u.memo[i]
	if !ok {
		u.fail("it uses value %d, which it has not stored", i)
	}
	return v
}

// long reads an integer in two's complement.
func (u *unpickler) long(n int) any {
	b := u.bytes(n)
	if n <= 8 {
		var v int64
		for i := n - 1; i >= 0; i-- {
			v = v<<8 | int64(b[i])
		}
		if n > 0 && n < 8 && b[n-1] >= 0x80 {
			v -= 1 << (8 * n)
		}
		return v
	}
	return &Object{Class: "int of " + strconv.Itoa(n) + " bytes"}
}

// mostSteps bounds the work of a pickle. Each instruction takes at least one byte, but a few that
// repeat stored values could otherwise build without end.
const mostSteps = 1 << 23

// spend counts n steps.
func (u *unpickler) spend(n int) {
	if u.steps += n; u.steps > mostSteps {
		u.fail("it has more than %d instructions", mostSteps)
	}
}

// step runs one instruction, and reports whether it was the last.
func (u *unpickler) step() (done bool) {
	u.spend(1)
	switch op := u.bytes(1)[0]; op {
	case 0x80: // PROTO
		if v := u.bytes(1)[0]; v > 5 {
			u.fail("it is of protocol %d", v)
		}
	case 0x95: // FRAME
		u.bytes(8)
	case '.':
		return true
	case '(':
		u.push(mark{})
	case '0':
		if _, ok := u.top().(mark); ok {
			u.stack = u.stack[:len(u.stack)-1]
		} else {
			u.pop()
		}
	case '1':
		u.group()
	case '2':
		u.push(u.top())
	case 'N':
		u.push(nil)
	case 0x88:
		u.push(true)
	case 0x89:
		u.push(false)
	case 'J':
		u.push(int64(int32(binary.LittleEndian.Uint32(u.bytes(4)))))
	case 'K':
		u.push(int64(u.uint(1)))
	case 'M':
		u.push(int64(u.uint(2)))
	case 0x8a:
		u.push(u.long(u.uint(1)))
	case 0x8b:
		u.push(u.long(u.uint(4)))
	case 'I', 'L':
		u.push(u.textInteger(u.line()))
	case 'F':
		v, err := strconv.ParseFloat(u.line(), 64)
		if err != nil {
			u.fail("%v", err)
		}
		u.push(v)
	case 'G':
		u.push(math.Float64frombits(binary.BigEndian.Uint64(u.bytes(8))))
	case 'X', 'T', 'B':
		u.push(string(u.bytes(u.uint(4))))
	case 0x8c, 'U', 'C':
		u.push(string(u.bytes(u.uint(1))))
	case 0x8d, 0x8e, 0x96:
		u.push(string(u.bytes(u.uint(8))))
	case 'V':
		u.push(u.line())
	case 'S':
		text := u.line()
		if len(text) < 2 || text[0] != text[len(text)-1] {
			u.fail("a text without quotes")
		}
		u.push(text[1 : len(text)-1])
	case ')', ']', 0x8f:
		u.push(&list{})
	case '}':
		u.push(&dict{})
	case 't', 'l', 0x91:
		u.push(&list{u.group()})
	case 0x85, 0x86, 0x87:
		items := make([]any, op-0x84)
		for i := len(items) - 1; i >= 0; i-- {
			items[i] = u.pop()
		}
		u.push(&list{items})
	case 'd':
		d := &dict{}
		u.fill(d, u.group())
		u.push(d)
	case 'a':
		v := u.pop()
		u.extend(v)
	case 'e', 0x90:
		u.extend(u.group()...)
	case 's':
		value := u.pop()
		u.fillTop(u.pop(), value)
	case 'u':
		u.fillTop(u.group()...)
	case 'c':
		module := u.line()
		u.push(u.global(module, u.line()))
	case 0x93:
		name, ok := u.pop().(string)
		module, ok2 := u.pop().(string)
		if !ok || !ok2 {
			u.fail("a class without a name")
		}
		u.push(u.global(module, name))
	case 'Q':
		id, ok := u.pop().(*list)
		if !ok {
			u.fail("a persistent id that is no tuple")
		}
		s, err := u.storage(id.items)
		if err != nil {
			u.fail("%w", err)
		}
		u.push(s)
	case 'R', 0x81:
		args := u.pop()
		u.push(u.call(u.pop(), args))
	case 0x92:
		u.pop()
		args := u.pop()
		u.push(u.call(u.pop(), args))
	case 'b':
		u.build(u.pop())
	case 'q':
		u.memo[u.uint(1)] = u.top()
	case 'r':
		u.memo[u.uint(4)] = u.top()
	case 'p':
		u.memo[u.index(u.line())] = u.top()
	case 0x94:
		u.memo[len(u.memo)] = u.top()
	case 'h':
		u.push(u.recall(u.uint(1)))
	case 'j':
		u.push(u.recall(u.uint(4)))
	case 'g':
		u.push(u.recall(u.index(u.line())))
	case 'i': // INST and OBJ, of Python 2
		module := u.line()
		of := u.global(module, u.line())
		u.push(u.call(of, &list{u.group()}))
	case 'o':
		values := u.group()
		if len(values) == 0 {
			u.fail("a class without a name")
		}
		u.push(u.call(values[0], &list{values[1:]}))
	default:
		u.fail("an unknown instruction %#x", op)
	}
	return false
}

// global returns the name of a class. The pickle can join stored texts without end, so the length
// of a name is limited.
func (u *unpickler) global(module, name string) global {
	if len(module)+len(name) > 1000 {
		u.fail("a class whose name has %d bytes", len(module)+len(name))
	}
	return global(module + "." + name)
}

func (u *unpickler) textInteger(text string) any {
	switch text {
	case "00":
		return false
	case "01":
		return true
	}
	if n := len(text); n > 0 && text[n-1] == 'L' {
		text = text[:n-1]
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err == nil {
		return v
	}
	if _, ok := new(big.Int).SetString(text[:min(len(text), 100)], 10); !ok {
		u.fail("%q is no integer", text[:min(len(text), 20)])
	}
	return &Object{Class: "int of many digits"}
}

func (u *unpickler) index(text string) int {
	v, err := strconv.Atoi(text)
	if err != nil || v < 0 {
		u.fail("%q is no index", text)
	}
	return v
}

func (u *unpickler) extend(values ...any) {
	switch l := u.top().(type) {
	case *list:
		l.items = append(l.items, values...)
	case *Object:
		items, ok := l.items.(*list)
		if !ok {
			items = &list{}
			l.items = items
		}
		items.items = append(items.items, values...)
	default:
		u.fail("it adds to a %T", l)
	}
}

func (u *unpickler) fill(d *dict, pairs []any) {
	if len(pairs)%2 != 0 {
		u.fail("a key without a value")
	}
	for i := 0; i < len(pairs); i += 2 {
		d.keys, d.values = append(d.keys, pairs[i]), append(d.values, pairs[i+1])
	}
}

func (u *unpickler) fillTop(pairs ...any) {
	switch d := u.top().(type) {
	case *dict:
		u.fill(d, pairs)
	case *Object:
		items, ok := d.items.(*dict)
		if !ok {
			items = &dict{}
			d.items = items
		}
		u.fill(items, pairs)
	default:
		u.fail("it sets a value of a %T", d)
	}
}

// call builds what a class or function of Python would return. A class or function
// that is not known gives an Object.
func (u *unpickler) call(of, args any) any {
	name, ok := of.(global)
	values, ok2 := args.(*list)
	if !ok || !ok2 {
		if o, isObject := of.(*Object); isObject {
			return &Object{Class: o.Class}
		}
		u.fail("it calls a %T", of)
	}
	if attacks(string(name)) {
		u.fail("it calls %s, as a file does that attacks its reader: nothing was run; do not load it in Python", name)
	}
	switch name {
	case "collections.OrderedDict", "builtins.dict":
		d := &dict{}
		if len(values.items) == 1 {
			pairs, ok := values.items[0].(*list)
			if !ok {
				return &Object{Class: string(name)}
			}
			u.spend(len(pairs.items))
			for _, p := range pairs.items {
				pair, ok := p.(*list)
				if !ok || len(pair.items) != 2 {
					u.fail("a dict of pairs that are no pairs")
				}
				u.fill(d, pair.items)
			}
		}
		return d
	case "torch.Size", "builtins.list", "builtins.tuple", "builtins.set":
		if len(values.items) == 1 {
			if l, ok := values.items[0].(*list); ok {
				return l
			}
		}
		return &list{}
	}
	t, ok, err := build(name, values.items)
	if err != nil {
		u.fail("%w", err)
	}
	if ok {
		return t
	}
	return &Object{Class: string(name), args: values}
}

// attackers are modules and functions of Python that no file of weights calls.
var attackers = []string{
	"os", "posix", "nt", "subprocess", "pty", "shutil", "socket", "runpy", "webbrowser", "importlib", "ctypes",
	"builtins.eval", "builtins.exec", "builtins.compile", "builtins.__import__", "builtins.open", "builtins.execfile", "builtins.input",
}

// attacks reports whether a class or function can run commands or other code.
func attacks(name string) bool {
	if rest, ok := strings.CutPrefix(name, "__builtin__."); ok {
		name = "builtins." + rest
	}
	return slices.ContainsFunc(attackers, func(a string) bool { return name == a || strings.HasPrefix(name, a+".") })
}

func (u *unpickler) build(state any) {
	switch o := u.top().(type) {
	case *Object:
		o.state = state
	case *dict, *list, *tensor: // attributes of these are not needed
	default:
		u.fail("it builds a %T", o)
	}
}
