package safetensors_test

import (
	"bytes"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// A file is written and read again, without a device.
func ExampleWrite() {
	var file bytes.Buffer
	err := safetensors.Write(&file, []safetensors.Tensor{
		{Name: "fc.bias", DType: "U8", Shape: []int64{3}, Data: []byte{7, 8, 9}},
	}, map[string]string{"epoch": "4"})
	if err != nil {
		panic(err)
	}
	f, err := safetensors.NewFile(bytes.NewReader(file.Bytes()), int64(file.Len()), "model.safetensors")
	if err != nil {
		panic(err)
	}
	for _, t := range f.Tensors() {
		data, err := f.Read(t.Name)
		fmt.Println(t.Name, t.DType, t.Shape, data, err)
	}
	fmt.Println(f.Metadata()["epoch"])

	_, err = safetensors.NewFile(bytes.NewReader(file.Bytes()), int64(file.Len()-1), "model.safetensors")
	fmt.Println(err != nil) // the file is cut short
	// Output:
	// fc.bias U8 [3] [7 8 9] <nil>
	// 4
	// true
}
