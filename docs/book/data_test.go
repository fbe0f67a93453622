package book

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/prefetcher"
)

func Example_slices() {
	folder, err := os.MkdirTemp("", "book")
	must(err)
	defer os.RemoveAll(folder)
	ctx := context.Background()
	must(cgotorch.Seed(1))
	points, labels := twoClouds()

	// cut: slices
	table, err := data.NewTable(data.Of("point", points, 2), data.Of("label", labels)) // []float32, []int64
	must(err)
	loader, err := data.NewLoader(table, data.Options{BatchSize: 50, Shuffle: true})
	must(err)
	defer loader.Close()
	ahead, err := prefetcher.NewTensors(loader, cgotorch.CPU, prefetcher.TensorOptions{})
	must(err)
	defer ahead.Close()

	var model *nn.Linear
	var opt *optim.Optimizer
	must(stream.Do(func(x *cgotorch.Exec) error {
		model = nn.NewLinear(x, 2, 2, nn.LinearOptions{})
		opt, err = optim.NewAdam(optim.AdamOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)})
		return err
	}))
	defer nn.Close(model)
	defer opt.Close()

	for range 5 {
		for batch, err := range ahead.Epoch(ctx) {
			must(err)
			must(stream.Do(func(x *cgotorch.Exec) error {
				in := batch.Use(x)
				opt.ZeroGrad()
				loss := nn.CrossEntropy(x, model.Forward(x, in["point"]), in["label"], nn.CrossEntropyOptions{})
				x.Backward(loss)
				opt.Step(x)
				return nil
			}))
		}
	}
	// end: slices
	must(stream.Do(func(x *cgotorch.Exec) error {
		logits := model.Forward(x.NoGrad(), cgotorch.FromSlice(x, points, int64(len(labels)), 2))
		right := metric.Correct(x, logits, cgotorch.FromSlice(x, labels), 1)
		if got := int(x.Item(right)); got != len(labels) {
			return fmt.Errorf("%d of %d right", got, len(labels))
		}
		return nil
	}))

	// cut: save
	path := filepath.Join(folder, "clouds.safetensors")
	run := checkpoint.Checkpoint{Model: model, Optimizer: opt, Epoch: 5}
	must(stream.Do(func(x *cgotorch.Exec) error { return checkpoint.Save(x, path, run) }))
	must(stream.Do(func(x *cgotorch.Exec) error { // in another program
		again := nn.NewLinear(x, 2, 2, nn.LinearOptions{})
		defer nn.Close(again)
		err := checkpoint.LoadModel(x, path, again, nn.LoadOptions{})
		fmt.Println("the same weights:", x.Equal(again.Weight, model.Weight), err)
		return err
	}))
	// end: save

	// Output: the same weights: true <nil>
}

// twoClouds returns points around (1, 1) with label 1 and points around (-1, -1) with label 0.
func twoClouds() (points []float32, labels []int64) {
	for i := range 500 {
		side, shift := int64(i%2), float32(i%7)/10-0.3
		centre := float32(2*side - 1)
		points, labels = append(points, centre+shift, centre-shift), append(labels, side)
	}
	return points, labels
}

func Example_sequence() {
	// cut: sequence
	fields := []data.Field{{Name: "x", DType: cgotorch.Float32, Shape: []int64{2}}, {Name: "y", DType: cgotorch.Int64}}
	samples := func(ctx context.Context) iter.Seq2[data.Sample, error] { // called once for each epoch
		return func(yield func(data.Sample, error) bool) {
			for i := range 3 { // read a file, or ask a server
				if !yield(data.Sample{"x": []float32{float32(i), 1}, "y": int64(i)}, nil) {
					return
				}
			}
		}
	}
	sequence, err := data.NewSequence("my sensor", fields, samples)
	must(err)
	loader, err := data.NewStreamLoader(sequence, data.Options{BatchSize: 2})
	must(err)
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background()) {
		must(err)
		fmt.Println(data.Values[float32](batch.Column("x")), data.Values[int64](batch.Column("y")))
		batch.Release() // or let a prefetcher do it
	}
	// end: sequence

	// Output:
	// [0 1 1 1] [0 1]
	// [2 1] [2]
}

func Example_csv() {
	folder, err := os.MkdirTemp("", "book")
	must(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "houses.csv")
	must(os.WriteFile(path, []byte("height,width,street,price\n1,2,Elm,3.5\n4,5,Oak,6.5\n"), 0o600))

	// cut: csv
	rows, err := data.OpenCSV(path, data.CSVOptions{Fields: []data.Field{
		{Name: "size", DType: cgotorch.Float32, Shape: []int64{2}, From: []string{"height", "width"}}, // two columns
		{Name: "price", DType: cgotorch.Float32},                                                      // one
	}})
	must(err)
	loader, err := data.NewStreamLoader(rows, data.Options{BatchSize: 256, Shuffle: true})
	must(err)
	// end: csv
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background()) {
		must(err)
		fmt.Println(batch.N, data.Values[float32](batch.Column("size"))[1] == data.Values[float32](batch.Column("size"))[0]+1)
		batch.Release()
	}
	// Output: 2 true
}
