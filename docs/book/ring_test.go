package book

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// cut: slot
// slot is one place of the ring.
type slot struct {
	host   *cgotorch.HostSlab // page-locked for a GPU, so that its copy does not wait
	in     *cgotorch.Tensor   // the memory on the device
	copied *cgotorch.Event    // the copy out of host is done; nil before the first one, and nil is done
	used   *cgotorch.Event    // the work that reads in is done
}

// load fills a slot with step's values, and begins their copy.
func (s *slot) load(copies *cgotorch.Stream, step int) {
	cgotorch.Check(s.host.Await(s.copied)) // the host waits until it may write again
	s.host.Touch(true)                     // tells the stream checker that it writes now
	values := cgotorch.View[float32](s.host)
	for i := range values {
		values[i] = float32(step) // or read a file
	}
	_, copied, err := copies.CopyFrom([]*cgotorch.Event{s.used}, cgotorch.HostCopy{To: s.in, From: s.host.Bytes()})
	cgotorch.Check(err)
	s.copied = copied
}

// end: slot

func Example_ring() {
	// cut: ring
	const size, steps = 1 << 10, 6
	device := cgotorch.CPU // cgotorch.ParseDevice("auto"): a GPU if there is one
	compute := cgotorch.DefaultStream(device)
	copies := cgotorch.Must(cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "copies"}))
	defer copies.Close()
	var total *cgotorch.Tensor
	var ring [2]slot // one is filled while the other is read
	cgotorch.Check(compute.Do(func(x *cgotorch.Exec) error {
		total = x.Keep(x.Zeros(cgotorch.Float32))
		for i := range ring {
			ring[i].host = cgotorch.Must(cgotorch.NewHostSlab(device, 4*size))
			ring[i].in = x.Keep(x.Empty(cgotorch.Float32, size))
			ring[i].used = x.Record()
		}
		return nil
	}))

	ring[0].load(copies, 0)
	for step := range steps {
		if step+1 < steps {
			ring[(step+1)%2].load(copies, step+1) // copies while the work of this step runs
		}
		s := &ring[step%2]
		cgotorch.Check(compute.Do(func(x *cgotorch.Exec) error {
			x.Wait(s.copied) // on the device; the host goes on
			x.AddInPlace(total, x.Mean(s.in))
			s.used = x.Record() // the next copy into this slot waits for it
			return nil
		}))
	}
	cgotorch.Check(compute.Do(func(x *cgotorch.Exec) error {
		fmt.Println("the sum of the means:", x.Item(total)) // waits for compute, which has waited for the copies
		return nil
	}))
	for _, s := range ring {
		s.in.Close()
		s.host.Close() // only now: no copy reads it any more
	}
	total.Close()
	// end: ring

	// Output: the sum of the means: 15
}
