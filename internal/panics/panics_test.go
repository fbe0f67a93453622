package panics

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for name, test := range map[string]struct {
		fn    func() error
		want  string // at the beginning of the error, "" for none
		panic bool
	}{
		"return": {func() error { return nil }, "", false},
		"error":  {func() error { return io.EOF }, "EOF", false},
		"panic":  {func() error { panic("mine") }, "mine\n\nin Map, at\n", true},
		"Goexit": {func() error { runtime.Goexit(); return nil }, "a function of the program, called by Map, has called runtime.Goexit", false},
		"twice":  {func() error { panic(&Panic{Value: "inner", Where: "Sample"}) }, "inner\n\nin Sample, at\n", true},
	} {
		calls, ended := 0, make(chan error)
		go Run("Map", test.fn, func(err error) { calls++; ended <- err })
		err := <-ended
		if text := fmt.Sprint(err); calls != 1 || test.want == "" && err != nil || !strings.HasPrefix(text, test.want) && test.want != "" {
			t.Errorf("%s: %d calls, error %v, want %q", name, calls, err, test.want)
		}
		if name == "panic" && !strings.Contains(err.Error(), "panics_test.go:") {
			t.Errorf("%s: no stack of the function: %v", name, err)
		}
		func() {
			defer func() {
				if v := recover(); (v != nil) != test.panic {
					t.Errorf("%s: Raise panics with %v, want a panic: %v", name, v, test.panic)
				}
			}()
			Raise(fmt.Errorf("wrapped: %w", errors.Join(err, io.EOF)))
		}()
	}
	if err := (&Panic{Value: io.EOF}); !errors.Is(err, io.EOF) {
		t.Error("Unwrap does not give the value")
	}
}
