package idx_test

import (
	"bytes"
	"fmt"

	"github.com/streamtorch/streamtorch/imageloader/idx"
)

// A file of two labels, as MNIST has them.
func ExampleDecode() {
	labels, err := idx.Decode(bytes.NewReader([]byte{0, 0, 8, 1, 0, 0, 0, 2, 5, 9}))
	if err != nil {
		panic(err)
	}
	fmt.Println(labels.Shape, labels.Data)
	// Output: [2] [5 9]
}
