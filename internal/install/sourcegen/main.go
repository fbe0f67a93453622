// Program sourcegen writes source_gen.go, which holds the hash of csrc.
package main

import (
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/csrc"
)

func main() {
	hash, err := csrc.Hash(csrc.Files)
	if err == nil {
		err = os.WriteFile("source_gen.go", []byte(csrc.GoSource(hash)), 0o666)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sourcegen:", err)
		os.Exit(1)
	}
}
