package idx_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/imageloader/idx"
)

// A file of two labels, as MNIST has them.
func ExampleRead() {
	path := filepath.Join(os.TempDir(), "labels-idx1-ubyte")
	defer os.Remove(path)
	if err := os.WriteFile(path, []byte{0, 0, 8, 1, 0, 0, 0, 2, 5, 9}, 0o666); err != nil {
		panic(err)
	}
	labels, err := idx.Read(path)
	fmt.Println(labels.Shape, labels.Data, err)
	// Output: [2] [5 9] <nil>
}
