package prefetcher

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Experts runs the layers of a mixture of experts whose experts come to the device when tokens are routed to them. The choice of a layer goes
// to the host as those of [Routes] do, and what it names is prefetched as soon as it is there; the stream does not stand for it before the experts run.
//
// How early the copies begin is up to when Route is called: just before Run (on demand), or a block earlier, where block i chooses for block i+1
// (a pre-gated model), or, for a model that is not, as a guess by Predict. It is safe for use by several goroutines, each in a Do of its own.
type Experts[M nn.Module] struct {
	modules *Modules[M]
	names   [][]string

	routes *routes

	mu      sync.Mutex
	open    map[place]*routing // routed and not run
	guessed map[place][]string // each once
	turns   map[int]*turns     // by layer
	stats   ExpertsStats
}

// turns counts a layer's choices.
type turns struct {
	routed  int // sent
	arrived int // those before this one are on the host
}

// place is where a choice is made: a layer in a Do.
type place struct {
	do    *cgotorch.Stream
	layer int
}

// ExpertsStats counts since the [Experts] were made.
type ExpertsStats struct {
	Routes  int           // choices of layers
	Guesses int           // experts that were guessed in time
	Right   int           // of these, those that were then chosen
	Wait    time.Duration // goroutines waited in Run for a choice to arrive
}

// routing is a layer's choice on its way to the host, or a guess at one.
type routing struct {
	place
	guess bool
	turn  int              // of the layer's choices, which one this is or is a guess at, from 0
	order *cgotorch.Tensor // of the tokens by expert; nil for one token
	sent  *sending

	once sync.Once // for what is to be done when it has arrived
	err  error

	mu        sync.Mutex
	abandoned bool // the Do has ended without a Run
	acted     bool // experts have been prefetched
}

// copied makes x's stream wait for the copy of the ids, which is over, or about to be, so that it may write them again.
func (c *routing) copied(x *cgotorch.Exec) {
	defer c.sent.release()
	x.Wait(c.sent.event) //edge:choice-behind-route TestExperts_Route_SameMemory checked
}

// NewExperts makes layers of experts: names are those of the modules, by layer and expert. Close ends it, before the Modules. It fails with
// [ErrUnknownModule] and as [NewRoutes] does.
func NewExperts[M nn.Module](m *Modules[M], names [][]string, o RoutesOptions) (*Experts[M], error) {
	for _, layer := range names {
		for _, name := range layer {
			if _, err := m.store.lookup(name); err != nil {
				return nil, err
			}
		}
	}
	e := &Experts[M]{modules: m, names: names, open: map[place]*routing{}, guessed: map[place][]string{}, turns: map[int]*turns{}}
	for layer := range names {
		e.turns[layer] = &turns{}
	}
	var err error
	if e.routes, err = newRoutes(m.device, o, e.arrived); err != nil {
		return nil, err
	}
	return e, nil
}

// Route begins to bring a layer's choice to the host, ids Int64 [tokens] on x's stream, and has the experts prefetched when it is there. It returns at
// once; Run of the layer, in the same Do, is to follow. It fails with [cgotorch.ErrInvalidArgument], also for a layer whose last choice has not
// been run, and with [ErrClosed].
func (e *Experts[M]) Route(x *cgotorch.Exec, layer int, ids *cgotorch.Tensor) {
	const op = "Experts.Route"
	e.check(x, op, layer, ids)
	at := place{x.DoStream(), layer}
	c := &routing{place: at}
	if ids.Numel() > 1 {
		c.order = nn.ExpertOrder(x, ids)
	}
	x.AtEnd(func() { e.abandon(x, c) })
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open[at] != nil {
		x.Fail(op, fmt.Errorf("prefetcher: layer %d was routed before and has not been run: %w", layer, cgotorch.ErrInvalidArgument))
	}
	c.turn = e.turns[layer].routed
	c.sent = e.routes.send(x, op, layer, ids, true, c)
	e.turns[layer].routed++
	e.open[at] = c
	e.stats.Routes++
}

