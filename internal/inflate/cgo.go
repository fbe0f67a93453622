package inflate

// #cgo CFLAGS: -I${SRCDIR}/../../csrc/include
// #cgo LDFLAGS: -L${SRCDIR}/../../build/lib -lcgotorch_decode -Wl,-rpath,${SRCDIR}/../../build/lib
// #cgo LDFLAGS: -L/usr/local/lib -Wl,-rpath,/usr/local/lib -Wl,--allow-shlib-undefined
//
// #cgo noescape ctd_inflater_run
// #cgo nocallback ctd_inflater_run
// #cgo noescape ctd_inflate_find
// #cgo nocallback ctd_inflate_find
// #cgo noescape ctd_inflate_resolve
// #cgo nocallback ctd_inflate_resolve
//
// #include "cgotorch_inflate.h"
import "C"
