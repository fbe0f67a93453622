package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// ErrNotFound means that the Repository has no model of this name and version.
var ErrNotFound = errors.New("no such model")

// ErrNotLoaded means that a model is known and not ready: see [Repository.Ready].
var ErrNotLoaded = errors.New("the model is not loaded")

// Model is a Batcher with its weights.
type Model struct {
	*Batcher
	Name, Version string       // are set by the Repository
	Labels        []string     // names of the classes; may be empty
	Weights       int64        // bytes of the weights on the device
	Free          func() error // frees the weights, after the Batcher's Close; may be nil
}

func (m *Model) close() error {
	err := m.Batcher.Close()
	if m.Free != nil {
		err = errors.Join(err, m.Free())
	}
	return err
}

// RepositoryOptions are the options of [NewRepository].
type RepositoryOptions struct {
	// Memory bounds the bytes of all models: their weights and what [Batcher.Memory] tells. A load
	// beyond it unloads the models that were not used for longest. They stay ready, and are loaded
	// again when they are used. The first load of a model needs its memory before others are
	// unloaded. 0 means no bound.
	Memory int64
	Log    func(text string) // is told of each load and unload; may be nil
}

// Repository has models by name and version. Its methods may be called from any goroutine. Each
// model has streams of its own and at most two batches on the device, so none keeps the device for
// itself.
type Repository struct {
	o       RepositoryOptions
	turn    chan struct{} // has a value while a model is loaded or unloaded
	lost    chan struct{}
	loseOne sync.Once

	mu      sync.Mutex
	entries []*entry // by name, then by version
	closed  bool
}

// entry is a model that the Repository knows.
type entry struct {
	name, version string
	load          func() (*Model, error)
	wanted        bool // Use loads the model
	bytes         int64
	used          time.Time
	open          *openModel // nil if the model is not loaded
	err           error      // why the last load failed, or nil
	loading       bool
}

// openModel is a model in memory.
type openModel struct {
	model   *Model
	users   int
	closing bool          // no Use begins
	idle    chan struct{} // closed when closing is true and nobody uses the model
}

// NewRepository returns a Repository without models. The caller must close it.
func NewRepository(o RepositoryOptions) *Repository {
	return &Repository{o: o, turn: make(chan struct{}, 1), lost: make(chan struct{})}
}

// Add makes a model known, and does not load it. The function `load` is called for each load. Add
// fails with [cgotorch.ErrInvalidArgument] if the Repository has this name and version.
func (r *Repository) Add(name, version string, load func() (*Model, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, found := slices.BinarySearchFunc(r.entries, entry{name: name, version: version}, func(a *entry, b entry) int { return compare(a, &b) })
	if found || name == "" || version == "" || load == nil {
		return fmt.Errorf("serve: Add: the model %q, version %q, is there already, or has no name, version or function: %w", name, version, cgotorch.ErrInvalidArgument)
	}
	r.entries = slices.Insert(r.entries, at, &entry{name: name, version: version, load: load})
	return nil
}

// compare orders by name, then by version: numbers before texts, and by their value.
func compare(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(number(a.version), number(b.version)), cmp.Compare(a.version, b.version))
}

func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 63)
	if err != nil {
		return 1 << 63
	}
	return n
}

// find returns a model. Without a version it is the last one that `fits`. The caller holds r.mu.
func (r *Repository) find(name, version string, fits func(e *entry) bool) (*entry, error) {
	err := ErrNotFound
	for _, e := range slices.Backward(r.entries) {
		if e.name == name && (version == "" || e.version == version) {
			if fits(e) {
				return e, nil
			}
			if err == ErrNotFound {
				err = e.notLoaded()
			}
		}
	}
	if r.closed {
		return nil, r.isClosed()
	}
	if version == "" {
		return nil, fmt.Errorf("serve: %q: %w", name, err)
	}
	return nil, fmt.Errorf("serve: %q, version %q: %w", name, version, err)
}

// failure returns why the last load has failed, or why the device is lost. The caller holds r.mu.
func (e *entry) failure() error {
	if e.open != nil {
		return e.open.model.Err()
	}
	return e.err
}

// notLoaded returns ErrNotLoaded, with the failure if there is one. The caller holds r.mu.
func (e *entry) notLoaded() error {
	if failure := e.failure(); failure != nil {
		return fmt.Errorf("%w: %w", ErrNotLoaded, failure)
	}
	return ErrNotLoaded
}

