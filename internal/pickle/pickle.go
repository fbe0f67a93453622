// Package pickle reads pickles of Python, protocols 0 to 5. It runs no code of Python.
package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// Object stands for a Python object of a class that nobody builds.
type Object struct {
	Class string // such as "argparse.Namespace"
	Args  []any  // the arguments of the call that made it
	State any    // what Python's __setstate__ would get
	Items any    // a *Dict or *List: those of a class that is like a dict or a list
}

// Dict is a Python dict. Its keys keep their order.
type Dict struct {
	Keys   []any
	Values []any
}

// Get returns the value of a key that is a text.
func (d *Dict) Get(name string) any {
	for i, k := range d.Keys {
		if k == name {
			return d.Values[i]
		}
	}
	return nil
}

// List is a Python list, tuple or set.
type List struct{ Items []any }

// Global is the name of a Python class or function, such as "torch.Size".
type Global string

// Builder makes the values that are not Python's own. A nil function makes none.
type Builder struct {
	// Storage returns the value of a persistent id.
	Storage func(id []any) (any, error)
	// Call returns what a class or function makes of its arguments. ok is false if it is not known,
	// and its result becomes an [Object].
	Call func(of Global, args []any) (value any, ok bool, err error)
}

// mark is where a group of values begins on the stack.
type mark struct{}

// unpickler runs the instructions of a pickle. It has no instruction that calls Python code.
type unpickler struct {
	in    []byte
	at    int
	stack []any
	memo  map[int]any
	build Builder
	steps int
	bytes int // of the strings that were encoded
}

// errPickle is the panic of an instruction that cannot be run.
type errPickle struct{ error }

func (u *unpickler) fail(format string, args ...any) {
	panic(errPickle{fmt.Errorf("byte %d of the pickle: %w", u.at, fmt.Errorf(format, args...))})
}

// Read returns the value of the pickle at the beginning of `in`, and the number of bytes of the
// pickle. A value is an int64, a float64, a bool, nil, a [*Dict], a [*List], an [*Object], a
// [Global], a string, or what `build` returns. Texts and bytes are both strings.
//
// Source: https://github.com/python/cpython/blob/3.13/Lib/pickletools.py
func Read(in []byte, build Builder) (value any, length int, err error) {
	u := &unpickler{in: in, memo: map[int]any{}, build: build}
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

func (u *unpickler) take(n int) []byte {
	if n < 0 || n > len(u.in)-u.at {
		u.fail("it ends early")
	}
	u.at += n
	return u.in[u.at-n : u.at]
}

func (u *unpickler) uint(n int) int {
	var wide [8]byte
	copy(wide[:], u.take(n))
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
	text := string(u.take(end))
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

// mostSteps bounds the work of a pickle. Each instruction takes at least one byte, but a few that
// repeat stored values could otherwise build without end.
const mostSteps = 1 << 23

// spend counts n steps.
func (u *unpickler) spend(n int) {
	if u.steps += n; u.steps > mostSteps {
		u.fail("it has more than %d instructions", mostSteps)
	}
}
