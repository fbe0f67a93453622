// Package book has the programs that the chapters of the book show. Each is an Example, so go test
// runs it and compares its output. "make docs" copies them into the chapters.
package book

import (
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

var stream = cgotorch.DefaultStream(cgotorch.CPU)

// must ends the program if there is an error.
func Example_product() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	err := stream.Do(func(x *cgotorch.Exec) error {
		a := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 2, 2)
		b := x.MatMul(a, a)
		fmt.Println(b)
		fmt.Println("sum", x.Item(x.Sum(b)))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// float32[2 2]
	// [[ 7. 10.]
	//  [15. 22.]]
	// sum 54
}

func Example_keep() {
	var total, lost *cgotorch.Tensor
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		total = x.Keep(x.Zeros(cgotorch.Float32)) // yours: close it
		lost = x.Ones(cgotorch.Float32)           // the Do's: freed at its end
		return nil
	}))
	defer total.Close()
	for step := range 3 { // one Do is one step
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { x.AddScalarInPlace(total, step); return nil }))
	}
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		fmt.Println("total", x.Item(total), "lost is closed:", lost.Closed())
		return nil
	}))
	// Output: total 3 lost is closed: true
}

func Example_failure() {
	err := stream.Do(func(x *cgotorch.Exec) error {
		a, b := x.Ones(cgotorch.Float32, 2, 3), x.Ones(cgotorch.Float32, 4, 5)
		fmt.Println(x.MatMul(a, b)) // MatMul fails, so Do returns
		return nil
	})
	var failed *cgotorch.Error
	if errors.As(err, &failed) {
		fmt.Println(failed.Op, failed.Shapes, errors.Is(err, cgotorch.ErrInvalidArgument))
	}
	// Output: aten::matmul float32[2 3], float32[4 5] true
}

func Example_options() {
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		a := cgotorch.FromSlice(x, []float32{3, 1, 2}, 3)
		values, places := x.TopK(a, 2, 0, cgotorch.TopKOptions{}) // largest first
		fmt.Println(cgotorch.ToSlice[float32](x, values), cgotorch.ToSlice[int64](x, places))
		return nil
	}))
	// Output: [3 2] [0 2]
}

func Example_gradient() {
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		weight := cgotorch.FromSlice(x, []float32{2, -3}, 2)
		if err := weight.SetRequiresGrad(true); err != nil {
			return err
		}
		x.Backward(x.Sum(x.Mul(weight, weight)))
		y := x.NoGrad() // the same Do, without a record for backward
		y.AddInPlace(weight, y.MulScalar(weight.Grad(), -0.25))
		fmt.Println(cgotorch.ToSlice[float32](x, weight.Grad()), cgotorch.ToSlice[float32](x, weight))
		return nil
	}))
	// Output: [4 -6] [1 -1.5]
}
