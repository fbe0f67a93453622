// Schemas prints LibTorch's schema of every operator, for opgen -update.
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
