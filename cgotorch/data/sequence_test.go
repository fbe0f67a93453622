package data

import (
	"context"
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"iter"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestSequence(t *testing.T) {
	torchtest.CheckLeaks(t)
	broken := errors.New("broken")
	sequence := func(n, badAt int, bad error) Stream {
		s := cgotorch.Must(NewSequence("numbers", []Field{{Name: "id", DType: cgotorch.Int64}}, func(ctx context.Context) iter.Seq2[Sample, error] {
			return func(yield func(Sample, error) bool) {
				for i := range n {
					s := Sample{"id": i}
					if i == badAt && bad == nil {
						s["id"] = "x"
					}
					if i == badAt && bad != nil {
						yield(nil, bad)
						return
					}
					if !yield(s, nil) {
						return
					}
				}
			}
		}))
		return s
	}
	l := open(t, sequence(1000, -1, nil), Options{BatchSize: 64, Shuffle: true, ShuffleBuffer: 100})
	lines, ids, states := readEpoch(t, l)
	if slices.Sort(ids); len(slices.Compact(ids)) != 1000 || ids[999] != 999 {
		t.Errorf("%d samples", len(ids))
	}
	must.Do(t, l.Restore(states[6]))
	if rest, _, _ := readEpoch(t, l); !slices.Equal(rest, lines[7:]) {
		t.Error("other batches after a resume")
	}
	for want, s := range map[string]Stream{"numbers: row 301: broken": sequence(1000, 300, broken), `numbers: row 301: field "id" int64: the sample's value is a string`: sequence(1000, 300, nil)} {
		n := 0
		for b, err := range open(t, s, Options{BatchSize: 64}).Epoch(context.Background()) {
			if err != nil {
				torchtest.WantError(t, err, err, want)
				continue
			}
			n += b.N
			b.Release()
		}
		if n != 256 {
			t.Errorf("%s: %d samples before the error", want, n)
		}
	}
}
