package weights

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// ExpertsOptions are the options of [NewExperts].
type ExpertsOptions struct {
	// A route is the expert ids of a layer's tokens; see [Experts]. NewExperts page-locks memory
	// for routes of up to Tokens tokens. 0 means 64. The first route of more tokens page-locks more
	// memory, which may wait.
	Tokens int

	// A goroutine that waits for a route first looks in a loop whether the route has come to the
	// host. Poll is the longest time in the loop, which keeps a core busy. After that time the
	// goroutine sleeps. It then wakes about 50 us after the route arrives. 0 means 2 ms. Below 0
	// the goroutine sleeps at once.
	Poll time.Duration
}

// Experts runs the layers of a mixture of experts. Experts come to the device when tokens are
// routed to them. The route of a layer is the expert ids of its tokens. The route is copied to
// the host, and the device does not wait for the copy. When the route arrives, its experts are
// prefetched.
//
// The moment at which Route is called decides how early the copies begin. In an ordinary model
// Route is called just before Run. In a pre-gated model block i routes for block i+1, so Route is
// called one block earlier. In a model that is not pre-gated, Predict prefetches earlier, by a
// guess. Several goroutines may use an Experts, each in a Do of its own. An Experts is a
// text.Experts, for the sparse layers of an encoder or a decoder.
type Experts[M nn.Module] struct {
	cache  *Cache[M]
	names  [][]string
	routes *routes

	mu      sync.Mutex
	open    map[place]*layerRoute // layers that have been routed and not run
	guessed map[place][]string    // names of guessed experts, each once
	counts  []routeCount          // one for each layer
	stats   ExpertsStats
}

// routeCount counts the routes of one layer.
type routeCount struct {
	sent    int
	arrived int // routes with a number below this one are on the host
}

// place names a layer of the Experts and a Do that runs the layer. The Do routes all tokens of
// the layer together.
type place struct {
	do    *cgotorch.Stream
	layer int
}

// ExpertsStats holds counts since the [Experts] were made.
type ExpertsStats struct {
	Routes  int           // calls of Route
	Guesses int           // experts that Predict guessed before the route arrived
	Right   int           // guessed experts to which tokens were then routed
	Wait    time.Duration // total time that goroutines waited in Run for a route
}

// layerRoute is a route, or a guess at a route, with its layer and its Do.
type layerRoute struct {
	place
	guess  bool
	number int              // number among its layer's routes, from 0; a guess has the number of the route that it guesses
	order  *cgotorch.Tensor // the tokens sorted by expert; nil for one token
	route  *route           // nil for a guess

	once sync.Once // for the work when the route arrives
	err  error

	mu         sync.Mutex
	abandoned  bool // the Do has ended without a Run
	prefetched bool // the route's experts have been prefetched
}

// NewExperts makes layers of experts on a cache. names[i][k] is the name of the cache's unit for
// expert k of layer i. The caller closes the Experts before the cache. NewExperts fails with
// [ErrUnknownUnit] for an unknown name, and with [ErrInvalidOptions] for options that are not
// valid. It fails with [cgotorch.ErrNoDevice] if the device is absent, and with
// [cgotorch.ErrOutOfMemory] if memory is short.
func NewExperts[M nn.Module](cache *Cache[M], names [][]string, o ExpertsOptions) (*Experts[M], error) {
	for _, layer := range names {
		for _, name := range layer {
			if _, err := cache.store.lookup(name); err != nil {
				return nil, err
			}
		}
	}
	e := &Experts[M]{cache: cache, names: names, open: map[place]*layerRoute{}, guessed: map[place][]string{}, counts: make([]routeCount, len(names))}
	var err error
	if e.routes, err = newRoutes(cache.device, o, e.arrived); err != nil {
		return nil, err
	}
	return e, nil
}