// ready reports whether Use answers with the model. The caller holds r.mu.
func (r *Repository) ready(e *entry) bool {
	failure := e.failure()
	return e.wanted && !r.closed && (failure == nil || errors.Is(failure, cgotorch.ErrOutOfMemory))
}

// Ready returns nil if [Repository.Use] answers with the model, and the reason otherwise. Without a
// version it asks for any. A model is ready after a Load that has succeeded, until its Unload. If
// it was unloaded for its memory, and there is no memory to load it again, it stays ready: the next
// use tries again. After another failure of a load it is not tried, and not ready until Load
// succeeds. A model whose device is lost is not ready.
//
// The reason is [ErrNotFound], or [ErrNotLoaded] with the failure, or [cgotorch.ErrClosed].
func (r *Repository) Ready(name, version string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.find(name, version, r.ready)
	return err
}

// Load loads a model, if it is not loaded. Without a version it loads the last one. New files of a
// loaded version are not read: Unload it first. Load waits for the load, or until ctx ends before
// the load begins. A load that has begun cannot be stopped. Load fails as the model's function
// does, with [cgotorch.ErrOutOfMemory] if the model alone is beyond RepositoryOptions.Memory, and
// with [cgotorch.ErrDeviceLost] if the model is loaded and its device is lost. The error for a
// panic of the function wraps the panic's value, and its text does not show it.
func (r *Repository) Load(ctx context.Context, name, version string) error {
	r.mu.Lock()
	e, err := r.find(name, version, func(*entry) bool { return !r.closed })
	loaded := err == nil && e.open != nil && e.failure() == nil
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if loaded {
		r.log("%s, version %s, is loaded already; unload it first, or add a version", e.name, e.version)
	}
	return r.open(ctx, e, func() bool { return true })
}

// take waits for the turn to load or unload.
func (r *Repository) take(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open loads a model, if it is still asked for and is not loaded.
func (r *Repository) open(ctx context.Context, e *entry, asked func() bool) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	defer func() { <-r.turn }()
	r.mu.Lock()
	switch {
	case r.closed:
		r.mu.Unlock()
		return r.isClosed()
	case e.open != nil:
		e.wanted = true
		err := e.failure()
		r.mu.Unlock()
		return err
	case !asked():
		r.mu.Unlock()
		return nil
	case !slices.Contains(r.entries, e): // a Remove had the turn before
		r.mu.Unlock()
		return fmt.Errorf("serve: %q, version %q: %w", e.name, e.version, ErrNotFound)
	}
	e.loading = true
	bytes := e.bytes // of the load before
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		e.loading = false
	}()

	m, bytes, err := r.load(ctx, e, bytes)
	if errors.Is(err, cgotorch.ErrDeviceLost) {
		r.loseOne.Do(func() { close(r.lost) })
	}
	r.mu.Lock()
	if err == nil || context.Cause(ctx) == nil { // a load that was left early tells nothing of the model
		e.err = err
	}
	if err == nil {
		e.wanted, e.bytes, e.used = true, bytes, time.Now()
		e.open = &openModel{model: m, idle: make(chan struct{})}
		go r.watch(e.open)
	}
	r.mu.Unlock()
	if p := (*panics.Hidden)(nil); errors.As(err, &p) {
		r.log("%s, version %s, is not loaded: %v", e.name, e.version, p.Cause)
	} else if err != nil {
		r.log("%s, version %s, is not loaded: %v", e.name, e.version, err)
	} else {
		r.log("%s, version %s, is loaded: %d bytes", e.name, e.version, bytes)
	}
	return err
}

// load calls the model's function, and makes room for the model. `bytes` is what it is known to
// take, or 0. The caller holds r.turn.
func (r *Repository) load(ctx context.Context, e *entry, bytes int64) (*Model, int64, error) {
	if err := r.makeRoom(ctx, e, bytes); err != nil {
		return nil, 0, err
	}
	ctx = context.WithoutCancel(ctx) // what is loaded now is not thrown away
	m, err := e.call()
	for errors.Is(err, cgotorch.ErrOutOfMemory) && r.unloadOldest(ctx, e) == nil {
		m, err = e.call()
	}
	if err == nil && (m == nil || m.Batcher == nil) {
		err = fmt.Errorf("serve: the load of %q has no Batcher: %w", e.name, cgotorch.ErrInvalidArgument)
	}
	if err != nil {
		return nil, 0, err
	}
	m.Name, m.Version = e.name, e.version
	if bytes, err = m.Memory(); err == nil {
		bytes += m.Weights
		err = r.makeRoom(ctx, e, bytes)
	}
	if err != nil {
		return nil, 0, errors.Join(err, m.close())
	}
	return m, bytes, nil
}

