package pt2

import (
	"io"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// SetManyRows sets the rows from which a bias is postponed, and returns the number before.
func SetManyRows(n int64) (before int64) {
	before, manyRows = manyRows, n
	return before
}

// LoadFusedFor is [LoadFrom] with [Options].Fuse. It fuses for another device than that of x, on
// which the program then runs.
func LoadFusedFor(x *cgotorch.Exec, source io.ReaderAt, size int64, d cgotorch.Device, o Options) (*Program, error) {
	b, err := parse(source, size, "net.pt2", o)
	if err != nil {
		return nil, err
	}
	p := b.program
	p.device = d
	if err := b.bind(x.NoGrad().NoAutocast(), true); err != nil {
		return nil, err
	}
	p.device = x.Device()
	slots := p.graph.slots
	p.frames.New = func() any { return &frame{values: make([]any, slots)} }
	return p, nil
}
