package special_test

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/special"
)

// Ndtr is the share of a normal distribution below a value.
func ExampleNdtr() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		deviations := cgotorch.FromSlice(x, []float64{-1, 0, 1.96})
		fmt.Printf("%.3f\n", cgotorch.ToSlice[float64](x, special.Ndtr(x, deviations)))
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output: [0.159 0.500 0.975]
}
