package prefetcher

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// tableLoader returns a loader over n samples: the number of the sample as "id", two floats, a
// list of id%3 numbers, and a text.
func tableLoader(t testing.TB, n int, o data.Options) *data.Loader {
	t.Helper()
	ids, pairs, lists, names := make([]int64, n), make([]float32, 2*n), make([][]int32, n), make([]string, n)
	for i := range n {
		ids[i], pairs[2*i], pairs[2*i+1] = int64(i), float32(i), float32(-i)
		lists[i], names[i] = slices.Repeat([]int32{int32(i)}, i%3), fmt.Sprint("s", i)
	}
	table := must.Get(data.NewTable(data.Of("id", ids), data.Of("pair", pairs, 2), data.OfRows("list", lists), data.Of("name", names)))(t)
	l := must.Get(data.NewLoader(table, o))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

func startTensors(t testing.TB, source TensorSource, d cgotorch.Device, o TensorOptions) *Tensors {
	t.Helper()
	p := must.Get(NewTensors(source, d, o))(t)
	t.Cleanup(func() { p.Close() })
	return p
}

func TestTensors_Values(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		p := startTensors(t, tableLoader(t, 50, data.Options{BatchSize: 4, Pad: map[string]data.Pad{"list": {Length: 2, Value: -7}}}), d, TensorOptions{})
		seen := 0
		var kept []int64
		for b, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
				in := b.Use(x)
				ids, pairs, lists := cgotorch.ToSlice[int64](x, in["id"]), cgotorch.ToRows[float32](x, in["pair"]), cgotorch.ToRows[int32](x, in["list"])
				lengths := cgotorch.ToSlice[int64](x, in["list_length"])
				if got := b.Lengths("list"); !slices.Equal(got, lengths) || b.Lengths("pair") != nil || b.Lengths("name") != nil || b.Lengths("none") != nil {
					t.Errorf("lengths %v, want %v", got, lengths)
				}
				kept = append(kept, b.Lengths("list")...)
				for i := range b.N {
					n := seen + i
					want := slices.Repeat([]int32{int32(n)}, n%3)
					for len(want) < len(lists[i]) {
						want = append(want, -7)
					}
					if ids[i] != int64(n) || !slices.Equal(pairs[i], []float32{float32(n), float32(-n)}) || !slices.Equal(lists[i], want) || lengths[i] != int64(n%3) {
						t.Fatalf("sample %d: %d %v %v of length %d", n, ids[i], pairs[i], lists[i], lengths[i])
					}
				}
				if got := b.Texts[0].Texts(); got[0] != fmt.Sprint("s", seen) {
					t.Errorf("texts %v", got)
				}
			})
			seen += b.N
		}
		for i, n := range kept {
			if n != int64(i%3) {
				t.Errorf("after the epoch, the length of sample %d is %d", i, n)
			}
		}
		if s := p.Stats(); seen != 50 || s.Batches != 13 || s.Samples != 50 || s.Staged != 0 || s.Bytes == 0 {
			t.Errorf("%d samples, %+v", seen, s)
		}
	})
}

// Every dtype goes through a slot, from memory that is not the source's.
func TestTensors_DTypes(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		source := &made{n: 3, batch: 2}
		for _, dtype := range []cgotorch.DType{cgotorch.Bool, cgotorch.Uint8, cgotorch.Int16, cgotorch.Uint32, cgotorch.BFloat16, cgotorch.Float64, cgotorch.Complex64, cgotorch.Complex128} {
			source.fields = append(source.fields, data.Field{Name: dtype.String(), DType: dtype, Shape: []int64{3}})
		}
		p := startTensors(t, source, d, TensorOptions{Depth: 1})
		for b, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) {
				for name, tensor := range b.Use(x) {
					if !strings.HasPrefix(tensor.String(), name+"[2 3]") {
						t.Errorf("%s is %s", name, tensor)
					}
					if bytes := cgotorch.ToBytes(x, tensor); bytes[0] != 1 || len(bytes) != 6*tensor.DType().Size() {
						t.Errorf("%s has the bytes %v", name, bytes)
					}
				}
			})
		}
		if s := p.Stats(); s.Staged == 0 {
			t.Errorf("%+v: nothing was staged", s)
		}
	})
}

// made is a source whose batches lie in Go's memory.
type made struct {
	n, batch        int
	fields          []data.Field
	spoil           func(*data.Batch)
	given, released atomic.Int64
}

func (m *made) Fields() []data.Field    { return m.fields }
func (m *made) BatchSize() int          { return m.batch }
func (m *made) Pin(p data.Pinner) error { return nil }
func (m *made) Epoch(ctx context.Context) iter.Seq2[*data.Batch, error] {
	return func(yield func(*data.Batch, error) bool) {
		for i := 0; i < m.n && ctx.Err() == nil; i++ {
			b := &data.Batch{N: m.batch, Index: i, OnRelease: func() { m.released.Add(1) }}
			for _, f := range m.fields {
				n := m.batch * f.DType.Size()
				for _, d := range f.Shape {
					n *= int(d)
				}
				memory := make([]byte, n)
				memory[0] = 1
				b.Columns = append(b.Columns, data.Column{Field: f, N: m.batch, Data: memory})
			}
			if m.spoil != nil {
				m.spoil(b)
			}
			m.given.Add(1)
			if !yield(b, nil) {
				return
			}
		}
	}
}

