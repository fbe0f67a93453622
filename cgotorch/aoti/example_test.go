package aoti_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/aoti"
)

// A package that cannot run here is refused before any of its code runs. A package that can run is
// called with Forward.
func ExampleLoadFrom() {
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	if _, err := w.Create("resnet/data/aotinductor/model/source.wrapper.cpp"); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	err := cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		model, err := aoti.LoadFrom(x, bytes.NewReader(file.Bytes()), int64(file.Len()), "resnet.pt2", aoti.Options{})
		if err != nil {
			return err
		}
		defer model.Close()
		model.Forward(x, x.Zeros(cgotorch.Float32, 1, 3, 224, 224))
		return nil
	})
	fmt.Println(errors.Is(err, aoti.ErrUnsupported))
	_, reason, _ := strings.Cut(err.Error(), "cannot run here: ")
	reason, _, _ = strings.Cut(reason, ",")
	fmt.Println(reason)
	// Output:
	// true
	// the model "model" is C++ source without a compiled library
}
