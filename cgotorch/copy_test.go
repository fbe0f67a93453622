package cgotorch_test

import (
	"bytes"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func roundTrip[T Element](t *testing.T, x *Exec, dtype DType, values ...T) {
	t.Helper()
	if got := DTypeOf[T](); got != dtype {
		t.Errorf("DTypeOf[%T] is %v, want %v", values[0], got, dtype)
	}
	made := FromSlice(x, values)
	if made.DType() != dtype || made.Device() != x.Device() {
		t.Errorf("got %v on %v, want %v on %v", made.DType(), made.Device(), dtype, x.Device())
	}
	torchtest.Equal(t, x, made, values)
	torchtest.Equal(t, x, FromBytes(x, ToBytes(x, made), dtype, []int64{int64(len(values)), 1}), values, int64(len(values)), 1)
	into := x.ZerosLike(made)
	CopyFrom(x, into, values)
	torchtest.Equal(t, x, into, values)
	if got := ToSlice[T](x, FromSlice(x, values[:0], 0, 3)); len(got) != 0 {
		t.Errorf("an empty tensor of %v has %v", dtype, got)
	}
}

func TestFromSlice_EachElement(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		roundTrip(t, x, Uint8, []uint8{0, 1, 255}...)
		roundTrip(t, x, Int8, []int8{-128, -1, 127}...)
		roundTrip(t, x, Int16, []int16{-32768, -1, 32767}...)
		roundTrip(t, x, Int32, []int32{math.MinInt32, -1, math.MaxInt32}...)
		roundTrip(t, x, Int64, []int64{math.MinInt64, -1, math.MaxInt64}...)
		roundTrip(t, x, Uint16, []uint16{0, 1, 65535}...)
		roundTrip(t, x, Uint32, []uint32{0, 1, math.MaxUint32}...)
		roundTrip(t, x, Uint64, []uint64{0, 1, math.MaxUint64}...)
		roundTrip(t, x, Float32, []float32{0, -1.5, math.MaxFloat32, math.SmallestNonzeroFloat32, float32(math.Inf(-1))}...)
		roundTrip(t, x, Float64, []float64{0, -1.5, math.MaxFloat64, math.SmallestNonzeroFloat64, math.Inf(1)}...)
		roundTrip(t, x, Bool, []bool{true, false, true}...)
		roundTrip(t, x, Complex64, []complex64{1 + 2i, -3i}...)
		roundTrip(t, x, Complex128, []complex128{1 + 2i, -3i}...)
		roundTrip(t, x, Float16, []Float16Bits{0x3c00, 0x8001, 0x7c00, 0x7e00}...)
		roundTrip(t, x, BFloat16, []BFloat16Bits{0x3f80, 0x8001, 0x7f80, 0x7fc0}...)
	})
}

// FromSlice keeps the bits of every element: of NaN with its payload, of both zeros, and of
// denormals.
func TestFromSlice_KeepsBits(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		want := []uint32{0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x7f800001, 0x7fc12345, 0xffffffff}
		values := make([]float32, len(want))
		for i, bits := range want {
			values[i] = math.Float32frombits(bits)
		}
		for i, v := range ToSlice[float32](x, FromSlice(x, values)) {
			if got := math.Float32bits(v); got != want[i] {
				t.Errorf("%08x came back as %08x", want[i], got)
			}
		}
	})
}

