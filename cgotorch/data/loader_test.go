package data

import (
	"context"
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// sources are one data set in each form that a loader reads.
func sources(t testing.TB, n int) map[string]any {
	table := numbered(t, n)
	return map[string]any{"table": table, "samples": fetched{table}, "stream": streamed{table, 7}}
}

func TestLoader_InOrder(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, set := range sources(t, 23) {
		t.Run(name, func(t *testing.T) {
			lines, ids, _ := readEpoch(t, open(t, set, Options{BatchSize: 5}))
			if len(lines) != 5 || len(ids) != 23 || !slices.IsSorted(ids) {
				t.Errorf("%d batches, samples %v", len(lines), ids)
			}
			want := "0/4 n3 id[][20 0 0 0 0 0 0 0 21 0 0 0 0 0 0 0 22 0 0 0 0 0 0 0]"
			if !strings.HasPrefix(lines[4], want) || !strings.HasSuffix(lines[4], "name[][s20 s21 s22]") {
				t.Errorf("last batch is %s, want %s…", lines[4], want)
			}
			dropped, _, _ := readEpoch(t, open(t, set, Options{BatchSize: 5, DropLast: true}))
			if !slices.Equal(dropped, lines[:4]) {
				t.Errorf("with DropLast: %d batches", len(dropped))
			}
		})
	}
}

func TestLoader_Batches_EqualsEpoch(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, o := range []Options{
		{BatchSize: 5}, {BatchSize: 5, DropLast: true}, {BatchSize: 4, World: 3}, {BatchSize: 4, World: 3, Rank: 2, DropRest: true, DropLast: true},
		{BatchSize: 23}, {BatchSize: 23, DropLast: true}, {BatchSize: 24},
	} {
		l := open(t, numbered(t, 23), o)
		if lines, _, _ := readEpoch(t, l); l.Batches() != len(lines) {
			t.Errorf("%+v: Batches is %d, and an epoch has %d", o, l.Batches(), len(lines))
		}
	}
	if got := open(t, streamed{numbered(t, 5), 2}, Options{}).Batches(); got != -1 {
		t.Errorf("of a stream: got %d", got)
	}
}

func TestBatch_Use(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		l := open(t, numbered(t, 6), Options{BatchSize: 4})
		s := torchtest.NewStream(t, d)
		var last *Batch
		n, err := cgotorch.DoEach(s, l.Epoch(context.Background()), func(x *cgotorch.Exec, b *Batch) error {
			in := b.Use(x)
			if len(in) != 4 || in["name"] != nil {
				t.Errorf("the tensors are %v", in)
			}
			for _, c := range b.Columns {
				if t2 := in[c.Name]; !c.Text && (!slices.Equal(t2.Shape(), append([]int64{int64(b.N)}, c.Shape...)) || !slices.Equal(cgotorch.ToBytes(x, t2), c.Data)) {
					t.Errorf("%s is %v", c.Field, t2)
				}
			}
			last = b
			return nil
		})
		if n != 2 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
		err = s.Do(func(x *cgotorch.Exec) error { last.Use(x); return nil })
		torchtest.WantError(t, err, cgotorch.ErrClosed, "batch 1 of epoch 0 was used after its Release")
	})
}

// Every option gives the same batches whatever the number of workers is, and after a resume at
// every batch.
func TestLoader_Resume(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, set := range sources(t, 61) {
		for _, o := range []Options{
			{BatchSize: 4},
			{BatchSize: 4, Shuffle: true, Seed: 3, ShuffleBuffer: 16},
			{BatchSize: 7, Shuffle: true, World: 3, Rank: 1, ShuffleBuffer: 20, DropLast: true},
			{BatchSize: 3, Shuffle: true, BufferBytes: 300},
			{BatchSize: 4, World: 4, Rank: 3, DropRest: true, Map: func(s Sample) (Sample, error) { s["id"] = s["id"].(int64) * 2; return s, nil }},
		} {
			t.Run(fmt.Sprintf("%s/%d-%d-%v", name, o.BatchSize, o.World, o.Shuffle), func(t *testing.T) {
				l := open(t, set, o)
				first, _, states := readEpoch(t, l)
				second, _, _ := readEpoch(t, l)
				if o.Shuffle && first[0][4:] == second[0][4:] {
					t.Error("two epochs have one order")
				}
				o.Workers = 1
				again := open(t, set, o)
				for i := range states {
					must.Do(t, again.Restore(states[i]))
					rest, _, _ := readEpoch(t, again)
					if !slices.Equal(rest, first[i+1:]) {
						t.Fatalf("after batch %d: got %v, want %v", i, rest, first[i+1:])
					}
					if next, _, _ := readEpoch(t, again); i%5 == 0 && !slices.Equal(next, second) {
						t.Fatalf("after batch %d: another second epoch", i)
					}
				}
			})
		}
	}
}