// Slots and buffers are used again and again, by two streams. The stream checker finds no race.
func TestTensors_HaveNoRace(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		p := startTensors(t, tableLoader(t, 120, data.Options{BatchSize: 2, Buffers: 2, Shuffle: true}), d, TensorOptions{Depth: 1})
		streams := []*cgotorch.Stream{torchtest.NewStream(t, d), torchtest.NewStream(t, d)}
		sum := 0.0
		for b, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			for i, stream := range streams {
				torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
					if s := x.Sum(b.Use(x)["id"]); i == 1 && b.Index%10 == 0 {
						sum += x.Item(s)
					} else if b.Index == 5 {
						time.Sleep(time.Millisecond)
					}
				})
			}
		}
		if sum == 0 {
			t.Error("nothing was summed")
		}
	})
}

func TestTensors_ReleaseEachBatch(t *testing.T) {
	for _, test := range []struct {
		name    string
		spoil   func(*data.Batch)
		leaveAt int
		err     string
	}{
		{"at its end", nil, -1, ""},
		{"left early", nil, 1, ""},
		{"too many samples", func(b *data.Batch) { b.N = 3 }, -1, "has 3 samples"},
		{"another dtype", func(b *data.Batch) { b.Columns[0].DType = cgotorch.Int64 }, -1, `a column "a" int64[4]`},
		{"too few bytes", func(b *data.Batch) { b.Columns[0].Data = b.Columns[0].Data[:3] }, -1, "in 3 bytes"},
		{"too large", func(b *data.Batch) { b.Columns[0].Shape = []int64{5} }, -1, "float32[5]"},
		{"another column", func(b *data.Batch) { b.Columns[0].Name = "b" }, -1, `a column "b"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				source := &made{n: 10, batch: 2, spoil: test.spoil, fields: []data.Field{{Name: "a", DType: cgotorch.Float32, Shape: []int64{4}}}}
				p := startTensors(t, source, d, TensorOptions{})
				var failed error
				for b, err := range p.Epoch(context.Background()) {
					if failed = err; err == nil && b.Index == test.leaveAt {
						break
					}
				}
				if given, released := source.given.Load(), source.released.Load(); given == 0 || given != released {
					t.Errorf("%d batches of %d came back", released, given)
				}
				if test.err == "" && failed != nil || test.err != "" && (failed == nil || !strings.Contains(failed.Error(), test.err)) {
					t.Errorf("the epoch ended with %v, want %q", failed, test.err)
				}
			})
		})
	}
}

// The rules of images hold: a batch belongs to its body, a loop does not run inside its Do, and
// tensors are not kept.
func TestTensors_Rules(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		p := startTensors(t, tableLoader(t, 40, data.Options{BatchSize: 2}), d, TensorOptions{Depth: 1})
		stream := cgotorch.DefaultStream(d)
		var last *TensorBatch
		var failed error
		err := stream.Do(func(x *cgotorch.Exec) error {
			for b, err := range p.Epoch(context.Background()) {
				if failed = err; err == nil {
					b.Use(x)
					last = b
				}
			}
			return nil
		})
		torchtest.WantError(t, errors.Join(err, failed), cgotorch.ErrMisuse, "one Do for each batch")
		torchtest.WantError(t, stream.Do(func(x *cgotorch.Exec) error { last.Use(x); return nil }), ErrBatchOver)
		for b := range p.Epoch(context.Background()) {
			err := stream.Do(func(x *cgotorch.Exec) error { x.Keep(b.Use(x)["pair"]); return nil })
			if err == nil {
				t.Error("a lent tensor was kept")
			}
			break
		}
	})
}

func TestNewTensors_Refused(t *testing.T) {
	field := func(f data.Field) TensorSource { return &made{batch: 2, fields: []data.Field{f}} }
	for want, source := range map[string]TensorSource{
		"0 fields":           &made{batch: 2},
		"batches of 0":       &made{fields: []data.Field{{Name: "a"}}},
		"no tensor of a kno": field(data.Field{Name: "a", Shape: []int64{data.Variable}}),
		`"a" text`:           field(data.Field{Name: "a", Text: true}),
	} {
		_, err := NewTensors(source, cgotorch.CPU, TensorOptions{})
		torchtest.WantError(t, err, ErrInvalidOptions, want)
	}
	_, err := NewTensors(field(data.Field{Name: "a"}), cgotorch.CPU, TensorOptions{Depth: -1})
	torchtest.WantError(t, err, ErrInvalidOptions, "Depth is -1")
}
