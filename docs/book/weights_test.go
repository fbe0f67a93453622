package book

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// writePTH writes a state dict as DataParallel saves it: a classifier of three classes.
func writePTH(folder string) string {
	path := filepath.Join(folder, "model.pth")
	file, err := os.Create(path)
	cgotorch.Check(err)
	defer file.Close()
	cgotorch.Check(pth.Write(file, []safetensors.Tensor{
		{Name: "module.body.weight", DType: "F32", Shape: []int64{2, 2}, Data: make([]byte, 16)},
		{Name: "module.body.bias", DType: "F32", Shape: []int64{2}, Data: make([]byte, 8)},
		{Name: "module.fc.weight", DType: "F32", Shape: []int64{3, 2}, Data: make([]byte, 24)},
		{Name: "module.fc.bias", DType: "F32", Shape: []int64{3}, Data: make([]byte, 12)},
	}))
	return path
}

func Example_weights() {
	folder, err := os.MkdirTemp("", "book")
	cgotorch.Check(err)
	defer os.RemoveAll(folder)
	path := writePTH(folder)

	// cut: load
	type net struct{ Body, FC *nn.Linear } // names: body.weight, body.bias, fc.weight, fc.bias
	rename := func(name string) string { return strings.TrimPrefix(name, "module.") }
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		m := &net{nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nn.NewLinear(x, 2, 10, nn.LinearOptions{})}
		defer nn.Close(m)
		for _, o := range []nn.LoadOptions{{}, {Rename: rename}, {Rename: rename, AllowOtherClasses: true}} {
			var misfit *nn.LoadError
			if err := checkpoint.LoadModel(x, path, m, o); errors.As(err, &misfit) {
				fmt.Println(len(misfit.Missing), "missing,", len(misfit.Misshapen), "of another shape") // err names them
			} else {
				fmt.Println("loaded", err)
			}
		}
		return nil
	}))
	// end: load

	// Output:
	// 4 missing, 0 of another shape
	// 0 missing, 2 of another shape
	// loaded <nil>
}

func Example_names() {
	folder, err := os.MkdirTemp("", "book")
	cgotorch.Check(err)
	defer os.RemoveAll(folder)
	path := writePTH(folder)

	// cut: names
	file, err := pth.Open(path) // safetensors.Open for a .safetensors file
	cgotorch.Check(err)
	defer file.Close()
	for _, t := range file.Tensors() {
		fmt.Println(t.Name, t.DType, t.Shape)
	}
	// end: names

	// Output:
	// module.body.weight F32 [2 2]
	// module.body.bias F32 [2]
	// module.fc.weight F32 [3 2]
	// module.fc.bias F32 [3]
}
