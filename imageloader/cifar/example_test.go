package cifar_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/imageloader/cifar"
)

// The folder of the binary version, with one black image in each file.
func Example() {
	folder, err := os.MkdirTemp("", "cifar")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	for _, name := range []string{"data_batch_1.bin", "test_batch.bin"} {
		image := append([]byte{3}, make([]byte, 3*32*32)...)
		if err := os.WriteFile(filepath.Join(folder, name), image, 0o666); err != nil {
			panic(err)
		}
	}
	set, err := cifar.Read(folder, false)
	fmt.Println("labels", set.Labels, "bytes of pixels", len(set.Images), err)
	// Output: labels [3] bytes of pixels 3072 <nil>
}
