package decode

// #cgo CFLAGS: -I${SRCDIR}/../../csrc/include
// #cgo LDFLAGS: -L${SRCDIR}/../../build/lib -lcgotorch_decode -Wl,-rpath,${SRCDIR}/../../build/lib
// #cgo LDFLAGS: -L/usr/local/lib -Wl,-rpath,/usr/local/lib -Wl,--allow-shlib-undefined
//
// #cgo noescape ctd_pool_decode
// #cgo nocallback ctd_pool_decode
// #cgo nocallback ctd_probe
// #cgo nocallback ctd_check
//
// #include "cgotorch_decode.h"
import "C"
