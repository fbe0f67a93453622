package weights

import (
	"errors"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

var smallTable = TableOptions{Layers: 5, Experts: 6, Matrices: [][2]int64{{4, 8}, {8, 2}}, DType: cgotorch.Float32, Slots: 3, Passes: true}

// tableOf makes a table whose numbers tell their layer, matrix and expert.
func tableOf(t *testing.T, s *cgotorch.Stream, o TableOptions) *Table {
	t.Helper()
	var table *Table
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		table = must.Get(NewTable(x, o))(t)
		for i := range o.Layers {
			for k, all := range table.Layer(i).Experts {
				for e := range o.Experts {
					x.FillInPlace(x.Select(all, 0, e), 100*i+10*k+e)
				}
			}
		}
	})
	t.Cleanup(func() {
		must.Do(t, s.Synchronize())
		must.Do(t, table.Close())
	})
	return table
}

// A pass has the experts of each layer on the device, from slots where they are in one. The copies
// of a layer wait until the one whose memory they take is done.
func TestTablePass(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	s := torchtest.NewStream(t, torchtest.Device())
	table := tableOf(t, s, smallTable)
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		l := table.Layer(2)
		x.CopyInPlace(x.Narrow(l.Places, 0, 0, 9), cgotorch.FromSlice(x, []int32{-1, -1, 1, -1, 0, -1, 4, 2, -1}))
		for _, slots := range l.Slots {
			x.FillInPlace(x.Select(slots, 0, 0), 1004)
			x.FillInPlace(x.Select(slots, 0, 1), 1002)
		}
	})
	for range 3 {
		var reads []*cgotorch.HostRead
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			p := table.Pass(x)
			for i := range smallTable.Layers {
				matrices := p.Experts(x, i)
				torchtest.Sleep(x, time.Millisecond)
				for _, m := range matrices {
					reads = append(reads, x.ReadAsync(x.Select(x.Reshape(m, int64(smallTable.Experts), -1), 1, 0)))
				}
				p.Done(x)
			}
		})
		for n, r := range reads {
			var want []float32
			for e := range smallTable.Experts {
				v := float32(100*(n/2) + 10*(n%2) + e)
				if n/2 == 2 && (e == 2 || e == 4) {
					v = 1000 + float32(e)
				}
				want = append(want, v)
			}
			data := must.Get(r.Bytes())(t)
			if got := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/4); !slices.Equal(got, want) {
				t.Errorf("layer %d, matrix %d: %v, want %v", n/2, n%2, got, want)
			}
			r.Close()
		}
	}
}

// Passes on two streams follow each other, also where one is given up in its middle. The table can
// be closed then, and experts can be changed.
func TestTablePass_GivenUp(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	streams := []*cgotorch.Stream{torchtest.NewStream(t, torchtest.Device()), torchtest.NewStream(t, torchtest.Device())}
	table := tableOf(t, streams[0], smallTable)
	must.Do(t, streams[0].Synchronize())
	for round := range 6 {
		s := streams[round%2]
		var reads []*cgotorch.HostRead
		err := s.Do(func(x *cgotorch.Exec) error {
			p := table.Pass(x)
			for i := range smallTable.Layers {
				m := p.Experts(x, i)[0]
				torchtest.Sleep(x, time.Millisecond)
				reads = append(reads, x.ReadAsync(x.Select(x.Reshape(m, -1), 0, 0)))
				if round%3 == 2 && i == 1 {
					return errors.New("given up")
				}
				p.Done(x)
			}
			return nil
		})
		if (err != nil) != (round%3 == 2) {
			t.Fatal(err)
		}
		for i, r := range reads {
			if got := must.Get(r.Item())(t); got != float64(100*i) {
				t.Errorf("round %d: layer %d begins with %v, want %v", round, i, got, 100*i)
			}
			r.Close()
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) { x.AddScalarInPlace(table.Layer(0).Experts[0], 0) })
		must.Do(t, s.Synchronize())
	}
}

