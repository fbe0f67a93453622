package dist

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Agree waits until all ranks have called it, and reports whether all of them have given true. It
// needs no stream. All ranks make the same calls in the same order. It returns false if the group
// has failed.
//
// Agree is for decisions that all ranks must take alike, as in [cgotorch.CapturedOptions].
func (g *Group) Agree(yes bool) bool {
	texts, err := g.Exchange(fmt.Sprint(yes))
	for i, text := range texts {
		yes = yes && (text == "true" || g.foreign[i])
	}
	return yes && err == nil
}

// Exchange gives a text to all ranks, and returns the texts of all ranks in their order. It waits
// until all ranks have called it, and needs no stream. All ranks make the same calls of Exchange
// and Agree in the same order. The text of a rank with torch.distributed is "". The caller owns the
// list.
//
// Exchange is for small values of the host, such as the states of loaders. It fails with
// [cgotorch.ErrInvalidArgument] for a text with more than 8 MiB or with a NUL. It fails with
// [cgotorch.ErrGroupFailed] if a rank has not called it within Options.Timeout.
func (g *Group) Exchange(text string) ([]string, error) {
	g.state.Lock()
	err := g.unusable()
	g.state.Unlock()
	switch {
	case err != nil:
		return nil, fmt.Errorf("dist: Exchange: %w", err)
	case len(text) > longestText || strings.ContainsRune(text, 0):
		return nil, fmt.Errorf("dist: Exchange: a text of %d bytes: at most %d and no NUL: %w", len(text), longestText, cgotorch.ErrInvalidArgument)
	}
	texts := make([]string, g.world)
	texts[g.rank] = text
	if g.alone {
		return texts, nil
	}
	n := g.exchanged.Add(1)
	key := func(n int64, rank int) string { return fmt.Sprintf("exchange/%d/%d", n, rank) }
	ctx, cancel := g.bounded("a rank has not called Exchange or Agree")
	defer cancel()
	if err := g.store.set(ctx, key(n, g.rank), text); err != nil {
		return nil, g.explain(err)
	}
	for i := range texts {
		if g.foreign[i] || i == g.rank {
			continue
		}
		if texts[i], err = g.store.await(ctx, key(n, i)); err != nil {
			return nil, g.explain(fmt.Errorf("%s: %w", g.names[i], err))
		}
	}
	// Every rank has called Exchange n, so every rank has read all texts of the one before.
	if err := g.store.delete(ctx, key(n-1, g.rank)); err != nil {
		return nil, g.explain(err)
	}
	return texts, nil
}

// longestText is the longest text that TCPStore takes, in bytes.
const longestText = 8 << 20

// The method `bounded` returns a context that ends after the group's timeout, and when the group
// fails. `what` is the cause of the first.
func (g *Group) bounded(what string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), g.timeout, fmt.Errorf("%s within %v", what, g.timeout))
	ctx, done := g.whileWell(ctx)
	return ctx, func() { done(); cancel() }
}

// The method `whileWell` returns a context that also ends when the group fails.
func (g *Group) whileWell(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-g.failed:
			cancel(errors.New(reason(g.Err())))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
