package pt2

import (
	"io"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/fuse"
)

// LoadFusedForCUDA is [LoadFrom] with [Options].Fuse. It fuses for CUDA, and runs on x's device. A
// linear layer postpones its bias from this many rows on; 0 means the usual number.
func LoadFusedForCUDA(x *cgotorch.Exec, source io.ReaderAt, size int64, rows int64, o Options) (*Program, error) {
	o.Fuse = true
	if rows == 0 {
		rows = fuse.ManyRows
	}
	return load(x, source, size, "net.pt2", o, fuse.Options{CUDA: true, ManyRows: rows})
}