// A pass that is used in another order is refused, and so is a second one beside it.
func TestTablePass_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, torchtest.Device())
	without := smallTable
	without.Passes = false
	table, other := tableOf(t, s, smallTable), tableOf(t, s, without)
	for _, c := range []struct {
		kind error
		text string
		use  func(x *cgotorch.Exec)
	}{
		{ErrInvalidOptions, "TableOptions.Passes", func(x *cgotorch.Exec) { other.Pass(x) }},
		{cgotorch.ErrInvalidArgument, "layer 2 of a pass that is at layer 0 of 5", func(x *cgotorch.Exec) { table.Pass(x).Experts(x, 2) }},
		{cgotorch.ErrInvalidArgument, "layer -1 of a pass", func(x *cgotorch.Exec) { table.Pass(x).Experts(x, -1) }},
		{cgotorch.ErrInvalidArgument, "call Experts(x, 0) first", func(x *cgotorch.Exec) { table.Pass(x).Done(x) }},
		{cgotorch.ErrInvalidArgument, "layer 0 of a pass is in use", func(x *cgotorch.Exec) {
			p := table.Pass(x)
			p.Experts(x, 0)
			p.Experts(x, 0)
		}},
		{ErrBusy, "another pass runs", func(x *cgotorch.Exec) {
			table.Pass(x)
			table.Pass(x)
		}},
		{cgotorch.ErrInvalidArgument, "at layer 5 of 5", func(x *cgotorch.Exec) {
			p := table.Pass(x)
			for i := range smallTable.Layers {
				p.Experts(x, i)
				p.Done(x)
			}
			p.Experts(x, 5)
		}},
	} {
		err := s.Do(func(x *cgotorch.Exec) error {
			c.use(x)
			return nil
		})
		torchtest.WantError(t, err, c.kind, c.text)
	}
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) { table.Pass(x).Experts(x, 0) })
}

// The places of a table begin empty, and Forget empties them. Experts lie in the memory of slabs.
func TestTable(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	s := torchtest.NewStream(t, torchtest.Device())
	o := smallTable
	o.Passes = false
	table := tableOf(t, s, o)
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		empty := []int32{-1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0}
		l := table.Layer(4)
		for range 2 {
			if got := cgotorch.ToSlice[int32](x, l.Places); !slices.Equal(got, empty) {
				t.Errorf("places are %v, want %v", got, empty)
			}
			x.FillInPlace(l.Places, 1)
			table.Forget(x)
		}
		x.CopyInPlace(l.Counts, cgotorch.FromSlice(x, []int64{5, 7}))
		want := TableStats{Hits: 5, Misses: 7, BusBytes: 7 * 192, HostBytes: 5 * 6 * 192, DeviceBytes: 5 * 3 * 192}
		if got := table.Stats(x); got != want {
			t.Errorf("stats are %+v, want %+v", got, want)
		}
	})
	must.Do(t, s.Synchronize())
	l := table.Layer(3)
	for k, slab := range l.Memory {
		slab.Touch(false)
		numbers := cgotorch.View[float32](slab)
		if got := numbers[len(numbers)-1]; got != float32(305+10*k) {
			t.Errorf("matrix %d ends with %v in host memory", k, got)
		}
	}
}

func TestNewTable_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	for i, change := range []func(o *TableOptions){
		func(o *TableOptions) { o.Layers = 0 },
		func(o *TableOptions) { o.Experts = -1 },
		func(o *TableOptions) { o.Matrices = nil },
		func(o *TableOptions) { o.Matrices = [][2]int64{{4, 0}} },
		func(o *TableOptions) { o.DType = cgotorch.Int32 },
		func(o *TableOptions) { o.Slots = 0 },
		func(o *TableOptions) { o.Slots = 7 },
		func(o *TableOptions) { o.Policy = NextLayer },
		func(o *TableOptions) { o.Ahead = -1 },
		func(o *TableOptions) { o.Ahead = 7 },
	} {
		o := smallTable
		change(&o)
		torchtest.Do(t, torchtest.Device(), func(x *cgotorch.Exec) {
			_, err := NewTable(x, o)
			torchtest.WantError(t, err, ErrInvalidOptions, "weights: a table")
			if err == nil {
				t.Errorf("case %d is taken", i)
			}
		})
	}
	for _, rows := range []int64{1 << 30, 1 << 62} {
		o := smallTable
		o.Matrices = [][2]int64{{rows, 1 << 20}}
		torchtest.Do(t, torchtest.Device(), func(x *cgotorch.Exec) {
			_, err := NewTable(x, o)
			torchtest.WantError(t, err, cgotorch.ErrOutOfMemory, "weights", "of host memory")
		})
	}
}

