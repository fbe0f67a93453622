package ct

// #cgo CFLAGS: -I${SRCDIR}/../../../csrc/include
// #cgo LDFLAGS: -L${SRCDIR}/../../../build/lib -L/usr/local/lib -lcgotorch
// #cgo LDFLAGS: -Wl,-rpath,${SRCDIR}/../../../build/lib -Wl,-rpath,/usr/local/lib -Wl,--allow-shlib-undefined
// #include "cgotorch.h"
import "C"