// All ranks together have every sample. All have equal numbers of samples.
func TestLoader_Ranks(t *testing.T) {
	for name, set := range sources(t, 50) {
		for _, dropRest := range []bool{false, true} {
			seen, counts := map[int64]int{}, []int{}
			for rank := range 4 {
				_, ids, _ := readEpoch(t, open(t, set, Options{BatchSize: 3, Shuffle: true, ShuffleBuffer: 10, World: 4, Rank: rank, DropRest: dropRest}))
				counts = append(counts, len(ids))
				for _, id := range ids {
					seen[id]++
				}
			}
			wantEach, wantSeen := 13, 50
			if dropRest {
				wantEach, wantSeen = 12, 48
			}
			if slices.Min(counts) != wantEach || slices.Max(counts) != wantEach || len(seen) != wantSeen {
				t.Errorf("%s: ranks have %v samples, %d different; want %d, %d", name, counts, len(seen), wantEach, wantSeen)
			}
		}
	}
}

// A stream is permuted in windows. A table is permuted as a whole.
func TestLoader_Shuffle(t *testing.T) {
	const n, buffer = 1000, 100
	table := numbered(t, n)
	_, whole, _ := readEpoch(t, open(t, table, Options{Shuffle: true}))
	_, parts, _ := readEpoch(t, open(t, streamed{table, 33}, Options{Shuffle: true, BatchSize: 8, ShuffleBuffer: buffer}))
	farthest := int64(0)
	for i := range n {
		farthest = max(farthest, whole[i]-int64(i))
		if parts[i]/buffer != int64(i/buffer) {
			t.Fatalf("sample %d of the stream is at place %d", parts[i], i)
		}
	}
	if farthest < n*3/4 {
		t.Errorf("the table's samples move at most %d places", farthest)
	}
	for _, ids := range [][]int64{whole, parts} {
		if slices.Sort(ids); len(slices.Compact(ids)) != n {
			t.Error("a sample is missing")
		}
	}
}

func TestLoader_Pad(t *testing.T) {
	table := cgotorch.Must(NewTable(OfRows("tokens", [][]int64{{1, 2, 3}, {}, {4}, {5, 6, 7, 8, 9}}), OfRows("wave", [][]float32{{1}, {2, 3}, {}, {}})))
	l := open(t, table, Options{BatchSize: 3, Pad: map[string]Pad{"tokens": {Length: 4, Truncate: true, Value: -1}, "wave": {Length: 3, Whole: true, Value: 0.5}}})
	var got []string
	for b, err := range l.Epoch(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(Values[int64](b.Column("tokens")), b.Column("tokens").Shape, b.Lengths("tokens"),
			Values[float32](b.Column("wave")), Values[int64](b.Column("wave_length"))))
		b.Release()
	}
	want := []string{"[1 2 3 -1 -1 -1 4 -1 -1] [3] [3 0 1] [1 0.5 0.5 2 3 0.5 0.5 0.5 0.5] [1 2 0]", "[5 6 7 8] [4] [4] [0.5 0.5 0.5] [0]"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if fields := fmt.Sprint(l.Fields()); fields != `["tokens" int64[4] "tokens_length" int64 "wave" float32[3] "wave_length" int64]` {
		t.Errorf("fields are %s", fields)
	}
	l = open(t, table, Options{Pad: map[string]Pad{"tokens": {Length: 4}}})
	for _, err := range l.Epoch(context.Background()) {
		torchtest.WantError(t, err, ErrTooLarge, `column "tokens"`, "length 5", "Pad.Length is 4")
	}
}

func TestLoader_Map(t *testing.T) {
	torchtest.CheckLeaks(t)
	fields := []Field{{Name: "letters", DType: cgotorch.Uint8, Shape: []int64{Variable}}, {Name: "half", DType: cgotorch.Float32}}
	for name, set := range sources(t, 40) {
		l := open(t, set, Options{BatchSize: 8, Workers: 3, Fields: fields, Map: func(s Sample) (Sample, error) {
			return Sample{"letters": []byte(s["name"].(string)), "half": float64(s["id"].(int64)) / 2}, nil
		}})
		i := 0
		for b, err := range l.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(name, err)
			}
			for k, v := range Values[float32](b.Column("half")) {
				if v != float32(i)/2 || Values[uint8](b.Column("letters"))[k*int(b.Column("letters").Shape[0])] != 's' {
					t.Fatalf("%s: sample %d: %s", name, i, line(b))
				}
				i++
			}
			b.Release()
		}
		broken := errors.New("no such word")
		l = open(t, set, Options{BatchSize: 8, Map: func(s Sample) (Sample, error) {
			if s["id"].(int64) == 21 {
				return nil, broken
			}
			return s, nil
		}})
		batches := 0
		for b, err := range l.Epoch(context.Background()) {
			if err != nil {
				torchtest.WantError(t, err, broken, "sample 21: no such word", "batch 2 of epoch 0")
				continue
			}
			batches++
			b.Release()
		}
		if batches != 2 {
			t.Errorf("%s: %d batches before the error", name, batches)
		}
	}
}

