package streams

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// pairs returns pairs of devices between which a tensor is copied. It has all pairs of the
// machine's devices, at most two of them GPUs. Each device is also paired with itself.
func pairs() [][2]cgotorch.Device {
	all := torchtest.Devices()
	if n, _ := cgotorch.CUDACount(); n > 1 {
		all = append(all, cgotorch.CUDA(1))
	}
	var pairs [][2]cgotorch.Device
	for _, from := range all {
		for _, to := range all {
			pairs = append(pairs, [2]cgotorch.Device{from, to})
		}
	}
	return pairs
}

// A tensor is copied to another device while work that takes some time still runs. The tensor is
// then closed at once and its memory is used again. The copy has the elements that the producer
// wrote.
func TestFromDevice(t *testing.T) {
	for _, pair := range pairs() {
		from, to := pair[0], pair[1]
		t.Run(from.String()+"-"+to.String(), func(t *testing.T) {
			producer, consumer := torchtest.NewStream(t, from), torchtest.NewStream(t, to)
			const n = 1 << 16
			var made *cgotorch.Tensor
			torchtest.DoOn(t, producer, func(x *cgotorch.Exec) {
				torchtest.Sleep(x, 20*time.Millisecond)
				made = x.Keep(x.Transpose(x.View(x.Arange(cgotorch.Float32, 0, n, 1), 256, 256), 0, 1))
			})
			e := record(t, producer)
			defer e.Close()
			must.Do(t, consumer.Wait(e))
			var got []float32
			err := consumer.Do(func(x *cgotorch.Exec) error {
				torchtest.Sleep(x, 20*time.Millisecond)
				copied := x.FromDevice(made)
				strides, want := copied.Strides(), made.Strides()
				if copied.Device() != to || !slices.Equal(strides, want) {
					t.Errorf("on %v with strides %v, want %v with %v", copied.Device(), strides, to, want)
				}
				made.Close()
				if !from.IsCUDA() || to.IsCUDA() {
					got = cgotorch.ToSlice[float32](x, x.Reshape(x.Transpose(copied, 0, 1), n))
				}
				return nil
			})
			if from.IsCUDA() && !to.IsCUDA() {
				if !errors.Is(err, cgotorch.ErrInvalidArgument) {
					t.Errorf("from %v to %v: got %v", from, to, err)
				}
				made.Close()
				return
			}
			must.Do(t, err)
			// The producer's next work may now use the memory.
			torchtest.DoOn(t, producer, func(x *cgotorch.Exec) { x.Zeros(cgotorch.Float32, n) })
			for i, v := range got {
				if v != float32(i) {
					t.Fatalf("element %d is %v", i, v)
				}
			}
		})
	}
}

func TestFromDevice_StridedView(t *testing.T) {
	s := torchtest.NewStream(t, cgotorch.CPU)
	err := s.Do(func(x *cgotorch.Exec) error {
		x.FromDevice(x.Narrow(x.Ones(cgotorch.Float32, 4, 4), 1, 0, 2))
		return nil
	})
	if !errors.Is(err, cgotorch.ErrInvalidArgument) {
		t.Errorf("got %v", err)
	}
}

// A stream copies a tensor from a second stream, and does not wait until the second stream has
// made the tensor. The checker finds this race, on one device and between two devices.
func TestFromDevice_MissingWait(t *testing.T) {
	for _, pair := range pairs() {
		from, to := pair[0], pair[1]
		if from.IsCUDA() != to.IsCUDA() {
			continue // a copy between the host and a GPU waits
		}
		t.Run(from.String()+"-"+to.String(), func(t *testing.T) {
			var found []*cgotorch.StreamRace
			stop := must.Get(cgotorch.CheckStreams(func(r *cgotorch.StreamRace) { found = append(found, r) }))(t)
			defer stop()
			producer, consumer := torchtest.NewStream(t, from), torchtest.NewStream(t, to)
			var made *cgotorch.Tensor
			torchtest.DoOn(t, producer, func(x *cgotorch.Exec) { made = x.Keep(x.Ones(cgotorch.Float32, 4)) })
			defer made.Close()
			torchtest.DoOn(t, consumer, func(x *cgotorch.Exec) { x.FromDevice(made) })
			must.Do(t, errors.Join(producer.Synchronize(), consumer.Synchronize()))
			if len(found) != 1 || found[0].Earlier.Op != "aten::ones" || found[0].Later.Op != "FromDevice" {
				t.Errorf("got %v", found)
			}
		})
	}
}

