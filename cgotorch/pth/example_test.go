package pth_test

import (
	"bytes"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// A state dict that torch.load reads is written and read again, without Python.
func ExampleWrite() {
	var file bytes.Buffer
	err := pth.Write(&file, []safetensors.Tensor{
		{Name: "fc.bias", DType: "U8", Shape: []int64{3}, Data: []byte{7, 8, 9}},
	})
	if err != nil {
		panic(err)
	}
	f, err := pth.NewFile(bytes.NewReader(file.Bytes()), int64(file.Len()), "model.pth")
	if err != nil {
		panic(err)
	}
	for _, t := range f.Tensors() {
		data, err := f.Read(t.Name)
		fmt.Println(t.Name, t.DType, t.Shape, data, err)
	}
	// Output: fc.bias U8 [3] [7 8 9] <nil>
}
