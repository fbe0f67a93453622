package cgotorch

import (
	"errors"
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// maxOverloads is the number of characters up to which an error names overloads.
const maxOverloads = 400

// withOverloads adds to err, which says that LibTorch has no operator `op`, the names of the
// overloads that it has. The name of the namespace can be missing in `op`.
func withOverloads(op string, err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Kind != ErrNotFound {
		return err
	}
	var schemas string
	if check(op, ct.OpSchemas(&schemas)) != nil {
		return err
	}
	named := *e
	if names := overloads(op, schemas); len(names) > 0 {
		named.Message = joinOverloads(op, names)
	}
	return &named
}

// overloads returns the names of the operators in `schemas` that equal `op` except for the
// overload.
func overloads(op, schemas string) (names []string) {
	base, _, _ := strings.Cut(op, ".")
	if !strings.Contains(base, "::") {
		base = "aten::" + base
	}
	for line := range strings.Lines(schemas) {
		name, _, _ := strings.Cut(line, "(")
		if other, _, _ := strings.Cut(name, "."); other == base {
			names = append(names, name)
		}
	}
	return names
}

func joinOverloads(op string, names []string) string {
	text := fmt.Sprintf("LibTorch has no operator %.100s; it has ", op)
	for i, name := range names {
		rest := ""
		if left := len(names) - i - 1; left > 0 {
			rest = fmt.Sprintf(" and %d more", left)
		}
		if i > 0 && len(text)+len(", ")+len(name)+len(rest) > maxOverloads {
			return text + fmt.Sprintf(" and %d more", len(names)-i)
		}
		if i > 0 {
			text += ", "
		}
		text += name
	}
	return text
}
