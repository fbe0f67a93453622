package cgotorch_test

import (
	"errors"
	"io"
	"iter"
	"slices"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// released is a batch that counts its releases.
type released struct{ number, times int }

func (r *released) Release() { r.times++ }

// batchesOf yields the batches, and then the error if it is not nil.
func batchesOf(batches []*released, end error) iter.Seq2[*released, error] {
	return func(yield func(*released, error) bool) {
		for _, b := range batches {
			if !yield(b, nil) {
				return
			}
		}
		if end != nil {
			yield(nil, end)
		}
	}
}

func TestDoEach_OneDoABatch(t *testing.T) {
	torchtest.CheckLeaks(t)
	bad := errors.New("bad")
	for _, c := range []struct {
		name     string
		end      error
		fails    int // the number of the batch whose function fails
		want     error
		n        int
		released []int
	}{
		{"whole", nil, -1, nil, 3, []int{1, 1, 1}},
		{"ended by the sequence", io.ErrUnexpectedEOF, -1, io.ErrUnexpectedEOF, 3, []int{1, 1, 1}},
		{"ended by a function", nil, 1, bad, 1, []int{1, 1, 0}},
	} {
		s := torchtest.NewStream(t, CPU)
		batches := []*released{{number: 0}, {number: 1}, {number: 2}}
		var made []*Tensor
		n, err := DoEach(s, batchesOf(batches, c.end), func(x *Exec, b *released) error {
			if b.times > 0 {
				t.Errorf("%s: batch %d is released before its Do ends", c.name, b.number)
			}
			for _, earlier := range made {
				if !earlier.Closed() {
					t.Errorf("%s: a tensor of an earlier batch is open", c.name)
				}
			}
			made = append(made, x.Ones(Float32, 1))
			if b.number == c.fails {
				return bad
			}
			return nil
		})
		var got []int
		for _, b := range batches {
			got = append(got, b.times)
		}
		if n != c.n || !errors.Is(err, c.want) || !slices.Equal(got, c.released) {
			t.Errorf("%s: got %d, %v, releases %v", c.name, n, err, got)
		}
	}
}

func TestDoEach_NoResult(t *testing.T) {
	s := torchtest.NewStream(t, CPU)
	batches, sum := []*released{{number: 3}, {number: 4}}, 0
	if n, err := DoEach(s, batchesOf(batches, nil), func(x *Exec, b *released) { sum += b.number }); n != 2 || err != nil || sum != 7 || batches[1].times != 1 {
		t.Errorf("got %d, %v, sum %d", n, err, sum)
	}
	n, err := DoEach(s, batchesOf(batches, nil), func(x *Exec, b *released) { x.Add(x.Ones(Float32, 2), x.Ones(Float32, 3)) })
	if n != 0 || !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("got %d, %v, want the operator's error", n, err)
	}
}

func TestDoEach_Panic_Releases(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	batches := []*released{{}}
	func() {
		defer func() { recover() }()
		_, _ = DoEach(s, batchesOf(batches, nil), func(x *Exec, b *released) error { panic("stop") })
	}()
	if batches[0].times != 1 {
		t.Errorf("released %d times", batches[0].times)
	}
}

func TestDoValue_FailedDo_ReturnsZero(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	got, err := DoValue(s, func(x *Exec) (float64, error) { return x.Item(x.Sum(x.Ones(Float32, 3))), nil })
	if got != 3 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	got, err = DoValue(s, func(x *Exec) (float64, error) { return 5, io.ErrUnexpectedEOF })
	if got != 0 || err != io.ErrUnexpectedEOF {
		t.Errorf("got %v, %v", got, err)
	}
	got, err = DoValue(s, func(x *Exec) (float64, error) { x.MatMul(x.Ones(Float32, 2, 3), x.Ones(Float32, 2, 3)); return 5, nil })
	if got != 0 || err == nil {
		t.Errorf("got %v, %v", got, err)
	}
}
