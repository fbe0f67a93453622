package trace_test

import (
	"fmt"
	"io"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/trace"
)

// A trace of two steps. On a GPU it also has each kernel and each copy.
func ExampleStart() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	t, err := trace.Start()
	if err != nil {
		panic(err)
	}
	for step := range 2 {
		end := t.Mark(fmt.Sprint("step ", step))
		if err := stream.Do(func(x *cgotorch.Exec) error { x.Ones(cgotorch.Float32, 8); return nil }); err != nil {
			panic(err)
		}
		end()
	}
	records, err := t.Stop() // waits for the devices
	if err != nil {
		panic(err)
	}
	for _, mark := range records.Marks {
		fmt.Println(mark.Name, mark.End > mark.Start)
	}
	fmt.Println(records.WriteChrome(io.Discard)) // a file for ui.perfetto.dev
	// Output:
	// step 0 true
	// step 1 true
	// <nil>
}