// A table gets more slots and fewer, and its experts and counts stay.
func TestTable_Resize(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	s := torchtest.NewStream(t, torchtest.Device())
	table := tableOf(t, s, smallTable)
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) { x.FillInPlace(table.Layer(1).Counts, 7) })
	for _, slots := range []int{6, 1, 3} {
		must.Do(t, s.Synchronize())
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			must.Do(t, table.Resize(x, slots, slots > 1))
			torchtest.WantError(t, table.Resize(x, 7, true), ErrInvalidOptions, "7 slots", "6")
			l := table.Layer(3)
			want := slices.Concat(slices.Repeat([]int32{-1}, 6+slots), make([]int32, slots+1))
			if got := cgotorch.ToSlice[int32](x, l.Places); !slices.Equal(got, want) {
				t.Errorf("%d slots: places are %v, want %v", slots, got, want)
			}
			if got := l.Slots[1].Shape(); !slices.Equal(got, []int64{int64(slots), 8, 2}) {
				t.Errorf("%d slots: they are %v", slots, got)
			}
			if got := cgotorch.ToSlice[float32](x, x.Select(l.Experts[0], 0, 4))[0]; got != 304 {
				t.Errorf("%d slots: expert 4 has %v, want 304", slots, got)
			}
			if got := table.Stats(x); got.Hits != 7 || got.Misses != 7 {
				t.Errorf("%d slots: %+v", slots, got)
			}
			if slots > 1 {
				p := table.Pass(x)
				torchtest.WantError(t, table.Resize(x, 2, true), ErrBusy, "a pass runs")
				p.Experts(x, 0)
				p.Done(x)
			}
		})
	}
}

// Fetch fills the slots of the picks that miss, and says so. ByEngine follows the counts.
func TestTable_Fetch(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	s := torchtest.NewStream(t, torchtest.Device())
	table := tableOf(t, s, smallTable)
	l := table.Layer(1)
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		for _, slots := range l.Slots {
			x.FillInPlace(slots, -7)
		}
		picks := cgotorch.FromSlice(x, []int32{1, 3, 3, 0, 0, -1, 2, 0}, 2, 4)
		table.Fetch(x, 1, picks, nil)
		if got := cgotorch.ToSlice[int32](x, picks); !slices.Equal(got, []int32{1, -1, 3, 0, 0, -1, 2, 0}) {
			t.Errorf("the picks are %v, want both in slots", got)
		}
		for i, slots := range l.Slots {
			same := x.Item(x.All(x.Eq(x.Select(slots, 0, 1), x.Select(l.Experts[i], 0, 3)))) == 1
			if kept := x.Item(x.All(x.EqScalar(x.Select(slots, 0, 0), -7))) == 1; !same || !kept {
				t.Errorf("matrix %d: the slot has expert 3: %v, and the other one is as it was: %v", i, same, kept)
			}
		}
		if n := table.Stats(x).Fetched; n != 1 {
			t.Errorf("%d experts were fetched, want 1", n)
		}
	})
	tokens := func(misses int64) (engine bool) {
		for range 60 {
			torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
				x.AddInPlace(x.Narrow(l.Counts, 0, 1, 1), cgotorch.FromSlice(x, []int64{misses}, 1))
				engine = table.ByEngine(x)
			})
			must.Do(t, s.Synchronize())
		}
		return engine
	}
	for _, misses := range []int64{1, 1e12, 1, 1e12} {
		if got := tokens(misses); got != (misses > 1) {
			t.Errorf("%d misses a token: by the engine: %v", misses, got)
		}
	}
}

// Fetch copies experts of the next layer ahead, and takes those that are picked. It stops if too
// few are. Work behind a Do may write experts.
func TestTable_Fetch_Ahead(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	s := torchtest.NewStream(t, torchtest.Device())
	o := smallTable
	o.Ahead = 2
	table := tableOf(t, s, o)
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		x.FillInPlace(x.Narrow(table.Layer(2).Places, 0, 2, 1), 2) // expert 2 is in slot 2
	})
	picks := func(x *cgotorch.Exec, pairs ...int32) *cgotorch.Tensor { // slots and experts
		var all []int32
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, pairs[i], pairs[i+1], 0, 0)
		}
		return cgotorch.FromSlice(x, all, int64(len(pairs)/2), 4)
	}
	next := func(x *cgotorch.Exec, experts ...int32) *cgotorch.Tensor { return cgotorch.FromSlice(x, experts) }
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		table.Fetch(x, 1, picks(x, 0, 5), next(x, 2, 4, 4, -1, 6, 0, 5)) // 4 and 0 come ahead
		table.Fetch(x, 2, picks(x, 0, 4, 1, 5), next(x, 1, 3))
		torchtest.Sleep(x, time.Millisecond)
		table.Fetch(x, 3, picks(x, 2, 3, 1, 1), next(x, 1))
		for layer, want := range map[int][]float32{1: {105}, 2: {204, 205}, 3: {0, 301, 303}} {
			for slot, v := range want {
				if got := cgotorch.ToSlice[float32](x, x.Select(table.Layer(layer).Slots[1], 0, slot))[3]; v != 0 && got != v+10 {
					t.Errorf("layer %d, slot %d has %v, want %v", layer, slot, got, v+10)
				}
			}
		}
	})
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		x.AddScalarInPlace(table.Layer(4).Experts[0], 1)
		if got := table.Stats(x); got.Ahead != 5 || got.AheadPicked != 3 || got.Fetched != 5 || got.BusBytes != 2*192 || got.DeviceBytes != (5*3+2*6+2)*192 {
			t.Errorf("stats are %+v", got)
		}
		table.Fetch(x, 4, picks(x, 0, 1), next(x, 1)) // what came ahead was forgotten
		if got := cgotorch.ToSlice[float32](x, x.Select(table.Layer(4).Slots[0], 0, 0))[0]; got != 402 {
			t.Errorf("a slot has %v, want 402", got)
		}
	})
	for range 80 {
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			table.Fetch(x, 0, picks(x, 0, 1), next(x, 3, 4))
			table.Fetch(x, 1, picks(x, 0, 1), nil)
		})
	}
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		if got := table.Stats(x).Ahead; got < triedCopies || got > triedCopies+2 {
			t.Errorf("%d experts came ahead, and none was picked", got)
		}
	})
}

