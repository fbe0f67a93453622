package weights

import (
	"errors"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestRoutes(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		arrived := make(chan *route)
		var q *routes
		q = must.Get(newRoutes(d, ExpertsOptions{Tokens: 8, Poll: time.Microsecond}, func(r *route) {
			select {
			case arrived <- r:
			case <-q.dropped:
			}
		}))(t)
		defer q.close()
		send := func(x *cgotorch.Exec, layer int, ids *cgotorch.Tensor) { q.send(x, "routes.send", ids, false, layer) }
		s := torchtest.NewStream(t, d)
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			var ids []*cgotorch.Tensor
			for layer := range 20 {
				ids = append(ids, x.Full(cgotorch.Int64, layer+100, int64(layer+1)))
			}
			for range 2 { // the first round page-locks memory for the routes of more than 8 tokens
				torchtest.Sleep(x, 20*time.Millisecond) // so that the host looks before the copy runs
				for layer := range 20 {
					send(x, layer, ids[layer])
				}
				x = x.NoWaits()
			}
		})
		for i := range 40 {
			layer, r := i%20, <-arrived
			if r.tag != layer || r.err != nil || len(r.experts) != layer+1 || r.experts[layer] != int64(layer+100) {
				t.Fatalf("got %v of layer %v (%v) as number %d", r.experts, r.tag, r.err, layer)
			}
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) { send(x, 0, x.Zeros(cgotorch.Int64, 1)) })
		if err := errors.Join(q.close(), q.close()); err != nil { // while a route is sent that no goroutine receives
			t.Error(err)
		}
		select {
		case r := <-arrived:
			t.Errorf("a route after close: %v", r.experts)
		default:
		}
	})
}

// A send that fails gives its piece of memory back.
func TestRoutes_Send_FailedKeepsPiece(t *testing.T) {
	torchtest.CheckLeaks(t)
	q := must.Get(newRoutes(cgotorch.CPU, ExpertsOptions{}, func(*route) {}))(t)
	defer q.close()
	s := torchtest.NewStream(t, cgotorch.CPU)
	for i := range 200 {
		err := s.Do(func(x *cgotorch.Exec) error {
			ids := x.Zeros(cgotorch.Int64, 4, 2)
			q.send(x, "routes.send", x.Select(ids, 1, 0), false, nil)
			return nil
		})
		if !errors.Is(err, cgotorch.ErrInvalidArgument) {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if len(q.slabs) > 1 {
		t.Errorf("%d slabs page-locked after 200 failures", len(q.slabs))
	}
}
