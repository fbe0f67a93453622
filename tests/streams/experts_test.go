//go:build cgo && linux

package streams

import (
	"fmt"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
	"github.com/streamtorch/streamtorch/tests/streams/ambient"
)

// Experts are copied from host memory, and the device chooses them. The work on a token does not
// wait for the device. LibTorch's sync-debug mode and x.NoWaits check this. Sync-debug mode is a
// switch of the whole process.
func TestSyncDebug_Experts(t *testing.T) {
	torchtest.CUDA(t)
	const experts, layers, width = 8, 3, 256
	d := cgotorch.CUDA(0)
	var specs []weights.UnitSpec
	names := make([][]string, layers)
	for layer := range layers {
		for expert := range experts {
			name := fmt.Sprintf("%d.%d", layer, expert)
			names[layer] = append(names[layer], name)
			specs = append(specs, weights.UnitSpec{Name: name, Tensors: []weights.TensorSpec{
				{Name: "weight", DType: cgotorch.Float32, Shape: []int64{width, width}}, {Name: "bias", DType: cgotorch.Float32, Shape: []int64{width}}}})
		}
	}
	store := must.Get(weights.NewStore(specs))(t)
	defer store.Close()
	build := func(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
		return nn.NewLinear(x, width, width, nn.LinearOptions{}), nil
	}
	cache := must.Get(weights.NewCache(store, d, build, weights.CacheOptions{Slots: 3}))(t)
	defer cache.Close()
	mixture := must.Get(weights.NewExperts(cache, names, weights.ExpertsOptions{}))(t)
	defer mixture.Close()
	stream := cgotorch.DefaultStream(d)
	var routers [layers]*cgotorch.Tensor
	torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
		for i := range routers {
			routers[i] = x.Keep(x.Randn(cgotorch.Float32, experts, width))
		}
	})
	defer func() {
		for _, r := range routers {
			r.Close()
		}
	}()
	token := func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		hidden := x.Randn(cgotorch.Float32, 1, width)
		for layer, router := range routers {
			_, ids := x.MaxDim(x.Linear(hidden, router, nil), 1, cgotorch.ReduceOptions{})
			mixture.Route(x, layer, ids)
			hidden = x.Add(x.Randn(cgotorch.Float32, 1, width), mixture.Run(x, layer, hidden))
		}
		return nil
	}
	for range 3 { // the first runs allocate memory
		must.Do(t, stream.Do(token))
	}
	restore := must.Get(ambient.SyncDebug(2))(t)
	defer restore()
	before := cache.Stats()
	for i := range 50 {
		if err := stream.Do(func(x *cgotorch.Exec) error { return token(x.NoWaits()) }); err != nil {
			t.Fatalf("token %d: %v", i, err)
		}
	}
	if st := cache.Stats(); st.Uses()-before.Uses() != 50*layers || st.Bytes == before.Bytes {
		t.Errorf("%+v", st)
	}
}