// A tensor may be freed as soon as FromDevice has returned. FromDevice tells the allocator that
// the copy uses the tensor's memory.
func TestFromDevice_FreedDuringTheCopy(t *testing.T) {
	var found []*cgotorch.StreamRace
	stop := must.Get(cgotorch.CheckStreams(func(r *cgotorch.StreamRace) { found = append(found, r) }))(t)
	defer stop()
	producer, consumer := torchtest.NewStream(t, cgotorch.CPU), torchtest.NewStream(t, cgotorch.CPU)
	var made *cgotorch.Tensor
	torchtest.DoOn(t, producer, func(x *cgotorch.Exec) { made = x.Keep(x.Ones(cgotorch.Float32, 4)) })
	e := record(t, producer)
	defer e.Close()
	must.Do(t, consumer.Wait(e))
	torchtest.DoOn(t, consumer, func(x *cgotorch.Exec) { x.FromDevice(made); made.Close() })
	if len(found) != 0 {
		t.Errorf("got %v", found)
	}
}

// A stream can wait for an event of another device, in both directions. The time between events
// of different devices is an error.
func TestEvent_BetweenDevices(t *testing.T) {
	if n, err := cgotorch.CUDACount(); n < 2 {
		t.Skip("one device, or none: ", err)
	}
	a, b := torchtest.NewStream(t, cgotorch.CUDA(0)), torchtest.NewStream(t, cgotorch.CUDA(1))
	for _, way := range [][2]*cgotorch.Stream{{a, b}, {b, a}} {
		var first *cgotorch.Event
		torchtest.DoOn(t, way[0], func(x *cgotorch.Exec) {
			torchtest.Sleep(x, 50*time.Millisecond)
			first = x.RecordTiming()
		})
		defer first.Close()
		began := time.Now()
		must.Do(t, way[1].Wait(first))
		var second *cgotorch.Event
		torchtest.DoOn(t, way[1], func(x *cgotorch.Exec) { second = x.RecordTiming() })
		defer second.Close()
		if done, err := second.Query(); done || err != nil {
			t.Errorf("done %v %v after %v, before the other device's work", done, err, time.Since(began))
		}
		<-second.Done()
		if done, err := first.Query(); !done || err != nil {
			t.Errorf("first: %v %v", done, err)
		}
		if _, err := second.Elapsed(first); !errors.Is(err, cgotorch.ErrInvalidArgument) {
			t.Errorf("Elapsed between devices: got %v", err)
		}
	}
}

// Work and its gradients stay on the second device, even if the thread's current device is the
// first.
func TestStreams_SecondDevice(t *testing.T) {
	if n, err := cgotorch.CUDACount(); n < 2 {
		t.Skip("one device, or none: ", err)
	}
	d := cgotorch.CUDA(1)
	s := torchtest.NewStream(t, d)
	before := must.Get(cgotorch.CUDA(0).Memory())(t)
	must.Do(t, work(s))
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) error {
		w := x.Ones(cgotorch.Float32, 32, 32)
		if err := w.SetRequiresGrad(true); err != nil {
			return err
		}
		x.Backward(x.Sum(x.MatMul(w, w)))
		if g := w.Grad(); g.Device() != d || x.Item(x.Sum(g)) != 2*32*32*32 {
			t.Errorf("gradient on %v", g.Device())
		}
		return nil
	})
	after := must.Get(cgotorch.CUDA(0).Memory())(t)
	if after.Allocated != before.Allocated || after.Allocations != before.Allocations {
		t.Errorf("the first device's memory: %+v, before %+v", after, before)
	}
}
