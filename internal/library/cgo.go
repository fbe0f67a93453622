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
// #ifdef __GLIBC__
// enum { glibc = 1 };
// #else
// enum { glibc = 0 };
// #endif
import "C"

import (
	"errors"
	"fmt"
	"strings"
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

// open opens a library for the rest of the process. The libraries that are opened later see the
// symbols of a global one.
func open(path string, global bool) (*Library, error) {
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
		text, todo := C.GoString(why), cure()
		if strings.Contains(text, "static TLS") { // memory of threads, which glibc sets aside when a program starts
			todo = "libraries that were opened before have used this memory; open streamtorch's first, or run the program with GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384"
		}
		return nil, fmt.Errorf("%s cannot be opened: %s: %s", path, text, todo)
	}
	return &Library{path, handle}, nil
}

// symbol returns the address of a function of the library.
func (l *Library) symbol(name string) (unsafe.Pointer, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	if address := C.dlsym(l.handle, text); address != nil {
		return address, nil
	}
	return nil, fmt.Errorf("%s has no function %s, so it is of another version: %s", l.Path, name, cure())
}
