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
)

func Example_slices() {
	folder, err := os.MkdirTemp("", "book")
	cgotorch.Check(err)
	defer os.RemoveAll(folder)
	ctx := context.Background()
	cgotorch.Check(cgotorch.Seed(1))
	points, labels := twoClouds()

	// cut: slices
	table := cgotorch.Must(data.NewTable(data.Of("point", points, 2), data.Of("label", labels))) // []float32, []int64
	loader := cgotorch.Must(data.NewLoader(table, data.Options{BatchSize: 50, Shuffle: true}))
	defer loader.Close()

	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (*nn.Linear, error) {
		return nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nil
	}))
	defer nn.Close(model)
	opt := cgotorch.Must(optim.NewAdam(optim.AdamOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)}))
	defer opt.Close()

	for range 5 {
		cgotorch.Must(cgotorch.DoEach(stream, loader.Epoch(ctx), func(x *cgotorch.Exec, batch *data.Batch) error {
			in := batch.Use(x) // to hide the copy to a GPU, put prefetcher.NewTensors around the loader
			opt.Minimize(x, nn.CrossEntropy(x, model.Forward(x, in["point"]), in["label"], nn.CrossEntropyOptions{}))
			return nil
		}))
	}
	// end: slices
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
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
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { return checkpoint.Save(x, path, run) }))
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { // in another program
		again := nn.NewLinear(x, 2, 2, nn.LinearOptions{})
		defer nn.Close(again)
		cgotorch.Check(checkpoint.LoadModel(x, path, again, nn.LoadOptions{}))
		fmt.Println("the same weights:", x.Equal(again.Weight, model.Weight))
		return nil
	}))
	// end: save

	// Output: the same weights: true
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
	cgotorch.Check(err)
	loader, err := data.NewStreamLoader(sequence, data.Options{BatchSize: 2})
	cgotorch.Check(err)
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background()) {
		cgotorch.Check(err)
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
	cgotorch.Check(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "houses.csv")
	cgotorch.Check(os.WriteFile(path, []byte("height,width,street,price\n1,2,Elm,3.5\n4,5,Oak,6.5\n"), 0o600))

	ctx := context.Background()

	// cut: csv
	whole := cgotorch.Must(data.OpenCSV(path, data.CSVOptions{}))    // each column is a field
	streets := cgotorch.Must(data.ReadClasses(ctx, whole, "street")) // its texts, sorted
	rows := cgotorch.Must(data.OpenCSV(path, data.CSVOptions{Fields: []data.Field{
		{Name: "size", DType: cgotorch.Float32, Shape: []int64{2}, From: []string{"height", "width"}}, // two columns
		{Name: "street", DType: cgotorch.Int64, Classes: streets},                                     // the number of a text
		{Name: "price", DType: cgotorch.Float32},
	}}))
	loader := cgotorch.Must(data.NewStreamLoader(rows, data.Options{BatchSize: 256, Shuffle: true}))
	// end: csv
	defer loader.Close()
	for batch, err := range loader.Epoch(ctx) {
		cgotorch.Check(err)
		fmt.Println(batch.N, streets, data.Values[int64](batch.Column("street"))[0] == int64(data.Values[float32](batch.Column("size"))[0])/4)
		batch.Release()
	}
	// Output: 2 [Elm Oak] true
}
