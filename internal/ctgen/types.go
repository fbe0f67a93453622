package main

import (
	"fmt"
	"strings"
)

var numbers = map[string]string{"int32_t": "int32", "int64_t": "int64", "uint64_t": "uint64", "uint32_t": "uint32", "uint16_t": "uint16",
	"uint8_t": "uint8", "size_t": "uintptr", "double": "float64", "char": "byte"}

// pointsToStruct reports whether a C type is a pointer to a struct whose fields Go mirrors.
func (g *generator) pointsToStruct(ctype string) bool {
	base, pointer := strings.CutSuffix(strings.TrimPrefix(ctype, "const "), "*")
	return pointer && g.structs[base] != nil
}

// goType returns the Go type for a C type.
func (g *generator) goType(ctype string) (string, error) {
	plain := strings.Join(strings.Fields(strings.ReplaceAll(strings.ReplaceAll(ctype, "const", ""), " *", "*")), "")
	switch {
	case ctype == "const char*":
		return "string", nil
	case plain == "void*":
		return "unsafe.Pointer", nil
	}
	base := strings.TrimRight(plain, "*")
	stars := plain[len(base):]
	if n := numbers[base]; n != "" {
		return stars + n, nil
	}
	if strings.HasPrefix(base, g.prefix+"_") {
		return stars + g.goName(base), nil
	}
	return "", fmt.Errorf("ctgen knows no type %q", ctype)
}

// toC converts a Go argument to a C type.
func (g *generator) toC(ctype, arg string) string {
	base := strings.TrimPrefix(ctype, "const ")
	switch n := strings.TrimSuffix(base, "*"); {
	case numbers[base] != "":
		return fmt.Sprintf("C.%s(%s)", base, arg)
	case n == "size_t":
		return fmt.Sprintf("(*C.%s)(unsafe.Pointer(%s))", n, arg)
	case n != base && numbers[n] != "":
		return fmt.Sprintf("(*C.%s)(%s)", n, arg)
	case g.structs[base] != nil:
		return fmt.Sprintf("*(*C.%s)(unsafe.Pointer(&%s))", base, arg)
	case g.pointsToStruct(ctype):
		return fmt.Sprintf("(*C.%s)(unsafe.Pointer(%s))", n, arg)
	}
	return arg
}

// toGo converts a result of C to its Go type.
func (g *generator) toGo(ctype, gotype, call string) string {
	switch {
	case gotype == "string":
		return "C.GoString(" + call + ")"
	case numbers[ctype] != "":
		return gotype + "(" + call + ")"
	case g.pointsToStruct(ctype):
		return fmt.Sprintf("(%s)(unsafe.Pointer(%s))", gotype, call)
	}
	return call
}

var initialisms = map[string]string{"abi": "ABI", "cuda": "CUDA", "cpu": "CPU", "id": "ID", "tf32": "TF32", "cudnn": "CuDNN", "us": "US", "dtype": "DType", "jpeg": "JPEG", "nccl": "NCCL",
	"png": "PNG", "rgb": "RGB", "ycc": "YCC", "cmyk": "CMYK", "ycck": "YCCK"}

// goName returns the exported Go name for a C name. The prefix is dropped.
func (g *generator) goName(c string) string {
	var b strings.Builder
	for _, word := range strings.Split(strings.TrimPrefix(c, g.prefix+"_"), "_") {
		if known := initialisms[word]; known != "" {
			b.WriteString(known)
		} else if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

func (g *generator) constName(c string) string {
	lower := strings.ToLower(c)
	if lower == g.prefix+"_abi_version" {
		return "HeaderABIVersion" // ABIVersion is the function that asks the library
	}
	name := g.goName(lower)
	if name[0] >= '0' && name[0] <= '9' {
		return "Sampling" + name
	}
	return name
}

// paramName returns the Go name for a C parameter. It adds an underscore to a name that is a
// keyword or a package in Go.
func paramName(c string) string {
	switch c {
	case "type", "func", "range", "unsafe":
		return c + "_"
	}
	parts := strings.Split(c, "_")
	for i := 1; i < len(parts); i++ {
		parts[i] = strings.ToUpper(parts[i][:1]) + parts[i][1:]
	}
	return strings.Join(parts, "")
}
