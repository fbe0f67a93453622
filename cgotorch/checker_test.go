package cgotorch_test

import (
	"errors"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// twoStreams returns two streams that are closed when the test ends.
func twoStreams(t *testing.T, d Device) (a, b *Stream) {
	t.Helper()
	for _, s := range []**Stream{&a, &b} {
		var err error
		if *s, err = NewStream(d, StreamOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*s).Close() })
	}
	return a, b
}

// race makes a tensor on the stream a and uses the tensor on the stream b. The stream b does not
// wait for the stream a.
func race(t *testing.T, a, b *Stream) error {
	t.Helper()
	var made *Tensor
	torchtest.DoOn(t, a, func(x *Exec) { made = x.Keep(x.Ones(Float32, 4)) })
	err := b.Do(func(x *Exec) error { x.Neg(made); return nil })
	for _, s := range []*Stream{a, b} {
		must.Do(t, s.Synchronize())
	}
	made.Close()
	return err
}

func TestCheckStreams_Report(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		var found []*StreamRace
		stop := Must(CheckStreams(func(r *StreamRace) { found = append(found, r) }))
		defer stop()
		a, b := twoStreams(t, d)
		if err := race(t, a, b); err != nil {
			t.Errorf("with a report the Do returned %v", err)
		}
		if len(found) != 1 {
			t.Fatalf("got %d races, want 1: %v", len(found), found)
		}
		r := found[0]
		for _, c := range []struct{ name, got, want string }{
			{"earlier operator", r.Earlier.Op, "aten::ones"}, {"earlier", r.Earlier.Kind, "written"},
			{"later operator", r.Later.Op, "aten::neg"}, {"later", r.Later.Kind, "read"},
			{"bytes", fmt.Sprint(r.Later.From, " ", r.Later.To), "0 16"},
		} {
			if c.got != c.want {
				t.Errorf("%s: got %q, want %q", c.name, c.got, c.want)
			}
		}
		for _, caller := range []string{r.Earlier.Caller, r.Later.Caller} {
			if !strings.Contains(caller, "checker_test.go:") {
				t.Errorf("caller: got %q, want a line of this file", caller)
			}
		}
		if r.Earlier.Stream == r.Later.Stream {
			t.Errorf("both on %s", r.Later.Stream)
		}
		for _, want := range []string{r.Memory, r.Earlier.Stream, r.Later.Stream, "aten::neg", "x.Record"} {
			if !strings.Contains(r.Error(), want) {
				t.Errorf("%q is not in: %v", want, r)
			}
		}
	})
}

