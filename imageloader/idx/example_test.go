package idx_test

import (
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/imageloader/idx"
)

// A file of two labels, as MNIST has them.
func ExampleRead() {
	file, err := os.CreateTemp("", "labels-idx1-ubyte")
	if err != nil {
		panic(err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, err := file.Write([]byte{0, 0, 8, 1, 0, 0, 0, 2, 5, 9}); err != nil {
		panic(err)
	}
	labels, err := idx.Read(file.Name())
	if err != nil {
		panic(err)
	}
	fmt.Println(labels.Shape, labels.Data)
	// Output: [2] [5 9]
}