func TestFromSlice_Shapes(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			torchtest.Equal(t, x, FromSlice(x, []int32{1, 2, 3, 4}, 2, 2), []int32{1, 2, 3, 4}, 2, 2)
			torchtest.Equal(t, x, FromSlice[int32](x, nil), []int32{}, 0)
			torchtest.Equal(t, x, FromSlice[int32](x, nil, 0), []int32{}, 0)
			torchtest.Equal(t, x, FromBytes(x, []byte{7}, Uint8, nil), []uint8{7})
			if got := FromBytes(x, []byte{7}, Uint8, nil).Dim(); got != 0 {
				t.Errorf("an empty shape gives %d dimensions", got)
			}
		})
		for _, c := range []struct {
			op, text string
			fail     func(x *Exec)
		}{
			{"FromSlice", "shape [3] has 3 elements; the slice has 2", func(x *Exec) { FromSlice(x, []float32{1, 2}, 3) }},
			{"FromSlice", "shape [-1] has a negative dimension", func(x *Exec) { FromSlice(x, []float32{1, 2}, -1) }},
			{"FromSlice", "shape [1] has 1 elements; the slice has 2", func(x *Exec) { FromSlice(x, []float32{1, 2}, 1) }},
			{"FromBytes", "shape [] and dtype Double has 8 bytes; the host memory has 4", func(x *Exec) { FromBytes(x, make([]byte, 4), Float64, nil) }},
			{"FromBytes", "dtype 77 is not one of LibTorch's", func(x *Exec) { FromBytes(x, make([]byte, 4), DType(77), nil) }},
			{"FromSlice", "shape [4611686018427387904, 4] and dtype Byte has more than 2^63", func(x *Exec) { FromSlice(x, []uint8{1}, 1<<62, 4) }},
			{"FromSlice", "shape [1099511627776] and dtype Float has 4398046511104 bytes; the h", func(x *Exec) { FromSlice(x, []float32{1}, 1<<40) }},
		} {
			wantError(t, torchtest.TryDo(t, d, c.fail), ErrInvalidArgument, c.op, c.text, "copy_test.go")
		}
	})
}

func TestFromSlice_ReadsBeforeReturn(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		data := make([]float32, 1<<20)
		made := FromSlice(x, data)
		into := x.Ones(Float32, 1<<20)
		CopyFrom(x, into, data)
		for i := range data {
			data[i] = 1
		}
		if got := x.Item(x.Sum(x.Add(made, into))); got != 0 {
			t.Errorf("%v elements were read after return", got)
		}
	})
}

// FromSlice accepts a slice of an array in a struct with Go pointers. cgo refuses a pointer into
// such a struct, unless cgo knows that the elements hold no pointers.
func TestFromSlice_BesideGoPointers(t *testing.T) {
	torchtest.CheckLeaks(t)
	batch := &struct {
		names  []string
		pixels [4]uint8
	}{names: []string{"cat", "dog"}, pixels: [4]uint8{1, 2, 3, 4}}
	torchtest.Do(t, CPU, func(x *Exec) {
		made := FromSlice(x, batch.pixels[:])
		torchtest.Equal(t, x, made, []uint8{1, 2, 3, 4})
		CopyFrom(x, made, batch.pixels[:])
		torchtest.Equal(t, x, FromBytes(x, batch.pixels[:2], Uint8, []int64{2}), []uint8{1, 2})
	})
}

func TestToSlice_OfAView(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a := FromSlice(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
		torchtest.Equal(t, x, x.Transpose(a, 0, 1), []float32{1, 4, 2, 5, 3, 6}, 3, 2)
		torchtest.Equal(t, x, x.Select(a, 1, 2), []float32{3, 6})
		torchtest.Equal(t, x, x.Expand(x.Select(a, 1, 0), 2, 2), []float32{1, 4, 1, 4}, 2, 2)
		if got := ToBytes(x, x.To(x.Select(a, 0, 1), Uint8)); !bytes.Equal(got, []byte{4, 5, 6}) {
			t.Errorf("ToBytes gives %v", got)
		}
	})
}

func TestToSlice_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		wantError(t, torchtest.TryDo(t, d, func(x *Exec) { ToSlice[float64](x, x.Ones(Float32, 2)) }), ErrInvalidArgument,
			"ToSlice(float32[2]", "the elements are float32, asked for as float64: convert with x.To", "copy_test.go")
		wantError(t, torchtest.TryDo(t, d, func(x *Exec) { ToSlice[uint16](x, x.Ones(BFloat16, 2)) }), ErrInvalidArgument, "bfloat16")
		wantError(t, torchtest.TryDo(t, d, func(x *Exec) { ToSlice[float32](x, nil) }), ErrInvalidArgument, "ToSlice", "the tensor is nil")
	})
}

// CopyFrom counts as a write: a backward that needs the overwritten values fails.
func TestCopyFrom_CountsAsAWrite(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a := x.Zeros(Float32, 2)
		before := Version(a)
		CopyFrom(x, a, []float32{1, 2})
		if got := Version(a); got != before+1 {
			t.Errorf("version %d, want %d", got, before+1)
		}
		CopyFrom(x, x.Select(a, 0, 1), []float32{7}) // a view
		torchtest.Equal(t, x, a, []float32{1, 7})
	})
}

