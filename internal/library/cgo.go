//go:build cgo && linux && (amd64 || arm64)

package library

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <features.h>
// #include <link.h>
// #include <stdlib.h>
// #include <string.h>
// #include <sys/auxv.h>
//
// // dlerror's text belongs to the thread, so it is copied in the same call.
// static void* open_library(const char* path, int global, char** error) {
//   void* library = dlopen(path, RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
//   if (library == NULL) *error = strdup(dlerror());
//   return library;
// }
//
// // is_static reports whether no dynamic loader has started the program.
// static int is_static(void) {
//   const ElfW(Phdr)* header = (const ElfW(Phdr)*)getauxval(AT_PHDR);
//   for (unsigned long i = 0; i < getauxval(AT_PHNUM); i++)
//     if (header[i].p_type == PT_INTERP) return 0;
//   return 1;
// }
//
// // is_secure reports whether the program has more rights than the user who started it.
// static int is_secure(void) { return getauxval(AT_SECURE) != 0; }
//
// #ifdef __GLIBC__
// enum { glibc = 1 };
// #else
// enum { glibc = 0 };
// #endif
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"unsafe"
)

// available fails in a build that can open no library.
func available() error {
	if C.glibc == 0 {
		return errors.New("this program is compiled for musl, and LibTorch needs glibc: compile it on Debian, Ubuntu or Fedora")
	}
	if C.is_static() == 1 {
		return errors.New("this program is linked statically, and cannot open LibTorch's libraries: link it without -static")
	}
	return nil
}

// foreign reports whether a user with fewer rights has set the environment, as by setuid.
func foreign() bool { return C.is_secure() == 1 }

// open opens a library for the rest of the process. The libraries that are opened later see the
// symbols of a global one.
func open(path string, global bool, by rule) (*Library, error) {
	if err := whole(path, by); err != nil {
		return nil, err
	}
	text := C.CString(path)
	defer C.free(unsafe.Pointer(text))
	wide := C.int(0)
	if global {
		wide = 1
	}
	var why *C.char
	handle := C.open_library(text, wide, &why)
	if handle == nil {
		defer C.free(unsafe.Pointer(why))
		said := C.GoString(why)
		return nil, fmt.Errorf("%s cannot be opened: %s: %s", path, said, cmp.Or(systemCure(said), by.cure()))
	}
	return &Library{path, handle, by}, nil
}

// symbol returns the address of a function of the library.
func (l *Library) symbol(name string) (unsafe.Pointer, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	if address := C.dlsym(l.handle, text); address != nil {
		return address, nil
	}
	return nil, fmt.Errorf("%s has no function %s, so it is of another version: %s", l.Path, name, l.rule.cure())
}
