package fft_test

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/fft"
)

// A wave that repeats twice in eight samples has its peak at frequency 2.
func ExampleRFFT() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		wave := cgotorch.FromSlice(x, []float32{1, 0, -1, 0, 1, 0, -1, 0})
		strength := x.Abs(fft.RFFT(x, wave, fft.Options{}))
		fmt.Println(cgotorch.ToSlice[float32](x, strength))
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output: [0 0 4 0 0]
}
