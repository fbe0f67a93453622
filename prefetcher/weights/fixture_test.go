package weights

import (
	"context"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

const width = 16

func unitName(i int) string { return fmt.Sprintf("block.%d.mlp", i) }

func linearSpec(name string) UnitSpec {
	return UnitSpec{Name: name, Tensors: []TensorSpec{
		{Name: "weight", DType: cgotorch.Float32, Shape: []int64{width, width}},
		{Name: "bias", DType: cgotorch.Float32, Shape: []int64{width}},
	}}
}

// scalesStore returns a store of n linear layers. Layer i multiplies by i+1 and adds i.
func scalesStore(t testing.TB, n int) *Store {
	t.Helper()
	var specs []UnitSpec
	for i := range n {
		specs = append(specs, linearSpec(unitName(i)))
	}
	s := must.Get(NewStore(specs))(t)
	t.Cleanup(func() { must.Check(t, s.Close()) })
	for i := range n {
		fillScale(t, s, i, float32(i+1), float32(i))
	}
	return s
}

func fillScale(t testing.TB, s *Store, i int, scale, offset float32) {
	weight, bias := floats(t, s, unitName(i), "weight"), floats(t, s, unitName(i), "bias")
	clear(weight)
	for k := range width {
		weight[k*width+k] = scale
		bias[k] = offset
	}
}

func newLinear(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
	return nn.NewLinear(x, width, width, nn.LinearOptions{}), nil
}

func newCache(t testing.TB, s *Store, d cgotorch.Device, o CacheOptions) *Cache[*nn.Linear] {
	t.Helper()
	c := must.Get(NewCache(s, d, newLinear, o))(t)
	t.Cleanup(func() { must.Check(t, c.Close()) })
	return c
}

// apply runs unit i on a tensor of ones and checks the mean of the result.
func apply(t testing.TB, x *cgotorch.Exec, c *Cache[*nn.Linear], i int) {
	t.Helper()
	u := c.Use(x, unitName(i))
	out := u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width))
	u.Release(x)
	if got, want := x.Item(x.Mean(out)), float64(2*i+1); got != want {
		t.Errorf("unit %d gives %v, want %v", i, got, want)
	}
}

// mean runs unit i on a tensor of ones, after a sleep of the stream, and returns the mean.
func mean(x *cgotorch.Exec, c *Cache[*nn.Linear], i int) *cgotorch.HostRead {
	u := c.Use(x, unitName(i))
	defer u.Release(x)
	torchtest.Sleep(x, 10*time.Millisecond)
	return x.ReadAsync(x.Mean(u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width))))
}

// checkMeans fails the test unless the means of units 0, 1, … have the values that the function
// `apply` expects too.
func checkMeans(t *testing.T, means []*cgotorch.HostRead) {
	t.Helper()
	for i, r := range means {
		got, err := r.Item()
		if want := float64(2*i + 1); err != nil || got != want {
			t.Errorf("unit %d gave %v, want %v (%v)", i, got, want, err)
		}
		r.Close()
	}
}

func prefetch(t testing.TB, c *Cache[*nn.Linear], units ...int) {
	t.Helper()
	for _, i := range units {
		must.Do(t, c.Prefetch(context.Background(), unitName(i)))
	}
}

// empty empties all slots, as copies that fail do.
func empty(c *Cache[*nn.Linear]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.slots {
		if s.holds != nil {
			s.holds.slot, s.holds = nil, nil
		}
	}
}

// floats returns a tensor of a store as numbers.
func floats(t testing.TB, s *Store, unit, tensor string) []float32 {
	t.Helper()
	data := must.Get(s.Bytes(unit, tensor))(t)
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/4)
}
