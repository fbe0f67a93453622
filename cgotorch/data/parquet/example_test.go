package parquet_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	format "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

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
	if err := writeHouses(path); err != nil {
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

// writeHouses writes a file, as another program would do.
func writeHouses(path string) error {
	float := arrow.PrimitiveTypes.Float32
	columns := arrow.NewSchema([]arrow.Field{{Name: "height", Type: float}, {Name: "width", Type: float}}, nil)
	rows := strings.NewReader(`[{"height": 1, "width": 2}, {"height": 3, "width": 4}]`)
	record, _, err := array.RecordFromJSON(memory.DefaultAllocator, columns, rows)
	if err != nil {
		return err
	}
	defer record.Release()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	writer, err := pqarrow.NewFileWriter(columns, file, format.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err != nil {
		return err
	}
	if err := writer.Write(record); err != nil {
		return err
	}
	return writer.Close()
}
