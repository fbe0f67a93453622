package weights

import (
	"errors"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// ahead has experts of a layer that Fetch has copied before they were picked, while the device
// computed the layer before. They lie in rooms beside the slots, so a wrong one takes the place of
// no other expert. A wrong one has cost time of the bus. So Fetch counts how many are picked.
type ahead struct {
	rooms   []*cgotorch.Tensor // [TableOptions.Ahead, rows, columns], for each matrix
	stream  *cgotorch.Stream   // that copies into them, or nil
	copied  *cgotorch.Event
	free    *cgotorch.Event // behind it the bus and the rooms are free
	layer   int
	experts []int32 // of the layer, in the first rooms

	copies, used int64    // experts that were copied, and those of them that were picked
	since        [2]int64 // both, when shouldCopy judged them last
	pause        int      // Fetches that copy none
}

const (
	triedCopies = 128  // after which shouldCopy judges them
	leastUsed   = 0.97 // of them: a right one saves some 3 % of the time that a wrong one takes
	triedAgain  = 4096 // Fetches after which Fetch copies ahead again
)

// shouldCopy reports whether this Fetch copies ahead, and counts it towards a pause. It judges only
// the copies that a Fetch has looked for.
func (a *ahead) shouldCopy() bool {
	if a.pause > 0 {
		a.pause--
		return false
	}
	done := a.copies - int64(len(a.experts))
	if n := done - a.since[0]; n >= triedCopies {
		if float64(a.used-a.since[1]) < leastUsed*float64(n) {
			a.pause = triedAgain
		}
		a.since = [2]int64{done, a.used}
	}
	return a.pause == 0
}

// addRooms makes the memory of what Fetch copies ahead.
func (t *Table) addRooms(x *cgotorch.Exec) (err error) {
	if t.o.Ahead == 0 {
		return nil
	}
	a := &t.ahead
	if a.stream, err = cgotorch.NewStream(x.Device(), cgotorch.StreamOptions{Name: "experts ahead"}); err != nil {
		return err
	}
	for _, m := range t.o.Matrices {
		a.rooms = append(a.rooms, x.Keep(x.Empty(t.o.DType, int64(t.o.Ahead), m[0], m[1])))
	}
	return nil
}

// close waits for the copies, and frees the memory.
func (a *ahead) close() error {
	if a.stream == nil {
		return nil
	}
	errs := []error{a.stream.Synchronize(), a.copied.Close(), a.free.Close(), a.stream.Close()}
	for _, room := range a.rooms {
		errs = append(errs, room.Close())
	}
	*a = ahead{copies: a.copies, used: a.used}
	return errors.Join(errs...)
}

// settle lets x's stream wait for what is copied. The rooms have no experts then.
func (a *ahead) settle(x *cgotorch.Exec) {
	if len(a.experts) > 0 {
		x.Wait(a.copied) //edge:room-copied TestTable_Fetch_Ahead checked
	}
	a.experts = nil
}

// copyAhead enqueues copies of experts that a layer will probably pick, unless they are in slots.
// They come behind what x's stream has enqueued.
func (t *Table) copyAhead(x *cgotorch.Exec, layer int, experts, places []int32) {
	a, missing := &t.ahead, []int32(nil)
	for _, e := range experts {
		if e >= 0 && int(e) < t.o.Experts && places[e] < 0 && !slices.Contains(missing, e) && len(missing) < t.o.Ahead {
			missing = append(missing, e)
		}
	}
	if len(missing) == 0 {
		return
	}
	a.free.Close()
	a.free = x.Record()
	y := x.On(a.stream)
	y.Wait(a.free) //edge:room-free TestTable_Fetch_Ahead checked
	y.Tidy(func() *cgotorch.Tensor {
		for room, e := range missing {
			copyExpert(y, a.rooms, room, t.layers[layer].Experts, int(e))
		}
		return nil
	})
	a.copied.Close()
	a.copied = y.Record()
	a.layer, a.experts = layer, missing
	a.copies += int64(len(missing))
	x.AtEnd(func() { a.settle(x) }) // so that later work may write experts
}

// copyExpert enqueues the copy of the matrices of one expert.
func copyExpert(x *cgotorch.Exec, to []*cgotorch.Tensor, at int, from []*cgotorch.Tensor, expert int) {
	for i := range to {
		x.CopyInPlace(x.Narrow(to[i], 0, at, 1), x.Narrow(from[i], 0, expert, 1))
	}
}
