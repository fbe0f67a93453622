package cgotorch

import "github.com/streamtorch/streamtorch/cgotorch/internal/ct"

// ready opens the C++ core, once. It fails if the core cannot be used. Each function that makes or
// finds something in the core calls the function `ready` first.
func ready() error {
	if err := ct.Ready(); err != nil {
		return &Error{Op: "open", Err: err}
	}
	_, err := theChecker()
	return err
}
