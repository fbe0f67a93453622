// Schemas prints the schema of every operator of LibTorch. The output is the input of opgen
// -update.
package main

import (
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
)

func main() {
	text, err := cgotorch.Schemas()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(text)
}
