package cgotorch_test

import (
	"errors"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Work runs inside a Do. The Do frees what is made in it.
func Example() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		a := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
		fmt.Println(x.MatMul(a, a)) // on a GPU, print x.Format(t), which waits
		return nil
	})
	fmt.Println(err)
	// Output:
	// float32[2 2]
	// [[ 7. 10.]
	//  [15. 22.]]
	// <nil>
}

// Call runs an operator that has no method. The arguments are those of the operator's schema.
func ExampleExec_Call() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		channels := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 1, 4, 1, 1)
		fmt.Println(cgotorch.ToSlice[float32](x, x.Call1("aten::channel_shuffle", channels, 2)))
		x.Call1("aten::channel_shuffel", channels, 2)
		return nil
	})
	fmt.Println(errors.Is(err, cgotorch.ErrNotFound))
	// Output:
	// [1 3 2 4]
	// true
}
