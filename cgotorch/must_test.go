package cgotorch_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

var ways = map[string]func(err error){
	"Must":  func(err error) { Must(0, err) },
	"Check": func(err error) { Check(err) },
}

func TestMust_InDo_EndsDo(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, must := range ways {
		s := torchtest.NewStream(t, CPU)
		err := s.Do(func(x *Exec) error {
			x.Ones(Float32, 2)
			must(nil)
			must(io.ErrUnexpectedEOF)
			return errors.New("the Do went on")
		})
		wantError(t, err, io.ErrUnexpectedEOF, "cgotorch: "+name+" at ", "must_test.go:", ": unexpected EOF")
		if err := s.Do(func(x *Exec) error { x.Ones(Float32, 1); return nil }); err != nil {
			t.Errorf("the next Do returns %v", err)
		}
	}
}

func TestMust_InDo_KeepsKind(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	err := s.Do(func(x *Exec) error { return Must(DoValue(s, func(x *Exec) (error, error) { return nil, nil })) })
	wantError(t, err, ErrMisuse, "a Do inside a Do")
	closed := torchtest.NewStream(t, CPU)
	closed.Close()
	err = s.Do(func(x *Exec) error { Check(closed.Synchronize()); return nil })
	wantError(t, err, ErrClosed, "Check at ", "the stream is closed")
}

func TestMust_InCapturedFunction_EndsDo(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := NewCaptured(func(x *Exec, in ...*Tensor) []*Tensor {
		Check(io.ErrUnexpectedEOF)
		return in
	}, CapturedOptions{})
	defer c.Close()
	torchtest.WantError(t, torchtest.TryDo(t, CPU, func(x *Exec) { c.Run(x, x.Ones(Float32, 1)) }), io.ErrUnexpectedEOF)
}

func TestMust_OutsideDo_Panics(t *testing.T) {
	for name, must := range ways {
		err := func() (err error) {
			defer func() { err, _ = recover().(error) }()
			must(io.ErrUnexpectedEOF)
			return nil
		}()
		var e *Error
		if !errors.As(err, &e) || e.Op != name || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasSuffix(err.Error(), "unexpected EOF") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got := Must(7, nil); got != 7 {
		t.Errorf("got %d", got)
	}
}
