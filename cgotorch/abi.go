package cgotorch

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// checkABI fails if the opened libcgotorch.so has another ABI version than the header that this
// package was compiled against.
func checkABI() error {
	if got := ct.ABIVersion(); got != ct.HeaderABIVersion {
		return &Error{Op: "cgotorch", Message: fmt.Sprintf(
			"libcgotorch.so has ABI version %d, this package needs %d: run make build in the clone, or make install of the same version", got, ct.HeaderABIVersion)}
	}
	return nil
}

// ready fails if the C++ core cannot be used. Each function that makes or finds something in the
// core calls the function `ready` first.
func ready() error {
	if err := checkABI(); err != nil {
		return err
	}
	_, err := theChecker()
	return err
}