// call calls the model's function, and returns its panic as an error.
func (e *entry) call() (m *Model, err error) {
	panics.Run("the load of a Repository", func() (err error) {
		m, err = e.load()
		return err
	}, func(failed error) { err = failed })
	if p := (*panics.Panic)(nil); errors.As(err, &p) {
		err = &panics.Hidden{Text: fmt.Sprintf("serve: the load of %q, version %q, has panicked", e.name, e.version), Cause: p}
	}
	return m, err
}

func (r *Repository) isClosed() error {
	return fmt.Errorf("serve: the Repository is %w", cgotorch.ErrClosed)
}

// watch closes r.lost if the model's device is lost before the model is unloaded.
func (r *Repository) watch(o *openModel) {
	select {
	case <-o.model.Lost():
		r.loseOne.Do(func() { close(r.lost) })
	case <-o.idle:
	}
}

// makeRoom unloads other models until `bytes` more fit the bound. The caller holds r.turn.
func (r *Repository) makeRoom(ctx context.Context, e *entry, bytes int64) error {
	if r.o.Memory > 0 && bytes > r.o.Memory {
		return fmt.Errorf("serve: %s, version %s, takes %d bytes, and RepositoryOptions.Memory is %d: %w", e.name, e.version, bytes, r.o.Memory, cgotorch.ErrOutOfMemory)
	}
	for r.o.Memory > 0 && r.Memory()+bytes > r.o.Memory {
		if err := r.unloadOldest(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// unloadOldest unloads the model that was not used for longest, and is not e. The caller holds
// r.turn.
func (r *Repository) unloadOldest(ctx context.Context, e *entry) error {
	r.mu.Lock()
	var oldest *entry
	for _, other := range r.entries {
		if other != e && other.open != nil && (oldest == nil || other.used.Before(oldest.used)) {
			oldest = other
		}
	}
	r.mu.Unlock()
	if oldest == nil {
		return fmt.Errorf("serve: no other model can be unloaded: %w", cgotorch.ErrOutOfMemory)
	}
	return r.close(ctx, oldest)
}

// close waits until nobody uses the model, and frees it. If ctx ends first, the model stays. The
// caller has the turn.
func (r *Repository) close(ctx context.Context, e *entry) error {
	r.mu.Lock()
	o := e.open
	o.closing = true
	if o.users == 0 {
		close(o.idle)
	}
	r.mu.Unlock()
	select {
	case <-o.idle:
	case <-ctx.Done():
		r.mu.Lock()
		used := o.users > 0
		o.closing = !used
		r.mu.Unlock()
		if used {
			return context.Cause(ctx)
		}
	}
	err := o.model.close()
	r.mu.Lock()
	e.open = nil
	r.mu.Unlock()
	r.log("%s, version %s, is unloaded", e.name, e.version)
	return err
}

// Unload refuses new uses of a model, waits until the present ones have ended, and frees it.
// Without a version it unloads all versions. The failure of a load is forgotten. Unload fails with
// [ErrNotLoaded], and with the cause of ctx's end: the model then stays loaded.
func (r *Repository) Unload(ctx context.Context, name, version string) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	defer func() { <-r.turn }()
	var failures []error
	for unloaded := 0; ; unloaded++ {
		r.mu.Lock()
		e, err := r.find(name, version, func(e *entry) bool { return e.wanted || e.err != nil })
		r.mu.Unlock()
		if err != nil && unloaded == 0 {
			return err
		}
		if err != nil {
			return errors.Join(failures...)
		}
		if err := r.unload(ctx, e); err != nil {
			failures = append(failures, err)
			if context.Cause(ctx) != nil { // then a version in use stays
				return errors.Join(failures...)
			}
		}
	}
}

// unload closes a model that is loaded, and Use does not load it again. If it fails, the model
// stays as it was. The caller holds r.turn.
func (r *Repository) unload(ctx context.Context, e *entry) error {
	r.mu.Lock()
	e.wanted, e.err = false, nil
	loaded := e.open != nil
	r.mu.Unlock()
	if !loaded {
		return nil
	}
	err := r.close(ctx, e)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		e.wanted = e.open != nil
	}
	return err
}

// Remove unloads a version, if it is loaded, and forgets it. It waits as Unload does. It fails with
// [ErrNotFound], and with the cause of ctx's end: the version then stays known.
func (r *Repository) Remove(ctx context.Context, name, version string) error {
	if version == "" {
		return fmt.Errorf("serve: Remove: %q: no version is given; name the version to forget: %w", name, ErrNotFound)
	}
	if err := r.take(ctx); err != nil {
		return err
	}
	defer func() { <-r.turn }()
	r.mu.Lock()
	e, err := r.find(name, version, func(*entry) bool { return true })
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if err := r.unload(ctx, e); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = slices.DeleteFunc(r.entries, func(other *entry) bool { return other == e })
	return nil
}

// Use calls fn with a model, which stays loaded until fn returns. Without a version it is the last
// version that is ready. A model that was unloaded for its memory is loaded again first. Use fails
// as [Repository.Ready] and Load fail, and as fn fails. The function fn must not call Use, Load or
// Unload of a model that is not loaded: it could wait for itself.
func (r *Repository) Use(ctx context.Context, name, version string, fn func(m *Model) error) error {
	for {
		r.mu.Lock()
		e, err := r.find(name, version, r.ready)
		if err != nil {
			r.mu.Unlock()
			return err
		}
		if o := e.open; o != nil && !o.closing {
			o.users++
			e.used = time.Now()
			r.mu.Unlock()
			defer r.give(e, o)
			return fn(o.model)
		}
		r.mu.Unlock()
		if err := r.open(ctx, e, func() bool { return r.ready(e) }); err != nil {
			return e.notReloaded(ctx, err)
		}
	}
}

// notReloaded tells the caller of Use that a load has failed. The reason alone could be of a kind
// that blames the caller, such as ErrInvalidArgument for a file of the model.
func (e *entry) notReloaded(ctx context.Context, err error) error {
	if context.Cause(ctx) != nil || errors.Is(err, cgotorch.ErrClosed) || errors.Is(err, ErrNotFound) || errors.As(err, new(*panics.Hidden)) {
		return err
	}
	return fmt.Errorf("serve: %q, version %q: %w: %w", e.name, e.version, ErrNotLoaded, err)
}

func (r *Repository) give(e *entry, o *openModel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.used = time.Now()
	o.users--
	if o.users == 0 && o.closing {
		close(o.idle)
	}
}

// Predict is [Batcher.Predict] of a model, as [Repository.Use] finds it.
func (r *Repository) Predict(ctx context.Context, name, version string, inputs ...Array) (out []Array, err error) {
	err = r.Use(ctx, name, version, func(m *Model) error {
		out, err = m.Predict(ctx, inputs...)
		return err
	})
	return out, err
}

// ModelInfo tells of one model of a Repository.
type ModelInfo struct {
	Name, Version string
	Ready         bool  // as [Repository.Ready] tells
	Loaded        bool  // the model is in memory
	Loading       bool  // the model is being loaded
	Bytes         int64 // its memory, at the last load
	Err           error // why the last load failed, or why the device is lost, or nil
	Stats         Stats // since the load; zero if the model is not loaded
}

// List returns the known models, by name and then by version.
func (r *Repository) List() []ModelInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]ModelInfo, len(r.entries))
	for i, e := range r.entries {
		list[i] = ModelInfo{Name: e.name, Version: e.version, Ready: r.ready(e), Loaded: e.open != nil, Loading: e.loading, Bytes: e.bytes, Err: e.failure()}
		if e.open != nil {
			list[i].Stats = e.open.model.Stats()
		}
	}
	return list
}

// Memory returns the bytes of all loaded models.
func (r *Repository) Memory() (bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.open != nil {
			bytes += e.bytes
		}
	}
	return bytes
}

// Lost returns a channel that is closed when the device of a model is lost. The process then
// should end with an error, so that its supervisor starts it again.
func (r *Repository) Lost() <-chan struct{} { return r.lost }

// Close refuses new uses, waits for the present ones, and unloads all models. A second Close does
// nothing.
func (r *Repository) Close() error {
	if r == nil {
		return nil
	}
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.mu.Lock()
	r.closed = true
	entries := slices.Clone(r.entries)
	r.mu.Unlock()
	var errs []error
	for _, e := range entries {
		r.mu.Lock()
		loaded := e.open != nil
		e.wanted = false
		r.mu.Unlock()
		if loaded {
			errs = append(errs, r.close(context.Background(), e))
		}
	}
	return errors.Join(errs...)
}

func (r *Repository) log(format string, args ...any) {
	if r.o.Log != nil {
		r.o.Log("serve: " + fmt.Sprintf(format, args...))
	}
}
