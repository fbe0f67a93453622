package cgotorch_test

import (
	"errors"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"io"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestError_Text(t *testing.T) {
	for _, c := range []struct {
		err  Error
		want string
	}{
		{Error{Op: "aten::add.Tensor", Message: "no"}, "cgotorch: aten::add.Tensor: no"},
		{Error{Op: "op", Shapes: "float32[2]", Caller: "main.go:7", Message: "no"}, "cgotorch: op(float32[2]) at main.go:7: no"},
		{Error{Op: "op", Err: io.EOF}, "cgotorch: op: EOF"},
		{Error{Op: "op", Message: "no", Err: io.EOF}, "cgotorch: op: no: EOF"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestError_Kinds(t *testing.T) {
	for code, kind := range Kinds {
		err := fmt.Errorf("wrapped: %w", &Error{Kind: kind, Err: io.ErrNoProgress})
		for other, sentinel := range Kinds {
			if sentinel != nil && errors.Is(err, sentinel) != (code == other) {
				t.Errorf("code %d: errors.Is(%v) is %v", code, sentinel, code != other)
			}
		}
		torchtest.WantError(t, err, io.ErrNoProgress)
		if kind != nil && !errors.Is(err, kind) {
			t.Errorf("code %d is not %v", code, kind)
		}
	}
	if len(Kinds) != ct.GroupFailed+1 {
		t.Errorf("%d kinds for the core's codes", len(Kinds))
	}
}

// Caller in an error is the line of the program, whichever function of this library has failed.
func TestError_Caller(t *testing.T) {
	torchtest.CheckLeaks(t)
	var where string
	for name, fail := range map[string]func(x *Exec){
		"generated": func(x *Exec) { where = here(0); x.MM(nil, nil) },
		"Call":      func(x *Exec) { where = here(0); x.Call("aten::mm") },
		"generic":   func(x *Exec) { where = here(0); FromSlice(x, []float32{1}, 2) },
		"method":    func(x *Exec) { where = here(0); x.Item(nil) },
		"in Tidy":   func(x *Exec) { x.Tidy(func() *Tensor { where = here(0); return x.MM(nil, nil) }) },
		"derived":   func(x *Exec) { where = here(0); x.NoGrad().Autocast(BFloat16).MM(nil, nil) },
		"recursive": func(x *Exec) { deep(100, func() { where = here(0); x.MM(nil, nil) }) },
	} {
		var e *Error
		if err := torchtest.TryDo(t, CPU, fail); !errors.As(err, &e) || e.Caller != where {
			t.Errorf("%s: the caller of %v is not %s", name, err, where)
		}
	}
	_, err := NewHostSlab(CPU, 0)
	if want := here(-1); !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not name %s", err, want)
	}
}

func deep(n int, fn func()) {
	if n == 0 {
		fn()
		return
	}
	deep(n-1, fn)
}
