package distributed

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestExchange(t *testing.T) {
	torchtest.CheckLeaks(t)
	wantErrors(t, together(t, 2, Options{}, func(g *Group, s *cgotorch.Stream) error {
		for range 3 {
			texts, err := Exchange(g, strings.Repeat("a\x00b", g.Rank()))
			if err != nil || len(texts) != 2 || texts[0] != "" || texts[1] != "a\x00b" {
				t.Errorf("rank %d: %q, %v", g.Rank(), texts, err)
			}
		}
		if _, err := Exchange(g, strings.Repeat("x", longestText)); !errors.Is(err, cgotorch.ErrInvalidArgument) {
			t.Errorf("a long text: %v", err)
		}
		if _, err := Exchange(g, make(chan int)); err == nil {
			t.Error("a channel has no JSON")
		}
		if !g.Agree(true) {
			t.Error("not agreed")
		}
		// The first texts are deleted, so that a long run does not fill the store.
		if _, found, err := g.store.get(t.Context(), "exchange/1/0"); err != nil || found {
			t.Errorf("the first text is still there: %v", err)
		}
		return nil
	}), nil)
}

// Ranks that make other calls get an error instead of each other's texts.
func TestExchange_OtherCalls(t *testing.T) {
	torchtest.CheckLeaks(t)
	wantErrors(t, together(t, 2, Options{Timeout: 5 * time.Second}, func(g *Group, s *cgotorch.Stream) error {
		if g.Rank() == 0 {
			_, err := Exchange(g, "a")
			return err
		}
		if g.Agree(true) {
			t.Error("agreed with a text")
		}
		return g.Err()
	}), cgotorch.ErrGroupFailed, "exchange 1 differs", "makes Agree")
}

// After Close every call is an error, and a call that waits ends with an error.
func TestExchange_Closed(t *testing.T) {
	torchtest.CheckLeaks(t)
	wantErrors(t, together(t, 2, Options{Timeout: 5 * time.Second}, func(g *Group, s *cgotorch.Stream) error {
		if g.Rank() == 0 {
			waits := make(chan error)
			go func() {
				_, err := Exchange(g, "rank 1 never answers")
				waits <- err
			}()
			time.Sleep(50 * time.Millisecond)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			torchtest.WantError(t, <-waits, cgotorch.ErrClosed)
		} else if err := g.Close(); err != nil {
			t.Error(err)
		}
		if _, err := Exchange(g, "x"); !errors.Is(err, cgotorch.ErrClosed) || g.Agree(true) {
			t.Errorf("after Close: %v", err)
		}
		torchtest.WantError(t, s.Do(func(x *cgotorch.Exec) error { g.AllReduce(x, x.Ones(cgotorch.Float32, 1), Sum); return nil }), cgotorch.ErrClosed)
		return nil
	}), nil)
}
