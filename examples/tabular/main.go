// Tabular trains a regression on a CSV file: eight columns of numbers predict a ninth, the price.
// Without an argument it makes such a file itself.
//
//	go run ./examples/tabular [FILE.csv]
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/prefetcher"
)

var columns = []string{"a", "b", "c", "d", "e", "f", "g", "h"}

func main() {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("houses-%d.csv", os.Getpid()))
	defer os.Remove(path)
	err := writeHouses(path)
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	if err == nil {
		err = train(context.Background(), path)
	}
	if err != nil {
		log.Print(err)
	}
}

func train(ctx context.Context, path string) error {
	device, err := cgotorch.ParseDevice("auto")
	if err != nil {
		return err
	}
	rows, err := data.OpenCSV(path, data.CSVOptions{Fields: []data.Field{
		{Name: "features", DType: cgotorch.Float32, Shape: []int64{int64(len(columns))}, From: columns}, // eight columns, one tensor
		{Name: "price", DType: cgotorch.Float32},
	}})
	if err != nil {
		return err
	}
	loader, err := data.NewStreamLoader(rows, data.Options{BatchSize: 256, Shuffle: true}) // the file may be larger than memory
	if err != nil {
		return err
	}
	defer loader.Close()
	ahead, err := prefetcher.NewTensors(loader, device, prefetcher.TensorOptions{})
	if err != nil {
		return err
	}
	defer ahead.Close()
	stream := cgotorch.DefaultStream(device)
	var model nn.Module
	var opt *optim.Optimizer
	err = stream.Do(func(x *cgotorch.Exec) error {
		model = nn.NewSequential(nn.NewLinear(x, len(columns), 64, nn.LinearOptions{}), &nn.ReLU{}, nn.NewLinear(x, 64, 1, nn.LinearOptions{}))
		opt, err = optim.NewAdam(optim.AdamOptions{LR: 0.003}, optim.Group{Params: nn.Parameters(model)})
		return err
	})
	if err != nil {
		return err
	}
	defer nn.Close(model)
	defer opt.Close()

	for epoch := range 5 {
		sum, batches := 0.0, 0
		for batch, err := range ahead.Epoch(ctx) {
			if err != nil {
				return err
			}
			err = stream.Do(func(x *cgotorch.Exec) error {
				in := batch.Use(x) // the stream waits for the copy, but the host does not wait
				opt.ZeroGrad()
				loss := nn.MSE(x, x.Squeeze(model.Forward(x, in["features"]), 1), in["price"], nn.MSEOptions{})
				x.Backward(loss)
				opt.Step(x)
				sum, batches = sum+x.Item(loss), batches+1 // x.Item waits for the device
				return nil
			})
			if err != nil {
				return err
			}
		}
		fmt.Printf("epoch %d: loss %.4f\n", epoch, sum/float64(batches))
	}
	return nil
}

// writeHouses writes 10,000 rows whose last column depends on the others.
func writeHouses(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w, random := bufio.NewWriter(f), rand.New(rand.NewPCG(1, 2))
	fmt.Fprintln(w, "a,b,c,d,e,f,g,h,price")
	for range 10_000 {
		var v [8]float64
		for i := range v {
			v[i] = random.NormFloat64()
			fmt.Fprintf(w, "%.4f,", v[i])
		}
		fmt.Fprintf(w, "%.4f\n", v[0]+2*math.Max(v[1], v[2])-v[3]*v[4]+0.1*random.NormFloat64())
	}
	return w.Flush()
}
