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
		fmt.Println(x.Item(hidden))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 6
}

// A layer has four experts in host memory, and two slots on the device. A token picks two experts.
func ExampleTable() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		const width, inner = 8, 16
		table, err := weights.NewTable(x, weights.TableOptions{
			Layers: 1, Experts: 4, Matrices: [][2]int64{{2 * inner, width}, {width, inner}}, DType: cgotorch.BFloat16, Slots: 2,
		})
		if err != nil {
			return err
		}
		defer table.Close()
		layer := table.Layer(0)
		for _, matrices := range layer.Experts {
			x.FillInPlace(matrices, 0.01)
		}
		router := cgotorch.FromSlice(x, []float32{1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}, 4, width)
		arrived, top := x.Zeros(cgotorch.Int32, 1), 2
		for _, token := range [][]float32{{3, 2, 1, 0, 0, 0, 0, 0}, {0, 3, 2, 1, 0, 0, 0, 0}} {
			in := cgotorch.FromSlice(x, token, 1, width)
			route := x.Call("streamtorch::token_route", in, router, nil, nil, 0.0, false, top, true, arrived, "early", layer.Places, layer.Counts, layer.LFU)
			picks, shares := route[0].(*cgotorch.Tensor), route[1].(*cgotorch.Tensor)
			inside := x.Call1("streamtorch::token_experts", in, layer.Experts[0], picks, layer.Slots[0])
			x.Call1("streamtorch::token_experts", inside, layer.Experts[1], picks, layer.Slots[1], shares, nil, nil, 0.0, false, "add", in)
		}
		stats := table.Stats(x)
		fmt.Println(stats.Hits, "hit,", stats.Misses, "misses,", stats.BusBytes, "bytes over the bus")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 1 hit, 3 misses, 2304 bytes over the bus
}
