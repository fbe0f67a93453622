package distributed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Agree waits until all ranks have called it, and reports whether all of them have given true. It
// needs no stream. All ranks make the same calls in the same order. It returns false if the group
// has failed, and [Group.Err] then says why.
//
// Agree is for decisions that all ranks must take alike, as in [cgotorch.CapturedOptions].
func (g *Group) Agree(yes bool) bool {
	texts, err := g.exchange("Agree", fmt.Sprint(yes))
	for i, text := range texts {
		yes = yes && (text == "true" || g.foreign[i])
	}
	return yes && err == nil
}

// Exchange gives a value to all ranks, and returns the values of all ranks in their order. It waits
// until all ranks have called it, and needs no stream. All ranks make the same calls of Exchange
// and Agree in the same order. The value of a rank with torch.distributed is the zero value. The
// caller owns the list.
//
// Exchange is for small values of the host that JSON can hold, such as the states of loaders. It
// fails with [cgotorch.ErrInvalidArgument] for a value of some 8 MiB. It fails with
// [cgotorch.ErrGroupFailed] if a rank has not called it within Options.Timeout.
func Exchange[T any](g *Group, value T) ([]T, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("distributed: Exchange: %w", err)
	}
	texts, err := g.exchange("Exchange", string(text))
	if err != nil {
		return nil, err
	}
	values := make([]T, len(texts))
	for i, text := range texts {
		if text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), &values[i]); err != nil {
			return nil, fmt.Errorf("distributed: Exchange: %s: %w", g.names[i], err)
		}
	}
	return values, nil
}

// exchange gives a text to all ranks for the call `of`. It fails the group if another rank makes
// another call. The text has no NUL.
func (g *Group) exchange(of, text string) ([]string, error) {
	if len(text) > longestText {
		return nil, fmt.Errorf("distributed: %s: %d bytes: at most %d: %w", of, len(text), longestText, cgotorch.ErrInvalidArgument)
	}
	g.state.Lock()
	err := g.unusable()
	g.state.Unlock()
	if err != nil {
		return nil, fmt.Errorf("distributed: %s: %w", of, err)
	}
	texts := make([]string, g.world)
	texts[g.rank] = text
	if g.alone {
		return texts, nil
	}
	n := g.exchanged.Add(1)
	key := func(n int64, rank int) string { return fmt.Sprintf("exchange/%d/%d", n, rank) }
	ctx, cancel := g.bounded("no " + of)
	defer cancel()
	if err := g.store.set(ctx, key(n, g.rank), of+"\n"+text); err != nil {
		return nil, g.explain(err)
	}
	for i := range texts {
		if g.foreign[i] || i == g.rank {
			continue
		}
		got, err := g.store.await(ctx, key(n, i))
		if err != nil {
			return nil, g.explain(fmt.Errorf("%s, in exchange %d: %w", g.names[i], n, err))
		}
		made, text, _ := strings.Cut(got, "\n")
		if texts[i] = text; made != of {
			g.fail("exchange %d differs: %s makes %s, and %s makes %s", n, g.names[i], made, g.names[g.rank], of)
			return nil, g.Err()
		}
	}
	// Every rank has called Exchange n, so every rank has read all texts of the one before.
	if err := g.store.delete(ctx, key(n-1, g.rank)); err != nil {
		return nil, g.explain(err)
	}
	return texts, nil
}

// longestText is the longest text of an Exchange, in bytes. TCPStore takes 8 MiB.
const longestText = 8<<20 - 64

// bounded returns a context that ends after the group's timeout, and when the group fails. `what`
// is the cause of the first.
func (g *Group) bounded(what string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), g.timeout, fmt.Errorf("%s within %v", what, g.timeout))
	ctx, done := g.whileWell(ctx)
	return ctx, func() { done(); cancel() }
}

// whileWell returns a context that also ends when the group fails.
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
