package pace

import (
	"testing"
	"time"
)

const ms = time.Millisecond

// Two batches may be noted as ended in the other order. The time of the one that is left counts.
func TestPace_Ended_OtherOrder(t *testing.T) {
	p := New[int]()
	p.Takes[8], p.Takes[1] = 10*ms, ms
	now := time.Now()
	p.Began(8, now, now)
	p.Began(1, now, now)
	p.Ended(1, now, now)
	if left := p.Left(now); left != 10*ms {
		t.Errorf("the device is done in %v, want %v", left, 10*ms)
	}
	p.Ended(8, now, now)
	if left := p.Left(now); left != 0 {
		t.Errorf("nothing is computed, and the device is done in %v", left)
	}
}

// The first batch of a form tells how long it takes, from the end of the one before it.
func TestPace_UnknownForm(t *testing.T) {
	p, now := New[int](), time.Now()
	p.Began(1, now, now)
	p.Began(8, now, now)
	if left := p.Left(now); left != 0 {
		t.Errorf("nothing is known, and the device is done in %v", left)
	}
	p.Ended(1, now, now.Add(2*ms))
	p.Ended(8, now, now.Add(7*ms))
	if p.Takes[1] != 2*ms || p.Takes[8] != 5*ms {
		t.Errorf("the forms take %v, want 2 and 5 ms", p.Takes)
	}
	now = now.Add(time.Second)
	p.Began(8, now, now)
	if left := p.Left(now.Add(ms)); left != 4*ms {
		t.Errorf("the device is done in %v, want %v", left, 4*ms)
	}
}
