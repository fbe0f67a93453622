// Package panics carries a panic out of a goroutine of the library to the goroutine of the program.
// The program has given a function, such as a Map, and the panic is the program's. It must not end
// the process where no caller can recover it.
package panics

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Panic is a panic of a function of the program, as an error.
type Panic struct {
	Value any    // the value of the function's panic
	Where string // what called the function, such as "Options.Map of a data.Loader"
	Stack []byte // the stack of that panic
}

func (p *Panic) Error() string {
	return fmt.Sprintf("%v\n\nin %s, at\n%s", p.Value, p.Where, p.Stack)
}

// Unwrap returns the value if it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Hidden is a panic as an error for clients. Its text has neither the panic's value nor the stack,
// and its Unwrap has both.
type Hidden struct {
	Text  string
	Cause error
}

func (h *Hidden) Error() string { return h.Text }

func (h *Hidden) Unwrap() error { return h.Cause }

// Run calls fn, and then `done` with fn's error. `done` is called on the same goroutine, and
// exactly once. If fn panics, its error is a [*Panic]. If fn calls runtime.Goexit, as t.Fatal does,
// `done` is called with an error and the goroutine ends. `where` says what calls fn.
func Run(where string, fn func() error, done func(error)) {
	var err error
	returned := false
	defer func() {
		v := recover()
		switch {
		case v != nil:
			p, carried := v.(*Panic)
			if !carried {
				p = &Panic{Value: v, Where: where, Stack: debug.Stack()}
			}
			err = p
		case !returned:
			err = fmt.Errorf("a function of the program, called by %s, has called runtime.Goexit (as t.Fatal does) on a goroutine that is not its own; return an error", where)
		}
		done(err)
	}()
	err = fn()
	returned = true
}

// Raise panics with the [*Panic] that err is or wraps. If there is none, it does nothing.
func Raise(err error) {
	var p *Panic
	if errors.As(err, &p) {
		panic(p)
	}
}