// Route begins to copy a layer's route to the host and returns at once. `ids` is Int64 [tokens],
// contiguous, on x's stream. The experts are prefetched when the route arrives. The same Do then
// calls Run of the layer. Route fails with [cgotorch.ErrClosed] after Close. It fails with
// [cgotorch.ErrInvalidArgument] if `ids` is not of this form. It fails with the same error if the
// layer's last route has not been run.
func (e *Experts[M]) Route(x *cgotorch.Exec, layer int, ids *cgotorch.Tensor) {
	const op = "Experts.Route"
	e.check(x, op, layer, ids)
	at := place{x.DoStream(), layer}
	l := &layerRoute{place: at}
	if ids.Numel() > 1 {
		l.order = nn.ExpertOrder(x, ids)
	}
	x.AtEnd(func() { e.abandon(x, l) })
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open[at] != nil {
		x.Fail(op, fmt.Errorf("weights: layer %d was routed before and has not been run: %w", layer, cgotorch.ErrInvalidArgument))
	}
	l.number = e.counts[layer].sent
	l.route = e.routes.send(x, op, ids, true, l)
	e.counts[layer].sent++
	e.open[at] = l
	e.stats.Routes++
}

// Predict prefetches the experts to which a layer's tokens will probably be routed, and returns at
// once. `ids` is the guess: Int64 [tokens], contiguous, on x's stream. A wrong guess costs a copy
// and changes no result. The layer's next Route gives up the slots of wrong guesses. Predict fails
// with [cgotorch.ErrClosed] after Close. It fails with [cgotorch.ErrInvalidArgument] if `ids` is
// not of this form.
func (e *Experts[M]) Predict(x *cgotorch.Exec, layer int, ids *cgotorch.Tensor) {
	const op = "Experts.Predict"
	e.check(x, op, layer, ids)
	l := &layerRoute{place: place{x.DoStream(), layer}, guess: true}
	x.AtEnd(func() { e.forget(l) })
	e.mu.Lock()
	defer e.mu.Unlock()
	l.number = e.counts[layer].sent
	e.routes.send(x, op, ids, false, l)
}

func (e *Experts[M]) check(x *cgotorch.Exec, op string, layer int, ids *cgotorch.Tensor) {
	if layer < 0 || layer >= len(e.names) || ids.Dim() != 1 || ids.Numel() == 0 {
		x.Fail(op, &cgotorch.Error{Op: op, Kind: cgotorch.ErrInvalidArgument,
			Message: fmt.Sprintf("layer %d of %d, ids %s: want one id for each token of a layer that is there", layer, len(e.names), ids)})
	}
}

// Run runs the experts of a layer on its tokens [tokens, width] and returns the same shape. It
// waits until the layer's route is on the host. It does not wait for the copies of the experts,
// because x's stream waits for them. Each expert runs once, on all its tokens, as in
// [nn.Dispatch]. Run fails with the errors of [Cache.Use]. It fails with
// [cgotorch.ErrInvalidArgument] if Route was not called, or if an id belongs to no expert.
func (e *Experts[M]) Run(x *cgotorch.Exec, layer int, tokens *cgotorch.Tensor) *cgotorch.Tensor {
	const op = "Experts.Run"
	at := place{x.DoStream(), layer}
	e.mu.Lock()
	l := e.open[at]
	delete(e.open, at)
	e.mu.Unlock()
	if l == nil {
		x.Fail(op, fmt.Errorf("weights: layer %d has not been routed in this Do: %w", layer, cgotorch.ErrInvalidArgument))
	}
	began := time.Now()
	l.route.await()
	waited := time.Since(began)
	e.mu.Lock()
	e.stats.Wait += waited
	e.mu.Unlock()
	e.arrived(l.route)
	ids := l.route.experts
	names := e.routed(layer, ids)
	ran := false
	defer func() {
		if !ran { // a failure unwinds
			e.cache.drop(names...)
		}
	}()
	l.route.awaitCopy(x)
	if l.err != nil {
		x.Fail(op, l.err)
	}
	next := 0
	out := nn.Dispatch(x, tokens, ids, l.order, func(expert int64, rows *cgotorch.Tensor) *cgotorch.Tensor {
		next++
		e.prefetch(names[min(next, len(names)):min(next+max(1, e.cache.o.Slots-1), len(names))])
		u := e.cache.Use(x, e.names[layer][expert])
		defer u.Release(x)
		return u.Module.Forward(x, rows)
	})
	ran = true
	return out
}

