package data

import (
	"context"
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// pins is a Pinner that counts. It refuses the piece number `refuse`, from 1.
type pins struct {
	pinned, writes, refuse int
	err                    error
}

func (p *pins) Pin(memory []byte) error {
	if p.refuse--; p.refuse == 0 {
		return p.err
	}
	p.pinned++
	return nil
}

func (p *pins) Unpin(memory []byte)      { p.pinned-- }
func (p *pins) HostWrites(memory []byte) { p.writes++ }

func TestLoader_Pin(t *testing.T) {
	before := arena.Pages()
	l := open(t, numbered(t, 20), Options{BatchSize: 4, Buffers: 3})
	refusing := &pins{refuse: 2, err: errors.New("no more")}
	torchtest.WantError(t, l.Pin(refusing), refusing.err)
	p := &pins{}
	if err := l.Pin(p); err != nil || p.pinned != 3 || refusing.pinned != 0 {
		t.Fatalf("%v; %d and %d buffers are pinned", err, p.pinned, refusing.pinned)
	}
	if readEpoch(t, l); p.writes != 5 {
		t.Errorf("the Pinner knows of %d writes, want 5", p.writes)
	}
	var held *Batch
	for b, err := range l.Epoch(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		held = b
		break
	}
	if l.Close(); p.pinned != 3 {
		t.Errorf("%d buffers are pinned while a batch is out", p.pinned)
	}
	if held.Release(); p.pinned != 0 || arena.Pages() != before {
		t.Errorf("after the last Release %d buffers are pinned, and %d bytes mapped", p.pinned, arena.Pages()-before)
	}
	torchtest.WantError(t, l.Pin(p), cgotorch.ErrClosed)
	must.Do(t, l.Close())
}
