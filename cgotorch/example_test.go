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
		a := cgotorch.FromSlice(x, []int64{12, 18, 7})
		b := cgotorch.FromSlice(x, []int64{8, 27, 21})
		fmt.Println(cgotorch.ToSlice[int64](x, x.Call1("aten::gcd", a, b)))
		x.Call1("aten::gcb", a, b)
		return nil
	})
	fmt.Println(errors.Is(err, cgotorch.ErrNotFound))
	// Output:
	// [4 9 7]
	// true
}
