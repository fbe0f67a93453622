package data

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// TestQuery_OneCallABatch reads batches by one call each, in the order of a Table.
func TestQuery_OneCallABatch(t *testing.T) {
	torchtest.CheckLeaks(t)
	var mu sync.Mutex
	var calls []int
	fields := numbered(t, 1).Fields()
	table := numbered(t, 100)
	samples := func(ctx context.Context, rows []int) ([]Sample, error) {
		mu.Lock()
		calls = append(calls, len(rows))
		mu.Unlock()
		var all []Sample
		for _, i := range rows {
			s, err := table.Sample(i)
			if err != nil {
				return nil, err
			}
			all = append(all, s)
		}
		return all, ctx.Err()
	}
	query := cgotorch.Must(NewQuery("numbers", 100, fields, samples))
	o := Options{BatchSize: 32, Shuffle: true, Seed: 7}
	got, _, _ := readEpoch(t, open(t, query, o))
	want, _, _ := readEpoch(t, open(t, table, o))
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	slices.Sort(calls)
	if !slices.Equal(calls, []int{4, 32, 32, 32}) {
		t.Errorf("calls for %v rows, want one for each batch", calls)
	}
	if s, err := query.Sample(5); err != nil || len(s) != len(fields) {
		t.Errorf("Sample: %v, %v", s, err)
	}
}

func TestQuery_Fails(t *testing.T) {
	torchtest.CheckLeaks(t)
	fields := []Field{{Name: "id", DType: cgotorch.Int64}}
	none := func(context.Context, []int) ([]Sample, error) { return nil, nil }
	for _, bad := range []func() (Dataset, error){
		func() (Dataset, error) { return NewQuery("q", -1, fields, none) },
		func() (Dataset, error) { return NewQuery("q", 1, nil, none) },
		func() (Dataset, error) { return NewQuery("q", 1, fields, nil) },
	} {
		if q, err := bad(); q != nil || !errors.Is(err, ErrInvalidOptions) {
			t.Errorf("NewQuery: %v, %v", q, err)
		}
	}
	broken := errors.New("the database is gone")
	for want, samples := range map[string]func(context.Context, []int) ([]Sample, error){
		"data: q: the function `samples` was asked for 2 rows and returned 0": none,
		"data: q: row 1: the database is gone":                                func(context.Context, []int) ([]Sample, error) { return nil, broken },
		"data: sample 1: data: the sample has no value \"id\"": func(context.Context, []int) ([]Sample, error) {
			return []Sample{{"id": 1}, {"other": 2}}, nil
		},
	} {
		q := cgotorch.Must(NewQuery("q", 2, fields, samples))
		for batch, err := range open(t, q, Options{BatchSize: 2}).Epoch(t.Context()) {
			if batch != nil || err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}