// routed returns the names of a route's experts, each once, in the order of their ids.
func (e *Experts[M]) routed(layer int, ids []int64) []string {
	var names []string
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		if id >= 0 && id < int64(len(e.names[layer])) {
			names = append(names, e.names[layer][id])
		}
	}
	return names
}

// arrived does the work that follows the arrival of a route or a guess. Every goroutine that sees
// the arrival calls `arrived`, and only the first call does the work.
func (e *Experts[M]) arrived(r *route) {
	l := r.tag.(*layerRoute)
	l.once.Do(func() {
		switch {
		case !l.guess:
			e.routeArrived(l, r)
		case r.err == nil: // an error of a guess does not matter, because the route will have it too
			e.guessArrived(l, r.experts)
		}
	})
}

// routeArrived prefetches the experts of a route, at most one for each slot. It drops the wrong
// guesses.
func (e *Experts[M]) routeArrived(l *layerRoute, r *route) {
	l.err = r.err
	for _, id := range r.experts {
		if n := len(e.names[l.layer]); id < 0 || id >= int64(n) {
			l.err = fmt.Errorf("weights: layer %d has %d experts, and a token is routed to number %d: %w", l.layer, n, id, cgotorch.ErrInvalidArgument)
		}
	}
	names := e.routed(l.layer, r.experts)
	e.mu.Lock()
	count := &e.counts[l.layer]
	count.arrived = max(count.arrived, l.number+1)
	guessed := e.guessed[l.place]
	delete(e.guessed, l.place)
	var wrong []string
	for _, name := range guessed {
		if slices.Contains(names, name) {
			e.stats.Right++
		} else {
			wrong = append(wrong, name)
		}
	}
	e.mu.Unlock()
	if len(wrong) > 0 {
		e.cache.drop(wrong...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.abandoned {
		e.prefetch(e.fitting(names))
		l.prefetched = true
	}
}

// guessArrived prefetches the guessed experts, unless the route has already arrived.
func (e *Experts[M]) guessArrived(l *layerRoute, ids []int64) {
	names := e.fitting(e.routed(l.layer, ids))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.abandoned {
		return
	}
	e.mu.Lock()
	late := e.counts[l.layer].arrived > l.number
	if !late {
		e.stats.Guesses += len(names)
		for _, name := range names {
			if !slices.Contains(e.guessed[l.place], name) {
				e.guessed[l.place] = append(e.guessed[l.place], name)
			}
		}
	}
	e.mu.Unlock()
	if !late {
		e.prefetch(names)
	}
}

// forget drops, at the end of the Do, the guesses that no route has confirmed.
func (e *Experts[M]) forget(l *layerRoute) {
	l.mu.Lock()
	l.abandoned = true
	l.mu.Unlock()
	e.mu.Lock()
	guessed := e.guessed[l.place]
	delete(e.guessed, l.place)
	e.mu.Unlock()
	if len(guessed) > 0 {
		e.cache.drop(guessed...)
	}
}

// fitting returns the first of the names, at most one for each slot.
func (e *Experts[M]) fitting(names []string) []string {
	return names[:min(len(names), max(1, e.cache.o.Slots))]
}

// prefetch begins the copies of units. It does not wait and does not fail.
func (e *Experts[M]) prefetch(names []string) {
	for _, name := range names {
		e.cache.prefetchNow(name)
	}
}

// abandon drops the prefetched experts of a Do that has ended before its Run.
func (e *Experts[M]) abandon(x *cgotorch.Exec, l *layerRoute) {
	e.mu.Lock()
	open := e.open[l.place] == l
	if open {
		delete(e.open, l.place)
	}
	e.mu.Unlock()
	if !open {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abandoned = true
	defer l.route.awaitCopy(x)
	if l.prefetched {
		e.cache.drop(e.routed(l.layer, l.route.experts)...)
	}
}

// Stats returns the counts so far. [Cache.Stats] has the counts of the copies.
func (e *Experts[M]) Stats() ExpertsStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Close waits for the routes that are on their way, and frees their memory. A later Run still
// finds the routes that have arrived. The cache stays open. A second Close does nothing.
func (e *Experts[M]) Close() error {
	if e == nil {
		return nil
	}
	return e.routes.close()
}
