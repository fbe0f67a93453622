package cgotorch

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func newParts(t *testing.T, d Device, count, multiprocessors int) []*Stream {
	t.Helper()
	parts, err := NewPartStreams(d, count, multiprocessors)
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range parts {
			s.Close()
		}
	})
	return parts
}

// Branches on parts of the device give what they give anywhere.
func TestNewPartStreams(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d Device) {
		checkLeaks(t)
		for range 2 { // closed streams serve again
			parts := newParts(t, d, 2, 16)
			s := newStream(t, d)
			withoutRaces(t, func() {
				if err := s.Do(func(x *Exec) error {
					in := x.Randn(Float32, 64, 64)
					branch := func(x *Exec) *Tensor { return x.Tanh(x.MM(in, in)) }
					want := ToSlice[float32](x, branch(x))
					for _, out := range x.ParallelWith(ParallelOptions{Streams: parts}, branch, branch, branch) {
						if !slices.Equal(ToSlice[float32](x, out), want) {
							t.Error("a branch on a part gives other values")
						}
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// A kernel that would fill the device takes several times as long on a part of it, and as long beside one on another part.
func TestNewPartStreams_AreParts(t *testing.T) {
	d := cuda(t)
	parts := newParts(t, d, 2, 16)
	whole := newStream(t, d)
	const n = 4096
	in := kept(t, whole, 1, func(x *Exec) *Tensor { return x.Randn(Float32, n, n) })[0]
	outs := kept(t, whole, 2, func(x *Exec) *Tensor { return x.Zeros(Float32, n, n) })
	took := func(streams ...*Stream) time.Duration {
		if err := d.Synchronize(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for i, s := range streams {
			if err := s.Do(func(x *Exec) error {
				for range 4 {
					x.Call("aten::mm.out", in, in, outs[i])
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Synchronize(); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	for _, s := range []*Stream{whole, parts[0], parts[1]} {
		took(s) // loads kernels
	}
	all, one, both := took(whole), took(parts[0]), took(parts...)
	t.Logf("the whole device %v, a part %v, two parts at once %v", all, one, both)
	if one < 3*all || both > one*3/2 {
		t.Errorf("the whole device %v, a part %v, two parts at once %v", all, one, both)
	}
}

func TestNewPartStreams_BadInput(t *testing.T) {
	onEachDevice(t, func(t *testing.T, d Device) {
		for _, c := range []struct{ count, multiprocessors int }{{0, 16}, {1, 0}, {1, -1}, {-1, 8}, {1, 1 << 20}} {
			if _, err := NewPartStreams(d, c.count, c.multiprocessors); !errors.Is(err, ErrInvalidArgument) {
				t.Errorf("%+v gave %v", c, err)
			}
		}
	})
	d := cuda(t)
	newParts(t, d, 1, 16)
	for _, c := range []struct{ count, multiprocessors int }{{1000, 16}, {1, 1000}} {
		if _, err := NewPartStreams(d, c.count, c.multiprocessors); !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "1000") {
			t.Errorf("%+v gave %v", c, err)
		}
	}
}
