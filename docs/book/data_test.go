package book

import (
	"context"
	"errors"
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
	table := cgotorch.Must(data.NewTable(data.Of("point", points, 2), data.Of("label", labels))) // []float32, []int
	train, test := cgotorch.Must(table.Slice(0, 400)), cgotorch.Must(table.Slice(400, table.Len()))
	loader := cgotorch.Must(data.NewLoader(train, data.Options{BatchSize: 50, Shuffle: true}))
	defer loader.Close()

	model := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (*nn.Linear, error) {
		return nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nil
	}))
	defer nn.Close(model)
	opt := cgotorch.Must(optim.NewAdam(optim.AdamOptions{LR: 0.1}, optim.Group{Params: nn.Parameters(model)}))
	defer opt.Close()

	for range 5 {
		cgotorch.Must(cgotorch.DoEach(stream, loader.Epoch(ctx), func(x *cgotorch.Exec, batch *data.Batch) {
			in := batch.Use(x) // to hide the copy to a GPU, put prefetcher.NewTensors around the loader
			opt.Minimize(x, nn.CrossEntropy(x, model.Forward(x, in["point"]), in["label"], nn.CrossEntropyOptions{}))
		}))
	}
	// end: slices

	path := filepath.Join(folder, "clouds.safetensors")
	// cut: save
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		return checkpoint.Save(x, path, checkpoint.Checkpoint{Model: model, Optimizer: opt, Epoch: 5})
	}))
	again := cgotorch.Must(cgotorch.DoValue(stream, func(x *cgotorch.Exec) (*nn.Linear, error) { // in another program
		m := nn.NewLinear(x, 2, 2, nn.LinearOptions{})
		return m, checkpoint.LoadModel(x, path, m, nn.LoadOptions{})
	}))
	// end: save
	defer nn.Close(again)
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		if !x.Equal(again.Weight, model.Weight) {
			return errors.New("the weights differ")
		}
		return nil
	}))

	// cut: test
	tests := cgotorch.Must(data.NewLoader(test, data.Options{BatchSize: 50}))
	defer tests.Close()
	nn.SetTraining(model, false) // for dropout and batch norm; true before the next epoch of training
	right := 0.0
	cgotorch.Must(cgotorch.DoEach(stream, tests.Epoch(ctx), func(x *cgotorch.Exec, batch *data.Batch) {
		x, in := x.NoGrad(), batch.Use(x) // no graph for a backward
		right += x.Item(metric.Correct(x, model.Forward(x, in["point"]), in["label"], 1))
	}))
	fmt.Println("accuracy:", right/float64(test.Len()))
	// end: test

	// Output: accuracy: 1
}

// twoClouds returns points around (1, 1) with label 1 and points around (-1, -1) with label 0.
func twoClouds() (points []float32, labels []int) {
	for i := range 500 {
		side, shift := i%2, float32(i%7)/10-0.3
		centre := float32(2*side - 1)
		points, labels = append(points, centre+shift, centre-shift), append(labels, side)
	}
	return points, labels
}

func Example_lengths() {
	ctx := context.Background()
	texts, labels := [][]int{{5, 6, 7}, {8}, {9, 4}}, []int{1, 0, 1}
	var embedding *nn.Embedding
	var lstm *nn.LSTM
	var head *nn.Linear
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		embedding = nn.NewEmbedding(x, 10, 4, nn.EmbeddingOptions{})
		lstm = nn.NewLSTM(x, 4, 8, nn.RNNOptions{BatchFirst: true})
		head = nn.NewLinear(x, 8, 2, nn.LinearOptions{})
		return nil
	}))
	defer nn.Close(embedding)
	defer nn.Close(lstm)
	defer nn.Close(head)
	table := cgotorch.Must(data.NewTable(data.OfRows("tokens", texts), data.Of("label", labels)))
	loader := cgotorch.Must(data.NewLoader(table, data.Options{BatchSize: 32}))
	defer loader.Close()
	cgotorch.Must(cgotorch.DoEach(stream, loader.Epoch(ctx), func(x *cgotorch.Exec, batch *data.Batch) {
		// cut: lengths
		in, lengths := batch.Use(x), batch.Lengths("tokens") // the lengths are on the host
		_, last, _ := lstm.ForwardLengths(x, embedding.Forward(x, in["tokens"]), lengths, nil, nil)
		logits := head.Forward(x, x.Select(last, 0, -1)) // last is [layers, N, hidden]
		// end: lengths
		fmt.Println(lengths, in["tokens"].Shape(), logits.Shape())
	}))
	// Output: [3 1 2] [3 3] [3 2]
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
	sequence := cgotorch.Must(data.NewSequence("my sensor", fields, samples))
	loader := cgotorch.Must(data.NewStreamLoader(sequence, data.Options{BatchSize: 2}))
	// end: sequence
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background()) {
		cgotorch.Check(err)
		fmt.Println(data.Values[float32](batch.Column("x")), data.Values[int64](batch.Column("y")))
		batch.Release()
	}

	// Output:
	// [0 1 1 1] [0 1]
	// [2 1] [2]
}

func Example_csv() {
	folder, err := os.MkdirTemp("", "book")
	cgotorch.Check(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "houses.csv")
	cgotorch.Check(os.WriteFile(path, []byte("height,width,street,price\n1,2,Elm,3.5\n4,5,Oak,\n"), 0o600))

	ctx := context.Background()

	// cut: csv
	whole := cgotorch.Must(data.OpenCSV(path, data.CSVOptions{EmptyNaN: true})) // each column is a field
	streets := cgotorch.Must(data.ReadClasses(ctx, whole, "street"))            // its texts, sorted
	rows := cgotorch.Must(data.OpenCSV(path, data.CSVOptions{EmptyNaN: true, Fields: []data.Field{
		{Name: "size", DType: cgotorch.Float32, Shape: []int64{2}, From: []string{"height", "width"}}, // two columns
		{Name: "street", DType: cgotorch.Int64, Classes: streets},                                     // the number of a text
		{Name: "price", DType: cgotorch.Float32},                                                      // NaN where it is missing: see x.NaNToNum
	}}))
	loader := cgotorch.Must(data.NewStreamLoader(rows, data.Options{BatchSize: 256, Shuffle: true}))
	// end: csv
	defer loader.Close()
	for batch, err := range loader.Epoch(ctx) {
		cgotorch.Check(err)
		fmt.Println(batch.N, streets, data.Values[int64](batch.Column("street"))[0] == int64(data.Values[float32](batch.Column("size"))[0])/4, data.Values[float32](batch.Column("price")))
		batch.Release()
	}
	// Output: 2 [Elm Oak] true [NaN 3.5]
}
