package main

import (
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

func TestBoundary_Idle(t *testing.T) {
	const us = time.Microsecond
	r := &cgotorch.TraceRecords{}
	at := 10 * us
	run := func(launch, start, took time.Duration) {
		at = start + took
		r.Work = append(r.Work, cgotorch.TraceRecord{Kind: cgotorch.TraceKernel, Launch: launch, Start: start, End: at})
	}
	for range starvationProducts {
		run(0, at+us, 100*us)
	}
	run(50*us, at+30*us, 4*us) // the first operator, 30 us late
	for i := range starvationOperators - 1 {
		if i == 7 {
			run(60*us, at+5*us, 4*us)
		} else {
			run(60*us, at+us, 4*us)
		}
	}
	b := &boundary{}
	first, all, err := b.idle(r, 40*us)
	if first != 30 || all != 35 || b.operator[0] != 4 || err != nil {
		t.Errorf("%v us until the first, %v in all, operators of %v, %v; want 30, 35 and 4", first, all, b.operator, err)
	}
	if _, _, err := b.idle(r, 55*us); err == nil {
		t.Error("an operator before the boundary is not missed")
	}
}