// Predict has the experts prefetched that a layer will probably choose, and returns at once. What is guessed wrongly costs its copy and changes no
// result: the layer's next Route gives its slot up.
func (e *Experts[M]) Predict(x *cgotorch.Exec, layer int, ids *cgotorch.Tensor) {
	const op = "Experts.Predict"
	e.check(x, op, layer, ids)
	c := &routing{place: place{x.DoStream(), layer}, guess: true}
	x.AtEnd(func() { e.forget(c) })
	e.mu.Lock()
	defer e.mu.Unlock()
	c.turn = e.turns[layer].routed
	e.routes.send(x, op, layer, ids, false, c)
}

func (e *Experts[M]) check(x *cgotorch.Exec, op string, layer int, ids *cgotorch.Tensor) {
	if layer < 0 || layer >= len(e.names) || ids.Dim() != 1 || ids.Numel() == 0 {
		x.Fail(op, &cgotorch.Error{Op: op, Code: cgotorch.CodeInvalidArgument,
			Message: fmt.Sprintf("layer %d of %d, ids %v: want one id for each token of a layer that is there", layer, len(e.names), ids)})
	}
}

// Run waits until the layer's choice has arrived on the host, not for the copies of the experts, for which x's stream stands; it runs tokens
// [tokens, width] through the experts and returns the results in their order. Each expert runs once, on its tokens, as [nn.Dispatch] says. It
// fails with the errors of [Modules.Use], and with [cgotorch.ErrInvalidArgument] for an id that is no expert's, and without a Route.
func (e *Experts[M]) Run(x *cgotorch.Exec, layer int, tokens *cgotorch.Tensor) *cgotorch.Tensor {
	const op = "Experts.Run"
	at := place{x.DoStream(), layer}
	e.mu.Lock()
	c := e.open[at]
	delete(e.open, at)
	e.mu.Unlock()
	if c == nil {
		x.Fail(op, fmt.Errorf("prefetcher: layer %d has not been routed in this Do: %w", layer, cgotorch.ErrInvalidArgument))
	}
	began := time.Now()
	c.sent.await()
	waited := time.Since(began)
	e.mu.Lock()
	e.stats.Wait += waited
	e.mu.Unlock()
	e.arrived(c.sent)
	ran := false
	defer func() {
		if !ran { // unwinding
			e.modules.Drop(e.chosen(layer, c.sent.route.Experts)...)
		}
	}()
	c.copied(x)
	if c.err != nil {
		x.Fail(op, c.err)
	}
	ids := c.sent.route.Experts
	names := e.chosen(layer, ids)
	next := 0
	out := nn.Dispatch(x, tokens, ids, c.order, func(expert int64, rows *cgotorch.Tensor) *cgotorch.Tensor {
		next++
		e.prefetch(names[min(next, len(names)):min(next+max(1, e.modules.o.Slots-1), len(names))])
		u := e.modules.Use(x, e.names[layer][expert])
		defer u.Release(x)
		return u.Module.Forward(x, rows)
	})
	ran = true
	return out
}

// Layer is one layer as a function of tokens and ids: Route and then Run.
func (e *Experts[M]) Layer(layer int) ExpertLayer[M] { return ExpertLayer[M]{e, layer} }

// ExpertLayer is a layer of [Experts]; it is a text.Experts.
type ExpertLayer[M nn.Module] struct {
	experts *Experts[M]
	layer   int
}

// Forward waits for the ids to arrive on the host and maps tokens [tokens, width] to the same shape, row i by the expert whose number is ids[i], Int64 [tokens].
func (l ExpertLayer[M]) Forward(x *cgotorch.Exec, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	l.experts.Route(x, l.layer, ids)
	return l.experts.Run(x, l.layer, tokens)
}