// If `report` is nil, the Do that finds a race returns the race. No other Do returns this race.
func TestCheckStreams_Do_Fails(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		stop, err := CheckStreams(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		a, b := twoStreams(t, d)
		err = race(t, a, b)
		var r *StreamRace
		if !errors.Is(err, ErrStreamRace) || !errors.As(err, &r) || r.Later.Op != "aten::neg" {
			t.Errorf("got %v", err)
		}
		if err := b.Do(func(x *Exec) error { return nil }); err != nil {
			t.Errorf("the next Do: %v", err)
		}
		if left := LeftRaces(); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func TestCheckStreams_Off(t *testing.T) {
	if os.Getenv("CGOTORCH_CHECK") != "" {
		t.Skip("the checker is on for the whole process")
	}
	stop := Must(CheckStreams(nil))
	stop()
	stop()
	a, b := twoStreams(t, CPU)
	must.Do(t, race(t, a, b))
	if left := LeftRaces(); len(left) != 0 {
		t.Errorf("found while off: %v", left)
	}
}

// The environment variable CGOTORCH_CHECK turns the checker on. If its value is an unknown word,
// NewStream returns an error.
func TestCheckStreams_Environment(t *testing.T) {
	if value := os.Getenv("CGOTORCH_CHECK_TEST"); value != "" {
		a, err := NewStream(CPU, StreamOptions{})
		if err != nil {
			fmt.Println(err)
			return
		}
		b, _ := NewStream(CPU, StreamOptions{})
		fmt.Println(race(t, a, b))
		return
	}
	for value, want := range map[string]string{"streams": "stream race in 16 bytes of cpu memory", "strems": "CGOTORCH_CHECK=strems: \"strems\" is no check"} {
		command := exec.Command("/proc/self/exe", "-test.run", "^TestCheckStreams_Environment$", "-test.v")
		command.Env = append(os.Environ(), "CGOTORCH_CHECK_TEST=1", "CGOTORCH_CHECK="+value)
		out, err := command.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("CGOTORCH_CHECK=%s: got %v and\n%s\nwant %q", value, err, out, want)
		}
	}
}

// CheckStreams is called twice, and the first call is stopped first. The second call still gets
// the reports. A report function may use the checker and the stream.
func TestCheckStreams_Nested(t *testing.T) {
	a, b := twoStreams(t, CPU)
	var outer, inner int
	stopOuter := Must(CheckStreams(func(*StreamRace) { outer++ }))
	defer stopOuter()
	stopInner := Must(CheckStreams(func(*StreamRace) {
		inner++
		LeftRaces()
		must.Do(t, b.Synchronize())
	}))
	defer stopInner()
	stopOuter()
	if err := race(t, a, b); err != nil || outer != 0 || inner != 1 {
		t.Errorf("got %v, told %d and %d times", err, outer, inner)
	}
}

// If a Do has a race and also fails with an error of its own, it returns its own error. The next
// Do returns the race.
func TestCheckStreams_DoFailsOtherwise(t *testing.T) {
	stop := Must(CheckStreams(nil))
	defer stop()
	a, b := twoStreams(t, CPU)
	var made *Tensor
	torchtest.DoOn(t, a, func(x *Exec) { made = x.Keep(x.Ones(Float32, 4)) })
	defer made.Close()
	own := errors.New("its own")
	if err := b.Do(func(x *Exec) error { x.Neg(made); return own }); err != own {
		t.Errorf("got %v", err)
	}
	torchtest.WantError(t, b.Do(func(x *Exec) error { return nil }), ErrStreamRace)
	must.Do(t, errors.Join(a.Synchronize(), b.Synchronize()))
}

// Every Do of a race fails, also if a race of the same two lines was found before. A report names
// the line that called the helper.
func TestCheckStreams_HelperTwice(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		stop := Must(CheckStreams(nil))
		defer stop()
		a, b := twoStreams(t, d)
		bump := func(s *Stream, v *Tensor) error {
			return s.Do(func(x *Exec) error { x.AddScalarInPlace(v, 1); return nil })
		}
		places := map[string]bool{}
		call := func(round func() (first, second error)) {
			first, second := round()
			if first != nil {
				t.Error(first)
			}
			var r *StreamRace
			if !errors.Is(second, ErrStreamRace) || !errors.As(second, &r) {
				t.Fatalf("a race gives %v", second)
			}
			if !strings.Contains(r.Earlier.CalledAt, "checker_test.go:") || !strings.Contains(r.Error(), r.Later.CalledAt) {
				t.Errorf("the race does not say who called the helper: %+v", r)
			}
			places[r.Later.CalledAt] = true
		}
		var made []*Tensor
		fresh := func() *Tensor {
			var v *Tensor
			torchtest.DoOn(t, a, func(x *Exec) { v = x.Keep(x.Ones(Float32, 4)) })
			made = append(made, v)
			return v
		}
		for range 3 {
			v := fresh()
			call(func() (error, error) { return bump(a, v), bump(b, v) })
		}
		v := fresh()
		call(func() (error, error) {
			return bump(a, v),
				bump(b, v)
		})
		if len(places) != 2 {
			t.Errorf("four races from two places give the places %v", places)
		}
		for _, s := range []*Stream{a, b} {
			must.Do(t, s.Synchronize())
		}
		for _, v := range made {
			v.Close()
		}
	})
}