func TestCopyFrom_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for text, fail := range map[string]func(x *Exec){
			"the elements are float64, the tensor's float32": func(x *Exec) { CopyFrom(x, x.Ones(Float32, 2), []float64{1, 2}) },
			"has 8 bytes; the host memory has 12":            func(x *Exec) { CopyFrom(x, x.Ones(Float32, 2), []float32{1, 2, 3}) },
			"not contiguous": func(x *Exec) {
				CopyFrom(x, x.Transpose(x.Ones(Float32, 2, 3), 0, 1), make([]float32, 6))
			},
		} {
			wantError(t, torchtest.TryDo(t, d, fail), ErrInvalidArgument, "CopyFrom(float32[", text, "copy_test.go")
		}
	})
}

// Copies outside a Do run one after another. They run after the given events, and between the two
// returned events.
func TestStream_CopyFrom(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		stop, err := CheckStreams(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		s, other := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		slab := newSlab(t, 6)
		if d.IsCUDA() {
			must.Do(t, slab.Pin())
		}
		copy(slab.Bytes(), []byte{1, 2, 3, 4, 5, 6})
		var a, b *Tensor
		var used *Event
		torchtest.DoOn(t, other, func(x *Exec) {
			a, b = x.Keep(x.Zeros(Uint8, 2)), x.Keep(x.Zeros(Uint8, 2, 2))
			torchtest.Sleep(x, 20*time.Millisecond)
			x.FillInPlace(a, 9)
			used = x.Record()
		})
		defer a.Close()
		defer b.Close()
		defer used.Close()
		began, done, err := s.CopyFrom([]*Event{used}, HostCopy{a, slab.Bytes()[:2]}, HostCopy{b, slab.Bytes()[2:]})
		if err != nil {
			t.Fatal(err)
		}
		defer began.Close()
		defer done.Close()
		torchtest.DoOn(t, other, func(x *Exec) {
			x.Wait(done)
			if got := append(ToBytes(x, a), ToBytes(x, b)...); !slices.Equal(got, []byte{1, 2, 3, 4, 5, 6}) {
				t.Errorf("got %v", got)
			}
		})
		if ms, err := done.Elapsed(began); err != nil || ms < 0 {
			t.Errorf("the copies took %v ms, %v", ms, err)
		}
	})
}

func TestStream_CopyFrom_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var a *Tensor
		torchtest.DoOn(t, s, func(x *Exec) { a = x.Keep(x.Zeros(Uint8, 2)) })
		defer a.Close()
		data := []byte{1, 2}
		refused := func(want error, text string, behind []*Event, copies ...HostCopy) {
			t.Helper()
			_, _, err := s.CopyFrom(behind, copies...)
			wantError(t, err, want, "Stream.CopyFrom", text)
		}
		refused(ErrInvalidArgument, "has 2 bytes; the host memory has 1", nil, HostCopy{a, data}, HostCopy{a, data[:1]})
		refused(ErrClosed, "the tensor is nil or closed", nil, HostCopy{nil, data})
		began, done, err := s.CopyFrom([]*Event{nil, nil}, HostCopy{a, data})
		must.Do(t, err)
		must.Do(t, done.Synchronize())
		began.Close()
		done.Close()
		closed := Must(s.Record())
		closed.Close()
		refused(ErrClosed, "the event is closed", []*Event{closed}, HostCopy{a, data})
		torchtest.DoOn(t, s, func(x *Exec) {
			refused(ErrMisuse, "inside a Do of this stream", nil, HostCopy{a, data})
			wantError(t, s.CopyTo(nil, data), ErrClosed, "Stream.CopyTo")
		})
	})
}

