// Program cutdocs writes the Go code of the documents in docs anew, from the files that the code
// is cut from. Run it in the root of the repository.
package main

import (
	"errors"
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

// update writes the documents that have changed, and prints their paths. It goes on after a
// document with a cut that does not exist.
func update(root string) error {
	paths, err := cuts.Documents(root)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		old, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text, err := cuts.Rewrite(root, string(old))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		if text == string(old) {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		fmt.Println("wrote", path)
	}
	return errors.Join(errs...)
}
