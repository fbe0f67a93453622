package cgotorch

import "testing"

// What is counted later has been when it is read, also twice, on two streams, and when the Do ends, also by a failure.
func TestExec_CountLater(t *testing.T) {
	checkLeaks(t)
	onEachDevice(t, func(t *testing.T, d Device) {
		s, side := newStream(t, d), newStream(t, d)
		ts := kept(t, s, 3, func(x *Exec) *Tensor { return x.Zeros(Int64) })
		e := record(t, s)
		defer e.Close()
		if err := side.Wait(e); err != nil {
			t.Fatal(err)
		}
		want := func(i int, n float64) {
			t.Helper()
			if got := itemOf(t, s, ts[i]); got != n {
				t.Errorf("counter %d is %v, want %v", i, got, n)
			}
		}
		err := s.Do(func(x *Exec) error {
			x.CountLater(ts[0])
			x.CountLater(ts[1])
			x.CountLater(ts[0])
			y := x.On(side)
			y.CountLater(ts[2])
			if got := x.Item(ts[0]); got != 2 {
				t.Errorf("it is %v", got)
			}
			x.CountLater(ts[1])
			y.CountLater(ts[2])
			e := y.Record()
			defer e.Close()
			x.Wait(e)
			if got := ToSlice[int64](x, ts[2]); got[0] != 2 {
				t.Errorf("behind the record it is %v", got)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want(0, 2)
		want(1, 2)
		want(2, 2)
		err = s.Do(func(x *Exec) error {
			x.CountLater(ts[0])
			x.CountLater(ts[1])
			ts[1].Close()
			x.MatMul(ts[0], ts[0])
			return nil
		})
		wantError(t, err, ErrInvalidArgument, "aten::matmul")
		want(0, 3)
	})
}

// Who waits for an event behind what was counted finds it counted.
func TestExec_CountLater_BeforeRecord(t *testing.T) {
	checkLeaks(t)
	onEachDevice(t, func(t *testing.T, d Device) {
		stop, err := CheckStreams(func(r *StreamRace) { t.Error(r) })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		s, side := newStream(t, d), newStream(t, d)
		n := kept(t, s, 1, func(x *Exec) *Tensor { return x.Zeros(Int64) })[0]
		made := record(t, s)
		defer made.Close()
		if err := side.Wait(made); err != nil {
			t.Fatal(err)
		}
		err = s.Do(func(x *Exec) error {
			y := x.On(side)
			y.CountLater(n)
			counted := y.Record()
			defer counted.Close()
			x.Wait(counted)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := itemOf(t, s, n); got != 1 {
			t.Errorf("it is %v", got)
		}
	})
}
