// Program cutdocs writes the Go code of the documents in docs anew, from the files that the code
// is cut from. Run it in the root of the repository.
package main

import (
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/internal/cuts"
)

func main() {
	if err := update("."); err != nil {
		fmt.Fprintln(os.Stderr, "cutdocs:", err)
		os.Exit(1)
	}
}

// The function `update` writes the documents that have changed, and prints their paths.
func update(root string) error {
	paths, err := cuts.Documents(root)
	if err != nil {
		return err
	}
	for _, path := range paths {
		old, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text, err := cuts.Rewrite(root, string(old))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if text == string(old) {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		fmt.Println("wrote", path)
	}
	return nil
}
