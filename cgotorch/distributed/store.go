package distributed

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// A store is a connection to the store of the run, with the keys of this start of the run.
//
// If the process that serves the store is stopped, a call of LibTorch's waits for ever. So the
// calls run on a goroutine of the connection, and the caller waits only as long as its context
// lasts.
type store struct {
	h       *ct.Store
	prefix  string
	address string // of this machine, as the store's machine sees it
	server  string // who serves the store, for messages

	calls chan func()
	quit  chan struct{} // closed by close, or when nobody waits for the connection any more
	ended chan struct{} // closed when the goroutine has ended
	once  sync.Once     // closes quit
}

// openStore connects to the store of the run. Rank 0 serves it, unless the launcher does.
func openStore(ctx context.Context, p place, timeout time.Duration) (*store, error) {
	listener := -1
	if p.rank == 0 && !p.served {
		var err error
		if listener, err = listen(ctx, p); err != nil {
			return nil, err
		}
	}
	address, err := reach(ctx, p)
	if err != nil {
		if listener >= 0 {
			closeSocket(listener)
		}
		return nil, err
	}
	s := &store{prefix: "streamtorch/", address: address, server: "rank 0"}
	if p.served {
		s.server = "the launcher"
	}
	if p.attempt != "" && p.attempt != "0" {
		s.prefix += p.attempt + "/"
	}
	return s, s.connect(ctx, p, listener, timeout)
}

// connect connects to the store, which a listening socket serves if there is one.
func (s *store) connect(ctx context.Context, p place, listener int, timeout time.Duration) error {
	port, err := strconv.Atoi(p.port)
	if err != nil {
		return err
	}
	s.calls, s.quit, s.ended = make(chan func()), make(chan struct{}), make(chan struct{})
	connected := make(chan error, 1)
	go func() {
		defer close(s.ended)
		err := inside.Core.Check("distributed.Join", ct.StoreNew(p.host, int32(port), int32(listener), milliseconds(timeout), &s.h))
		connected <- err
		if err != nil {
			return
		}
		defer ct.StoreFree(s.h)
		for {
			select {
			case call := <-s.calls:
				call()
			case <-s.quit:
				return
			}
		}
	}()
	select {
	case err := <-connected:
		return err
	case <-ctx.Done():
		s.once.Do(func() { close(s.quit) })
		return fmt.Errorf("the store of the run at %s has taken the connection and does not answer: rank 0 has stopped or ended, or MASTER_PORT is the port of another program: %w", p.address(), context.Cause(ctx))
	}
}

// again returns a second connection, which does not wait for calls of the first.
func (s *store) again(ctx context.Context, p place, timeout time.Duration) (*store, error) {
	other := &store{prefix: s.prefix, address: s.address, server: s.server}
	return other, other.connect(ctx, p, -1, timeout)
}

func milliseconds(d time.Duration) int32 {
	return int32(min(max(d.Milliseconds(), 1), 1<<31-1))
}

// do runs a call on the connection's goroutine. It waits until the call or ctx ends.
func (s *store) do(ctx context.Context, call func() *ct.Status) error {
	done := make(chan error, 1)
	select {
	case s.calls <- func() { done <- inside.Core.Check("distributed.store", call()) }:
	case <-s.quit:
		return cgotorch.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *store) set(ctx context.Context, key, value string) error {
	return s.do(ctx, func() *ct.Status { return ct.StoreSet(s.h, s.prefix+key, value) })
}

func (s *store) delete(ctx context.Context, key string) error {
	return s.do(ctx, func() *ct.Status { return ct.StoreDelete(s.h, s.prefix+key) })
}

// get waits for the store, and not for the key.
func (s *store) get(ctx context.Context, key string) (value string, found bool, err error) {
	type answer struct {
		value string
		found bool
	}
	answers := make(chan answer, 1)
	err = s.do(ctx, func() *ct.Status {
		value, found, status := ct.StoreGet(s.h, s.prefix+key)
		answers <- answer{value, found}
		return status
	})
	if err != nil {
		return "", false, err
	}
	a := <-answers
	return a.value, a.found, nil
}

// await waits until the key is there.
func (s *store) await(ctx context.Context, key string) (string, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		value, found, err := s.get(ctx, key)
		if err != nil || found {
			return value, err
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// close ends the connection. If a call waits for a process that is stopped, it leaves the
// connection to the end of this process.
func (s *store) close() error {
	if s == nil {
		return nil
	}
	s.once.Do(func() { close(s.quit) })
	select {
	case <-s.ended:
	case <-time.After(time.Second):
	}
	return nil
}
