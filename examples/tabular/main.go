// Tabular trains a regression on a CSV file: eight columns of numbers and a town predict a price.
// Without an argument it makes such a file itself.
//
//	go run ./examples/tabular [FILE.csv]
package main

import (
	"bufio"
	"context"
	"fmt"
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
	cgotorch.Check(writeHouses(path))
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	ctx, device := context.Background(), cgotorch.Must(cgotorch.ParseDevice("auto"))
	towns := cgotorch.Must(data.ReadClasses(ctx, cgotorch.Must(data.OpenCSV(path, data.CSVOptions{})), "town"))
	rows := cgotorch.Must(data.OpenCSV(path, data.CSVOptions{Fields: []data.Field{
		{Name: "features", DType: cgotorch.Float32, Shape: []int64{int64(len(columns))}, From: columns}, // eight columns, one tensor
		{Name: "town", DType: cgotorch.Int64, Classes: towns},                                           // the text towns[i] becomes i
		{Name: "price", DType: cgotorch.Float32},
	}}))
	standard := cgotorch.Must(data.ReadStandardizer(ctx, rows, "features"))                                             // each column gets mean 0 and deviation 1; keep it with the model
	loader := cgotorch.Must(data.NewStreamLoader(rows, data.Options{BatchSize: 256, Shuffle: true, Map: standard.Map})) // the file may be larger than memory
	ahead := cgotorch.Must(prefetcher.NewTensors(loader, device, prefetcher.TensorOptions{}))

	stream := cgotorch.DefaultStream(device)
	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (*net, error) {
		return &net{
			Towns:  nn.NewEmbedding(x, len(towns), 4, nn.EmbeddingOptions{}),
			Layers: nn.NewSequential(nn.NewLinear(x, len(columns)+4, 64, nn.LinearOptions{}), &nn.ReLU{}, nn.NewLinear(x, 64, 1, nn.LinearOptions{})),
		}, nil
	}))
	opt := cgotorch.Must(optim.NewAdam(optim.AdamOptions{LR: 0.003}, optim.Group{Params: nn.Parameters(model)}))
	for epoch := range 5 {
		sum := 0.0
		batches := cgotorch.Must(cgotorch.DoEach(stream, ahead.Epoch(ctx), func(x *cgotorch.Exec, batch *prefetcher.TensorBatch) error {
			in := batch.Use(x) // the stream waits for the copy, but the host does not wait
			loss := nn.MSE(x, model.forward(x, in["features"], in["town"]), in["price"], nn.MSEOptions{})
			opt.Minimize(x, loss)
			sum += x.Item(loss) // x.Item waits for the device
			return nil
		}))
		fmt.Printf("epoch %d: loss %.4f\n", epoch, sum/float64(batches))
	}
} // the end of the process frees everything; a longer program closes opt, model, ahead and loader

// net predicts a price from eight numbers and a town.
type net struct {
	Towns  *nn.Embedding
	Layers *nn.Sequential
}

func (n *net) forward(x *cgotorch.Exec, features, town *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Squeeze(n.Layers.Forward(x, x.Cat([]*cgotorch.Tensor{features, n.Towns.Forward(x, town)}, 1)), 1)
}

// writeHouses writes 10,000 rows whose last column depends on the others.
func writeHouses(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	towns := []string{"Aalen", "Bonn", "Celle"}
	w, random := bufio.NewWriter(f), rand.New(rand.NewPCG(1, 2))
	fmt.Fprintln(w, "a,b,c,d,e,f,g,h,town,price")
	for i := range 10_000 {
		town := i % len(towns)
		var v [8]float64
		for i := range v {
			v[i] = random.NormFloat64()
			fmt.Fprintf(w, "%.4f,", v[i])
		}
		fmt.Fprintf(w, "%s,%.4f\n", towns[town], float64(town)+v[0]+2*math.Max(v[1], v[2])-v[3]*v[4]+0.1*random.NormFloat64())
	}
	return w.Flush()
}