func TestItem(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			for _, dtype := range []DType{Uint8, Int8, Int16, Int32, Int64, Float16, Float32, Float64, BFloat16, Uint16, Uint32, Uint64} {
				if got := x.Item(x.To(x.Full(Float32, 3.0), dtype)); got != 3 {
					t.Errorf("%v: got %v, want 3", dtype, got)
				}
			}
			if got := x.Item(FromSlice(x, []bool{true})); got != 1 {
				t.Errorf("true is %v", got)
			}
		})
		wantError(t, torchtest.TryDo(t, d, func(x *Exec) { x.Item(x.Ones(Float32, 2)) }), ErrInvalidArgument, "Exec.Item(float32[2]", "copy_test.go")
		wantError(t, torchtest.TryDo(t, d, func(x *Exec) { x.Item(x.Ones(Float32, 0)) }), ErrInvalidArgument, "Exec.Item(float32[0]")
		wantError(t, torchtest.TryDo(t, d, func(x *Exec) { x.Item(FromSlice(x, []complex64{1i})) }), ErrInvalidArgument, "Exec.Item(complex64[1]", "a complex number")
	})
}

// ToSlice reads values that a float64 cannot hold.
func TestToSlice_Exact(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			const large = 9007199254740993 // 2^53 + 1
			if got := ToSlice[int64](x, FromSlice(x, []int64{large}))[0]; got != large {
				t.Errorf("got %d, want %d", got, int64(large))
			}
			if got := x.Item(FromSlice(x, []int64{large})); got != large-1 {
				t.Errorf("Item gives %v: its comment says that it rounds", got)
			}
			if got := ToSlice[uint64](x, FromSlice(x, []uint64{math.MaxUint64}))[0]; got != math.MaxUint64 {
				t.Errorf("got %d, want the largest uint64", got)
			}
			if got := ToSlice[int64](x, x.Select(FromSlice(x, []int64{1, large, 3}), 0, 1))[0]; got != large { // a view
				t.Errorf("got %d of a view, want %d", got, int64(large))
			}
			if got := ToSlice[complex64](x, FromSlice(x, []complex64{1 - 2i}, 1, 1))[0]; got != 1-2i {
				t.Errorf("got %v, want 1-2i", got)
			}
			if got := ToSlice[complex64](x, x.Conj(FromSlice(x, []complex64{1 - 2i})))[0]; got != 1+2i {
				t.Errorf("got %v of a conjugated view, want 1+2i", got)
			}
			if !ToSlice[bool](x, FromSlice(x, []bool{true}))[0] {
				t.Error("true is false")
			}
			if got := ToSlice[BFloat16Bits](x, x.Ones(BFloat16))[0]; got != 0x3f80 {
				t.Errorf("1 has the bits %x in bfloat16, want 3f80", got)
			}
		})
		for want, run := range map[string]func(x *Exec){
			"ToSlice(float32[]":                            func(x *Exec) { ToSlice[float64](x, x.Ones(Float32)) },
			"the elements are float32, asked for as int64": func(x *Exec) { ToSlice[int64](x, x.Ones(Float32)) },
			"the tensor is nil":                            func(x *Exec) { ToSlice[float32](x, nil) },
		} {
			wantError(t, torchtest.TryDo(t, d, run), ErrInvalidArgument, "ToSlice", want)
		}
	})
}

func TestElements_HaveTheirSize(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		for d := range DTypes {
			if got := len(ToBytes(x, FromBytes(x, make([]byte, 6*d.Size()), d, []int64{2, 3}))); got != 6*d.Size() {
				t.Errorf("six elements of %v have %d bytes", d, got)
			}
		}
	})
}

func TestFromRows_ToRows(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			rows := [][]int32{{1, 2, 3}, {4, 5, 6}}
			v := FromRows(x, rows)
			if got := ToRows[int32](x, v); !reflect.DeepEqual(got, rows) || v.String() != x.To(v, Int32).String() || v.Dim() != 2 {
				t.Errorf("got %v of %s", got, v)
			}
			if v := FromRows(x, [][]float32{}); v.Numel() != 0 || v.Dim() != 2 {
				t.Errorf("no rows give %s", v)
			}
		})
		wantError(t, torchtest.TryDo(t, d, func(x *Exec) { FromRows(x, [][]float32{{1}, {2, 3}}) }), ErrInvalidArgument, "row 1 has 2 elements, and row 0 has 1", "copy_test.go")
		wantError(t, torchtest.TryDo(t, d, func(x *Exec) { ToRows[float32](x, x.Ones(Float32, 2)) }), ErrInvalidArgument, "want two dimensions", "copy_test.go")
	})
}
