package book

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

func Example_race() {
	// cut: race
	stop, err := cgotorch.CheckStreams(func(r *cgotorch.StreamRace) {
		fmt.Println(r.Earlier.Kind, "by", r.Earlier.Op, "on", r.Earlier.Stream)
		fmt.Println(r.Later.Kind, "by", r.Later.Op, "on", r.Later.Stream) // and r.Advice, the cure
	})
	cgotorch.Check(err)
	defer stop()
	side, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{Name: "side"})
	cgotorch.Check(err)
	defer side.Close()
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		a := x.Ones(cgotorch.Float32, 2, 2)
		product := x.MatMul(a, a)
		sum := x.On(side).Sum(product) // a race: side does not wait for the product
		fmt.Println("sum", x.On(side).Item(sum))
		return nil
	}))
	// end: race

	// Output:
	// sum 8
	// allocated by aten::matmul on default stream of cpu
	// read by aten::sum on side of cpu
}

func Example_ordered() {
	side, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{Name: "side"})
	cgotorch.Check(err)
	defer side.Close()
	// cut: ordered
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		a := x.Ones(cgotorch.Float32, 2, 2)
		product := x.MatMul(a, a)
		ready := x.Record()
		defer ready.Close()

		y := x.On(side)
		y.Wait(ready) // side waits on the device, and the host does not wait
		sum := y.Sum(product)
		done := y.Record()
		defer done.Close()

		x.Wait(done) // the Do frees product in the order of its own stream
		fmt.Println("sum", x.Item(sum))
		return nil
	}))
	// end: ordered

	// Output: sum 8
}
