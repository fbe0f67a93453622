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
