package weights_test

import (
	"fmt"
	"log"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// Three layers live in host memory, and the device has room for two. Layer i multiplies by i+1.
func Example() {
	var units []weights.UnitSpec
	for i := range 3 {
		units = append(units, weights.UnitSpec{Name: fmt.Sprint("layer.", i), Tensors: []weights.TensorSpec{
			{Name: "weight", DType: cgotorch.Float32, Shape: []int64{1, 1}},
		}})
	}
	store, err := weights.NewStore(units)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	for i, factor := range [][]byte{{0, 0, 0x80, 0x3f}, {0, 0, 0, 0x40}, {0, 0, 0x40, 0x40}} { // 1, 2 and 3
		bytes, err := store.Bytes(units[i].Name, "weight")
		if err != nil {
			log.Fatal(err)
		}
		copy(bytes, factor)
	}

	build := func(x *cgotorch.Exec, _ string) (*nn.Linear, error) {
		return nn.NewLinear(x, 1, 1, nn.LinearOptions{NoBias: true}), nil
	}
	layers, err := weights.NewCache(store, cgotorch.CPU, build, weights.CacheOptions{Policy: weights.NextLayer})
	if err != nil {
		log.Fatal(err)
	}
	defer layers.Close()
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err = stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		hidden := x.Ones(cgotorch.Float32, 1, 1)
		for _, name := range store.Units() {
			layer := layers.Use(x, name) // x's stream waits for the copy, and the next copy has begun
			hidden = layer.Module.Forward(x, hidden)
			layer.Release(x)
		}
		fmt.Println(x.Item(hidden), "with", layers.Slots(), "slots")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 6 with 2 slots
}
