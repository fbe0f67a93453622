package main

import (
	"testing"
	"time"
)

func TestStartTicks(t *testing.T) {
	const stat = "7 (a ) b) S 1 7 7 0 -1 4194560 10 0 0 0 1 2 0 0 20 0 1 0 123456 8192 90 18446744073709551615 1 1"
	if got, err := startTicks([]byte(stat)); got != 123456 || err != nil {
		t.Errorf("got %d, %v, want 123456", got, err)
	}
	for _, bad := range []string{"", "7 (a) S 1 7", "7 a S 1 7"} {
		if got, err := startTicks([]byte(bad)); err == nil {
			t.Errorf("%q: got %d, want an error", bad, got)
		}
	}
}

// The process is older than its first Go code, up to the rounding of ticks.
func TestProcessAge(t *testing.T) {
	age, err := processAge()
	if err != nil {
		t.Fatal(err)
	}
	if go1 := time.Since(earliest); age < go1-time.Millisecond {
		t.Errorf("the process is %v old, and its Go code %v", age, go1)
	}
}

func TestClock_Table(t *testing.T) {
	c := newClock()
	outer := c.begin("outer")
	c.begin("inner")()
	outer()
	phases := c.table()
	if len(phases) != 3 || phases[1].Name != "outer" || phases[2].Name != "inner" || phases[1].To < phases[2].To || phases[0].From > 0.001 {
		t.Errorf("got %+v, want the start of the process, outer, inner", phases)
	}
}
