package metric_test

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/metric"
)

// Sums of Correct over all batches stay on the device until the end of the epoch.
func ExampleCorrect() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		logits := cgotorch.FromRows(x, [][]float32{{3, 1, 0}, {0, 1, 2}, {5, 4, 1}})
		labels := cgotorch.FromSlice(x, []int64{0, 2, 1})
		fmt.Println("first:", x.Item(metric.Correct(x, logits, labels, 1)), "among two:", x.Item(metric.Correct(x, logits, labels, 2)))
		fmt.Println(cgotorch.ToRows[int64](x, metric.Confusion(x, x.ArgMax(logits, 1, cgotorch.ReduceOptions{}), labels, 3)))
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// first: 2 among two: 3
	// [[1 0 0] [1 0 0] [0 0 1]]
}
