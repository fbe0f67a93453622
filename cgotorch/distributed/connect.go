package distributed

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// joinGloo makes the group of Gloo. It waits for the other ranks. If it gives up, it leaves the
// call of LibTorch's to its end.
func (g *Group) joinGloo(ctx context.Context) error {
	prefix := g.store.prefix + "gloo"
	if slices.Contains(g.foreign, true) {
		prefix = "default_pg/0//cpu/" // the keys of torch.distributed's first group
	}
	var h *ct.Group
	var over atomic.Bool // the call has ended, or nobody waits for it any more
	err := g.store.do(ctx, func() *ct.Status {
		status := ct.GroupGloo(g.store.h, prefix, g.store.address, int32(g.rank), int32(g.world), milliseconds(g.timeout), flag(g.comparesCalls()), &h)
		if !over.CompareAndSwap(false, true) {
			ct.GroupFree(h)
		}
		return status
	})
	switch {
	case err == nil:
		g.setHandle(h)
		return nil
	case !over.CompareAndSwap(false, true) && h != nil: // ctx has ended just after the call
		ct.GroupFree(h)
	}
	if ctx.Err() == nil {
		err = errors.New(reason(g.explain(err)))
	}
	return fmt.Errorf("the ranks have not connected: %w", err)
}

// setHandle gives the group its handle, which a failure of the group aborts.
func (g *Group) setHandle(h *ct.Group) {
	g.state.Lock()
	defer g.state.Unlock()
	g.h = h
	if g.err != nil {
		ct.GroupAbort(h)
	}
}

// joinNCCL makes the group of NCCL. It waits for the other ranks.
func (g *Group) joinNCCL(ctx context.Context) error {
	var id ct.GroupID
	if g.rank == 0 {
		if err := inside.Core.Check("distributed.Join", ct.GroupIDNew(&id)); err != nil {
			return err
		}
		if err := g.store.set(ctx, "nccl", base64.StdEncoding.EncodeToString(id.Bytes[:])); err != nil {
			return err
		}
	} else {
		text, err := g.store.await(ctx, "nccl")
		if err != nil {
			return err
		}
		bytes, err := base64.StdEncoding.DecodeString(text)
		if err != nil || copy(id.Bytes[:], bytes) != len(id.Bytes) {
			return errors.New("rank 0 has given no name of a group of NCCL")
		}
	}
	var h *ct.Group
	if err := inside.Core.Check("distributed.Join", ct.GroupNCCL(inside.Core.Device(g.device), &id, int32(g.rank), int32(g.world), &h)); err != nil {
		return err
	}
	g.setHandle(h)
	for {
		var ready int32
		if err := inside.Core.Check("distributed.Join", ct.GroupReady(g.h, &ready)); err != nil || ready != 0 {
			return err
		}
		select {
		case <-ctx.Done():
			ct.GroupAbort(g.h)
			return fmt.Errorf("NCCL has not connected the ranks (NCCL_DEBUG=INFO tells more; NCCL_SOCKET_IFNAME names the network interface): %w", context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// allConnected waits until all ranks have connected. A rank that left before would break the
// connections of the others while they make them.
func (g *Group) allConnected(ctx context.Context) error {
	key := func(rank int) string { return fmt.Sprint("connected/", rank) }
	if err := g.store.set(ctx, key(g.rank), "yes"); err != nil {
		return err
	}
	for i, name := range g.names {
		if g.foreign[i] {
			continue
		}
		if _, err := g.store.await(ctx, key(i)); err != nil {
			return fmt.Errorf("%s has not connected: %w", name, err)
		}
	}
	g.monitor.connected.Store(true)
	return nil
}
