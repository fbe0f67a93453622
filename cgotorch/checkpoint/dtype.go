package checkpoint

import "github.com/streamtorch/streamtorch/cgotorch"

// dtypes maps names in the file format to LibTorch's dtypes. It has the dtypes that exist in
// both.
var dtypes = map[string]cgotorch.DType{
	"BOOL": cgotorch.Bool, "U8": cgotorch.Uint8, "I8": cgotorch.Int8, "U16": cgotorch.Uint16, "I16": cgotorch.Int16,
	"U32": cgotorch.Uint32, "I32": cgotorch.Int32, "U64": cgotorch.Uint64, "I64": cgotorch.Int64,
	"F16": cgotorch.Float16, "BF16": cgotorch.BFloat16, "F32": cgotorch.Float32, "F64": cgotorch.Float64, "C64": cgotorch.Complex64,
}

// DType returns LibTorch's dtype for a dtype of the file format, such as "F32". It knows "C128" of
// package pth too. It returns false if LibTorch has no such dtype.
func DType(name string) (cgotorch.DType, bool) {
	if name == "C128" {
		return cgotorch.Complex128, true
	}
	d, ok := dtypes[name]
	return d, ok
}

// DTypeName returns the name of a dtype in the file format, such as "F32". It returns false if the
// format has no such dtype.
func DTypeName(d cgotorch.DType) (string, bool) {
	for name, dtype := range dtypes {
		if dtype == d {
			return name, true
		}
	}
	return "", false
}
