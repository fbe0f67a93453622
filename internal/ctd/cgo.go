//go:build cgo && linux && (amd64 || arm64)

package ctd

// #cgo noescape ctd_pool_decode
// #cgo nocallback ctd_pool_decode
// #cgo nocallback ctd_probe
// #cgo nocallback ctd_check
// #cgo noescape ctd_inflater_run
// #cgo nocallback ctd_inflater_run
// #cgo noescape ctd_inflate_find
// #cgo nocallback ctd_inflate_find
// #cgo noescape ctd_inflate_resolve
// #cgo nocallback ctd_inflate_resolve
// #include "ctd_gen.h"
import "C"
