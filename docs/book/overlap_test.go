package book

import (
	"errors"
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
)

func Example_trace() {
	step := func() {
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error { x.Ones(cgotorch.Float32, 8); return nil }))
	}
	file, err := os.CreateTemp("", "trace")
	cgotorch.Check(err)
	defer os.Remove(file.Name())
	defer file.Close()

	// cut: trace
	t, err := trace.Start()
	cgotorch.Check(err)
	for i := range 20 {
		end := t.Mark(fmt.Sprint("step ", i))
		step()
		end()
	}
	records, err := t.Stop() // waits for the device
	cgotorch.Check(err)
	share, _, _ := records.CopyHidden() // 1: all copying ran beside kernels
	fmt.Println(len(records.Marks), "steps, hidden:", share)
	cgotorch.Check(records.WriteChrome(file)) // for ui.perfetto.dev and cmd/tracepicture
	// end: trace

	// Output: 20 steps, hidden: 1
}

func Example_noWaits() {
	// cut: nowaits
	err := stream.Do(func(x *cgotorch.Exec) error {
		x = x.NoWaits()
		loss := x.Mean(x.Ones(cgotorch.Float32, 8))
		fmt.Println("loss", x.Item(loss)) // waits for the device in each step
		return nil
	})
	fmt.Println(errors.Is(err, cgotorch.ErrWaited))
	// end: nowaits

	// Output:
	// loss 1
	// true
}

func Example_readAsync() {
	// cut: readasync
	var before *cgotorch.HostRead // the loss of the step before
	for range 3 {
		cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
			loss := x.Mean(x.Ones(cgotorch.Float32, 8)) // the step
			read := x.ReadAsync(loss)
			if before != nil {
				value, err := before.Item() // the device has begun the next step by now
				cgotorch.Check(err)
				fmt.Println("loss", value)
				before.Close()
			}
			before = read
			return nil
		}))
	}
	before.Close()
	// end: readasync

	// Output:
	// loss 1
	// loss 1
}
