package data_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
)

func ExampleOpenCSV() {
	file := "height,width,price\n1,2,3.5\n4,5,6.5\n7,8,9.5\n"
	rows, err := data.NewCSV("houses.csv", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(file)), nil }, data.CSVOptions{
		Fields: []data.Field{
			{Name: "size", DType: cgotorch.Float32, Shape: []int64{2}, From: []string{"height", "width"}},
			{Name: "price", DType: cgotorch.Float64},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	loader, err := data.NewStreamLoader(rows, data.Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch, data.Values[float32](batch.Column("size")), data.Values[float64](batch.Column("price")))
		batch.Release()
	}
	// Output:
	// batch 0 of epoch 0 [1 2 4 5] [3.5 6.5]
	// batch 1 of epoch 0 [7 8] [9.5]
}

func ExampleOfRows() {
	table, err := data.NewTable(data.OfRows("tokens", [][]int64{{5, 6, 7}, {8}}), data.Of("label", []int64{1, 0}))
	if err != nil {
		log.Fatal(err)
	}
	loader, err := data.NewLoader(table, data.Options{Pad: map[string]data.Pad{"tokens": {Value: -1}}})
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		tokens := batch.Column("tokens")
		fmt.Println(tokens.Shape, data.Values[int64](tokens), data.Values[int64](batch.Column("tokens_length")))
		batch.Release()
	}
	// Output: [3] [5 6 7 8 -1 -1] [3 1]
}

// Sequences of different lengths are padded to the longest of their batch. Their lengths make a
// mask, which is 0 where a sequence has ended. The mean of each sequence leaves the padding out.
func ExamplePad() {
	table := cgotorch.Must(data.NewTable(data.OfRows("prices", [][]float32{{1, 2, 3}, {8}, {4, 6}})))
	loader := cgotorch.Must(data.NewLoader(table, data.Options{Pad: map[string]data.Pad{"prices": {Length: 100}}}))
	defer loader.Close()
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	cgotorch.Must(cgotorch.DoEach(stream, loader.Epoch(context.Background()), func(x *cgotorch.Exec, batch *data.Batch) error {
		in := batch.Use(x)
		prices, lengths := in["prices"], x.Unsqueeze(in["prices_length"], 1) // [N, L] and [N, 1]
		places := x.Arange(cgotorch.Int64, 0, prices.Shape()[1], 1)
		mask := x.To(x.Lt(places, lengths), cgotorch.Float32) // [N, L]
		sum := x.SumDim(x.Mul(prices, mask), []int64{1}, cgotorch.SumOptions{KeepDim: true})
		fmt.Println(prices.Shape(), cgotorch.ToSlice[float32](x, mask), cgotorch.ToSlice[float32](x, x.Div(sum, lengths)))
		return nil
	}))
	// Output: [3 3] [1 1 1 1 0 0 1 1 0] [2 8 5]
}

// The texts of a column become numbers of classes.
func ExampleReadClasses() {
	ctx, file := context.Background(), "size,kind\n3.5,oak\n2,elm\n7,oak\n"
	open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(file)), nil }
	whole := cgotorch.Must(data.NewCSV("trees.csv", open, data.CSVOptions{}))
	kinds := cgotorch.Must(data.ReadClasses(ctx, whole, "kind"))
	rows := cgotorch.Must(data.NewCSV("trees.csv", open, data.CSVOptions{Fields: []data.Field{
		{Name: "size", DType: cgotorch.Float32}, {Name: "kind", DType: cgotorch.Int64, Classes: kinds},
	}}))
	table := cgotorch.Must(data.ReadTable(ctx, rows, 0))
	fmt.Println(kinds, data.Values[int64](table.Column("kind")))
	// Output: [elm oak] [1 0 1]
}

func ExampleNewStandardizer() {
	train, err := data.NewTable(data.Of("size", []float32{1, 2, 3, 6}), data.Of("price", []float32{10, 20, 30, 60}))
	if err != nil {
		log.Fatal(err)
	}
	standard, err := data.NewStandardizer(train, "size")
	if err != nil {
		log.Fatal(err)
	}
	test, err := data.NewTable(data.Of("size", []float32{3, 5}), data.Of("price", []float32{30, 50}))
	if err != nil {
		log.Fatal(err)
	}
	if test, err = standard.Table(test); err != nil { // by the numbers of the training data
		log.Fatal(err)
	}
	fmt.Printf("mean %.1f, deviation %.3f, sizes %.3f\n", standard["size"].Mean, standard["size"].Std, data.Values[float32](test.Column("size")))
	// Output: mean [3.0], deviation [1.871], sizes [0.000 1.069]
}
