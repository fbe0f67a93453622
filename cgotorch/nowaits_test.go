package cgotorch_test

import (
	"errors"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"runtime"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// thisLine returns the file and line of its caller.
func thisLine() string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, line)
}

// If an operator waits, the error has the line of the call. The Do does not go on after the next
// operator.
func TestNoWaits_Tells(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		other := torchtest.NewStream(t, d)
		for name, c := range map[string]struct {
			fn   func(x *Exec) string // returns the line of the call
			want string
		}{
			"Item":            {func(x *Exec) string { x.Item(x.Ones(Float32)); return thisLine() }, "aten::_local_scalar_dense"},
			"ToSlice":         {func(x *Exec) string { ToSlice[float32](x, x.Ones(Float32, 2)); return thisLine() }, "ToSlice"},
			"FromSlice":       {func(x *Exec) string { FromSlice(x, make([]float32, 1<<20)); return thisLine() }, "FromSlice"},
			"NonZero":         {func(x *Exec) string { x.NonZero(x.Ones(Float32, 2)); return thisLine() }, "aten::nonzero"},
			"MaskedSelect":    {func(x *Exec) string { x.MaskedSelect(x.Ones(Float32, 2), x.Ones(Bool, 2)); return thisLine() }, "aten::masked_select"},
			"Equal":           {func(x *Exec) string { x.Equal(x.Ones(Float32, 2), x.Ones(Float32, 2)); return thisLine() }, "aten::equal"},
			"by name":         {func(x *Exec) string { x.Call("aten::is_nonzero", x.Ones(Float32)); return thisLine() }, "aten::is_nonzero > aten::item"},
			"derived":         {func(x *Exec) string { x.NoGrad().Item(x.Ones(Float32)); return thisLine() }, "aten::_local_scalar_dense"},
			"another stream":  {func(x *Exec) string { other.Synchronize(); return thisLine() }, "Stream.Synchronize"},
			"the device":      {func(x *Exec) string { d.Synchronize(); return thisLine() }, "Device.Synchronize"},
			"event":           {func(x *Exec) string { e := x.Record(); defer e.Close(); e.Synchronize(); return thisLine() }, "Event.Synchronize"},
			"in the backward": {func(x *Exec) string { return backwardThatWaits(x) }, "aten::nonzero"},
		} {
			var line string
			after := false
			err := torchtest.NewStream(t, d).Do(func(x *Exec) error {
				c.fn(x) // the first call, without NoWaits, allocates memory and chooses algorithms
				x = x.NoWaits()
				line = c.fn(x)
				x.Ones(Float32, 1)
				after = true
				return nil
			})
			wantError(t, err, ErrWaited, c.want, line)
			if after {
				t.Errorf("%s: the Do went on", name)
			}
		}
	})
}

// backwardThatWaits runs a backward that waits, because it has to count the true elements of a
// mask. The forward runs without NoWaits, so only the backward can be reported.
func backwardThatWaits(x *Exec) (line string) {
	plain := Unwatched(x)
	a := plain.Ones(Float32, 4)
	if err := a.SetRequiresGrad(true); err != nil {
		panic(err)
	}
	y := plain.Call1("aten::index.Tensor", a, []*Tensor{plain.Ones(Bool, 4)})
	sum := plain.Sum(y)
	func() { x.Backward(sum); line = thisLine() }()
	return line
}

// NoWaits reports only calls that wait. It does not report waits of other goroutines, or waits of
// an Exec that does not come from NoWaits.
func TestNoWaits_Silent(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		step := func(x *Exec) {
			a := x.Ones(Float32, 64, 64)
			must.Do(t, a.SetRequiresGrad(true))
			x.Backward(x.Sum(x.ReLU(x.MM(a, a))))
			e := x.Record()
			x.Wait(e)
			e.Close()
		}
		for range 3 {
			err := s.Do(func(x *Exec) error {
				step(x)
				step(x)
				var reads [8]*HostRead // these reads allocate pinned memory; later reads use it, also Item on the other goroutine
				for i := range reads {
					reads[i] = x.ReadAsync(x.Ones(Float32))
				}
				for _, r := range reads {
					r.Close()
				}
				return nil
			})
			must.Do(t, errors.Join(err, s.Synchronize()))
		}
		stop, waiting := make(chan bool), make(chan bool)
		go func() {
			defer close(waiting)
			another := DefaultStream(d)
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := another.Do(func(x *Exec) error { x.Item(x.Ones(Float32)); return nil })
				if err == nil {
					err = d.Synchronize()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
		for range 20 {
			torchtest.DoOn(t, s, func(x *Exec) {
				plain := x
				x = x.NoWaits()
				step(x)
				step(x.NoWaits())
				x.ReadAsync(x.Ones(Float32)).Close()
				plain.Item(plain.Ones(Float32))
			})
		}
		close(stop)
		<-waiting
		if err := s.Do(func(x *Exec) error { x.Item(x.Ones(Float32)); d.Synchronize(); return nil }); err != nil {
			t.Errorf("after NoWaits: %v", err)
		}
	})
}
