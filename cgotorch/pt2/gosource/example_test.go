package gosource_test

import (
	"fmt"
	"log"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/gosource"
)

// The file holds a program that PyTorch has exported.
func ExampleGenerate() {
	files, err := gosource.Generate("../testdata/made/delay.pt2", gosource.Options{Package: "delay"})
	if err != nil {
		log.Fatal(err)
	}
	for _, line := range strings.Split(string(files["delay.go"]), "\n") {
		if strings.HasPrefix(line, "func ") {
			fmt.Println(line)
		}
	}
	// Output:
	// func New(x *cgotorch.Exec) *Net {
	// func (m *Net) Close() error { return nn.Close(m) }
	// func checkSizes(x *cgotorch.Exec, in *cgotorch.Tensor) {
	// func (m *Net) Call(x *cgotorch.Exec, in *cgotorch.Tensor) (result0, result1 *cgotorch.Tensor) {
	// func require(x *cgotorch.Exec, holds bool, condition string, shown ...any) {
}
