package parquet_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	format "github.com/parquet-go/parquet-go"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/data/parquet"
)

// Two columns of a file become one tensor.
func ExampleOpen() {
	folder, err := os.MkdirTemp("", "parquet")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "houses.parquet")
	type house struct {
		Height float32 `parquet:"height"`
		Width  float32 `parquet:"width"`
	}
	if err := format.WriteFile(path, []house{{1, 2}, {3, 4}}); err != nil {
		log.Fatal(err)
	}

	file, err := parquet.Open(path, parquet.Options{Fields: []data.Field{
		{Name: "size", DType: cgotorch.Float32, Shape: []int64{2}, From: []string{"height", "width"}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	loader, err := data.NewStreamLoader(file, data.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(data.Values[float32](batch.Column("size")))
		batch.Release()
	}
	// Output: [1 2 3 4]
}
