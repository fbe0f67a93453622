package linalg_test

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/linalg"
)

func ExampleSolve() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		a := cgotorch.FromSlice(x, []float64{2, 1, 1, 3}, 2, 2)
		b := cgotorch.FromSlice(x, []float64{5, 10}, 2)
		fmt.Printf("%.3f\n", cgotorch.ToSlice[float64](x, linalg.Solve(x, a, b, linalg.SideOptions{})))
		fmt.Printf("%.3f\n", x.Item(linalg.Det(x, a)))
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// [1.000 3.000]
	// 5.000
}
