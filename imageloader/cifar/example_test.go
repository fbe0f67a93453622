package cifar_test

import (
	"fmt"

	"github.com/streamtorch/streamtorch/imageloader/cifar"
)

func ExampleReadPython() {
	set, err := cifar.ReadPython("testdata/batch10-protocol2")
	if err != nil {
		panic(err)
	}
	fmt.Println(set.Len(), "images, labels", set.Labels, "bytes of pixels", len(set.Images))
	// Output: 2 images, labels [3 9] bytes of pixels 6144
}