// Copies that are picked go on coming ahead, however many are on their way. Where one of sixteen is
// not picked they pause, and come again after a while.
func TestTable_AheadPauses(t *testing.T) {
	for _, right := range []int64{16, 15} {
		var a ahead
		tried, paused := 0, 0
		for range 3 * triedAgain {
			copies := a.shouldCopy()
			if a.experts != nil {
				a.used, a.experts = a.used+right, nil
			}
			if !copies {
				paused++
				continue
			}
			tried++
			a.copies, a.experts = a.copies+16, make([]int32, 16)
		}
		if right == 16 && paused > 0 || right == 15 && (paused < 2*triedAgain || tried < 3*triedCopies/16) {
			t.Errorf("with %d of 16 right, %d Fetches copy ahead, and %d do not", right, tried, paused)
		}
	}
}

// Fetch refuses what the table has not, and a closed table is closed.
func TestTable_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, torchtest.Device())
	matrices := slices.Clone(smallTable.Matrices)
	o := smallTable
	o.Matrices = matrices
	table := tableOf(t, s, o)
	matrices[0] = [2]int64{1, 1} // is the program's own
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) { must.Do(t, table.Resize(x, 3, true)) })
	if got := table.Layer(0).Slots[0].Shape(); !slices.Equal(got, []int64{3, smallTable.Matrices[0][0], smallTable.Matrices[0][1]}) {
		t.Errorf("the slots are %v", got)
	}
	try := func(call func(x *cgotorch.Exec)) error {
		return s.Do(func(x *cgotorch.Exec) error { call(x); return nil })
	}
	picks := func(layer int, data []int32, shape ...int64) func(x *cgotorch.Exec) {
		return func(x *cgotorch.Exec) { table.Fetch(x, layer, cgotorch.FromSlice(x, data, shape...), nil) }
	}
	for _, c := range []struct {
		text string
		call func(x *cgotorch.Exec)
	}{
		{"picks of layer 5", picks(5, make([]int32, 4), 1, 4)},
		{"picks of layer -1", picks(-1, make([]int32, 4), 1, 4)},
		{"[4 3], want Int32", picks(0, make([]int32, 12), 4, 3)},
		{"[5], want Int32", picks(0, make([]int32, 5), 5)},
		{"int64", func(x *cgotorch.Exec) { table.Fetch(x, 0, x.Zeros(cgotorch.Int64, 1, 4), nil) }},
		{"next is", func(x *cgotorch.Exec) { table.Fetch(x, 0, x.Zeros(cgotorch.Int32, 1, 4), x.Zeros(cgotorch.Int64, 4)) }},
		{"slot -1 and expert 3", picks(0, []int32{-1, 3, 3, 0}, 1, 4)},
		{"slot 3 and expert 3", picks(0, []int32{3, 3, 3, 0}, 1, 4)},
		{"expert 100", picks(0, []int32{1, 100, 3, 0}, 1, 4)},
	} {
		torchtest.WantError(t, try(c.call), cgotorch.ErrInvalidArgument, "Table.Fetch", c.text)
	}
	must.Do(t, table.Close())
	for _, call := range []func(x *cgotorch.Exec){picks(0, []int32{1, 3, 3, 0}, 1, 4), func(x *cgotorch.Exec) { table.Pass(x) }} {
		torchtest.WantError(t, try(call), cgotorch.ErrClosed)
	}
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) { torchtest.WantError(t, table.Resize(x, 2, true), cgotorch.ErrClosed) })
}