// A loop may be left, cancelled or closed anywhere. No goroutine and no memory stays.
func TestLoader_LeftAnywhere(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, set := range sources(t, 300) {
		for _, how := range []string{"break", "cancel", "close", "busy"} {
			l := open(t, set, Options{BatchSize: 2, Shuffle: true, ShuffleBuffer: 30})
			ctx, cancel := context.WithCancelCause(context.Background())
			cause := errors.New("enough")
			var last error
			for b, err := range l.Epoch(ctx) {
				if last = err; err != nil {
					continue
				}
				if b.Index == 3 {
					switch how {
					case "cancel":
						cancel(cause)
					case "close":
						l.Close()
					case "busy":
						for _, err := range l.Epoch(ctx) {
							torchtest.WantError(t, err, ErrBusy)
						}
					}
				}
				b.Release()
				if how == "break" && b.Index == 3 {
					break
				}
			}
			if want := map[string]error{"cancel": cause, "close": cgotorch.ErrClosed}[how]; !errors.Is(last, want) {
				t.Errorf("%s, %s: error %v, want %v", name, how, last, want)
			}
			cancel(nil)
		}
	}
}

func TestLoader_DroppedBatches(t *testing.T) {
	l := open(t, numbered(t, 100), Options{BatchSize: 2, Buffers: 2})
	began := time.Now()
	for _, err := range l.Epoch(context.Background()) {
		runtime.GC()
		if err != nil && !strings.Contains(err.Error(), "dropped without Release") {
			t.Error(err)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the loop took %v", took)
	}
}

// A batch outlives its loader.
func TestBatch_AfterClose(t *testing.T) {
	l := open(t, numbered(t, 10), Options{BatchSize: 10})
	for b, err := range l.Epoch(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if Values[int64](b.Column("id"))[9] != 9 {
			t.Error("the memory has changed")
		}
		b.Release()
		b.Release()
		if b.Columns != nil {
			t.Error("a released batch has columns")
		}
		break
	}
}

func TestOptions_Refused(t *testing.T) {
	table := numbered(t, 4)
	for want, o := range map[string]Options{
		"BatchSize is -1":          {BatchSize: -1},
		"Rank is 2":                {World: 2, Rank: 2},
		`has "nothing" float32`:    {Fields: []Field{{Name: "nothing", DType: cgotorch.Float32}}},
		`Pad names "id"`:           {Pad: map[string]Pad{"id": {}}},
		"Value is 0.5":             {Pad: map[string]Pad{"list": {Value: 0.5}}},
		"exceed any memory":        {BatchSize: 1 << 30, Pad: map[string]Pad{"list": {Length: 1 << 20}}},
		`["x" text] has no shape`:  {Fields: []Field{{Name: "x", Text: true, Shape: []int64{1}}}},
		"the shape [0] is out of":  {Fields: []Field{{Name: "x", Shape: []int64{0}}}},
		"two fields have the name": {Fields: []Field{{Name: "id", DType: cgotorch.Int64}, {Name: "id", DType: cgotorch.Int64}}},
	} {
		if want == `["x" text] has no shape` {
			want = "a text has no shape"
		}
		_, err := NewLoader(table, o)
		torchtest.WantError(t, err, ErrInvalidOptions, want)
	}
	l := open(t, table, Options{Map: func(Sample) (Sample, error) { return nil, nil }})
	for _, err := range l.Epoch(context.Background()) {
		torchtest.WantError(t, err, ErrBadRow, "the sample has no value")
	}
	l.Close()
	for _, err := range l.Epoch(context.Background()) {
		torchtest.WantError(t, err, cgotorch.ErrClosed, "close the loader after its last epoch")
	}
	l = open(t, table, Options{})
	torchtest.WantError(t, l.Restore(State{Samples: 5}), ErrInvalidState, "5 samples")
	torchtest.WantError(t, l.Restore(State{Samples: 4, Position: 5}), ErrInvalidState)
	torchtest.WantError(t, l.Restore(State{Samples: 4, Position: -5}), ErrInvalidState)
	stream := open(t, streamed{table, 2}, Options{})
	must.Do(t, stream.Restore(State{Position: 9}))
	for _, err := range stream.Epoch(context.Background()) {
		torchtest.WantError(t, err, ErrInvalidState)
	}
}
