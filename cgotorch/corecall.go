package cgotorch

import "github.com/streamtorch/streamtorch/cgotorch/internal/ct"

// core prepares a call of the core by another package. It returns x as the core knows it, and the
// handles of ts. It fails like an operator if the Do has ended or a tensor is closed. The caller
// keeps ts alive until the call has returned.
func (x *Exec) core(op string, ts []*Tensor) (ct.Exec, []*ct.Tensor) {
	x.check(op)
	handles := make([]*ct.Tensor, len(ts))
	for i, t := range ts {
		x.open(op, t)
		handles[i] = t.h
	}
	return x.c, handles
}
