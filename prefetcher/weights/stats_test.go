package weights

import (
	"errors"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A copy for which a stream has to wait counts as stall. A copy that was done before the Use does
// not.
func TestCacheStats_Stall(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		const side = 4096
		s, err := NewStore([]UnitSpec{{Name: "0", Tensors: []TensorSpec{{Name: "weight", DType: cgotorch.Float32, Shape: []int64{side, side}}}},
			{Name: "1", Tensors: []TensorSpec{{Name: "weight", DType: cgotorch.Float32, Shape: []int64{side, side}}}}})
		must.Do(t, err)
		defer s.Close()
		build := func(x *cgotorch.Exec, _ string) (*struct{ Weight *cgotorch.Tensor }, error) {
			return &struct{ Weight *cgotorch.Tensor }{x.Keep(x.Empty(cgotorch.Float32, side, side))}, nil
		}
		c := must.Get(NewCache(s, d, build, CacheOptions{Slots: 1}))(t)
		defer c.Close()
		stream := torchtest.NewStream(t, d)
		use := func(name string) CacheStats {
			t.Helper()
			torchtest.DoOn(t, stream, func(x *cgotorch.Exec) { c.Use(x, name).Release(x) })
			must.Do(t, d.Synchronize())
			return c.Stats()
		}
		first := use("0")
		if first.Copy <= 0 || first.Bytes != 4*side*side {
			t.Errorf("%+v: want the time and the bytes of a copy", first)
		}
		if d.IsCUDA() && first.Stall < first.Copy/2 {
			t.Errorf("%+v: the stream stood for the copy", first)
		}
		must.Do(t, c.Prefetch(t.Context(), "1"))
		must.Do(t, errors.Join(c.Flush(t.Context()), d.Synchronize()))
		if second := use("1"); second.Stall != first.Stall || second.Copy <= first.Copy {
			t.Errorf("%+v, before %+v: the stream stood for a copy that was done", second, first)
		}
	})
}
