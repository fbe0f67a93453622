package pt2_test

import (
	"bytes"
	"fmt"
	"log"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
)

// A program reads like the Python function that it was exported from. A file is loaded with Load.
func Example() {
	file := bytes.NewReader(smallProgram())
	err := cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		program, err := pt2.LoadFrom(x, file, file.Size(), "net.pt2", pt2.Options{})
		if err != nil {
			return err
		}
		defer program.Close()
		for _, in := range program.Inputs() {
			fmt.Println(in.Name, in)
		}
		for _, n := range program.Nodes() {
			fmt.Println(n.Text)
		}
		images := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
		fmt.Println(program.Forward(x.NoGrad(), images))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// x float32[s0 2]
	// linear = aten.linear.default(x, p_w, p_b)
	// relu = aten.relu.default(linear)
	// add = aten.add.Tensor(relu, c_c, alpha=2)
	// float32[2 2]
	// [[3. 2.]
	//  [5. 4.]]
}
