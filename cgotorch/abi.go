package cgotorch

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// checkABI compares the library that was opened with the header this package was compiled against.
func checkABI() error {
	if got := ct.ABIVersion(); got != ct.HeaderABIVersion {
		return &Error{Op: "cgotorch", Message: fmt.Sprintf(
			"libcgotorch.so has ABI version %d, this package needs %d: run make build in the clone, or make install of the same version", got, ct.HeaderABIVersion)}
	}
	return nil
}

// ready is called before the core makes anything. It fails where the core cannot be used.
func ready() error {
	if err := checkABI(); err != nil {
		return err
	}
	return checkFromEnvironment()
}
