package cgotorch

// #include "cgotorch.h"
import "C"

import "fmt"

// checkABI compares the library that was opened with the header this package was compiled against.
func checkABI() error {
	if got := C.ct_abi_version(); got != C.CT_ABI_VERSION {
		return &Error{Op: "cgotorch", Code: CodeInternal, Message: fmt.Sprintf(
			"libcgotorch.so has ABI version %d, this package needs %d: run make build in the clone, or make install of the same version", got, C.CT_ABI_VERSION)}
	}
	return nil
}

// ready is asked before anything that the core makes.
func ready() error {
	if err := checkABI(); err != nil {
		return err
	}
	return checkFromEnvironment()
}