// chosen are the names of a choice's experts, each once, in ascending order of their numbers.
func (e *Experts[M]) chosen(layer int, ids []int64) []string {
	var names []string
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		if id >= 0 && id < int64(len(e.names[layer])) {
			names = append(names, e.names[layer][id])
		}
	}
	return names
}

// arrived does, once, what is to be done when a choice or a guess is on the host, on whatever goroutine sees it first.
func (e *Experts[M]) arrived(s *sending) {
	c := s.tag.(*routing)
	c.once.Do(func() {
		switch {
		case !c.guess:
			e.choose(c, s.route)
		case s.route.Err == nil: // a choice will say so
			e.guess(c, s.route.Experts)
		}
	})
}

// choose prefetches as many of a choice's experts as there are slots for, and gives up what was guessed and not chosen.
func (e *Experts[M]) choose(c *routing, route Route) {
	c.err = route.Err
	for _, id := range route.Experts {
		if n := len(e.names[c.layer]); id < 0 || id >= int64(n) {
			c.err = fmt.Errorf("prefetcher: layer %d has %d experts, and a token is routed to number %d: %w", c.layer, n, id, cgotorch.ErrInvalidArgument)
		}
	}
	names := e.chosen(c.layer, route.Experts)
	e.mu.Lock()
	e.turns[c.layer].arrived = max(e.turns[c.layer].arrived, c.turn+1)
	guessed := e.guessed[c.place]
	delete(e.guessed, c.place)
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
		e.modules.Drop(wrong...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.abandoned {
		e.prefetch(e.fitting(names))
		c.acted = true
	}
}

// guess prefetches, unless what it is a guess at is here already.
func (e *Experts[M]) guess(c *routing, ids []int64) {
	names := e.fitting(e.chosen(c.layer, ids))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned {
		return
	}
	e.mu.Lock()
	late := e.turns[c.layer].arrived > c.turn
	if !late {
		e.stats.Guesses += len(names)
		for _, name := range names {
			if !slices.Contains(e.guessed[c.place], name) {
				e.guessed[c.place] = append(e.guessed[c.place], name)
			}
		}
	}
	e.mu.Unlock()
	if !late {
		e.prefetch(names)
	}
}

// forget lets the slots of what was guessed and not chosen go, at the end of the Do.
func (e *Experts[M]) forget(c *routing) {
	c.mu.Lock()
	c.abandoned = true
	c.mu.Unlock()
	e.mu.Lock()
	guessed := e.guessed[c.place]
	delete(e.guessed, c.place)
	e.mu.Unlock()
	if len(guessed) > 0 {
		e.modules.Drop(guessed...)
	}
}

// fitting are as many of the modules as there are slots.
func (e *Experts[M]) fitting(names []string) []string {
	return names[:min(len(names), max(1, e.modules.o.Slots))]
}

// prefetch begins the copies of the modules.
func (e *Experts[M]) prefetch(names []string) {
	for _, name := range names {
		e.modules.prefetchNow(name)
	}
}

// abandon gives up what was prefetched for a Do that has ended before its Run.
func (e *Experts[M]) abandon(x *cgotorch.Exec, c *routing) {
	e.mu.Lock()
	open := e.open[c.place] == c
	if open {
		delete(e.open, c.place)
	}
	e.mu.Unlock()
	if !open {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandoned = true
	defer c.copied(x)
	if c.acted {
		e.modules.Drop(e.chosen(c.layer, c.sent.route.Experts)...)
	}
}

// Stats returns the counts since the Experts were made; those of copies are the Modules'.
func (e *Experts[M]) Stats() ExpertsStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Close ends the goroutine, when what is on its way has arrived. A Run that is to follow finds what has arrived. The Modules stay open. Closing twice does nothing.
func (e *Experts[M]) Close() error {
	if !e.routes.close() {
		return e.routes.aside.Close() // where a Do held it
	}
	return e.routes.free()
}
