package checkpoint

import (
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// Optimizer is an optimizer whose state a checkpoint holds: an [optim.Optimizer], or a
// distributed.Sharded, which has a part of the state on each rank. Both give and take the state of
// whole parameters. So the file tells nothing of ranks, and either continues from it. A nil pointer
// counts as no optimizer.
type Optimizer interface {
	Params() []*cgotorch.Tensor
	State(x *cgotorch.Exec) optim.State
	Restore(x *cgotorch.Exec, s optim.State) error
}

// none reports whether there is no optimizer.
func none(o Optimizer) bool {
	if o == nil {
		return true
	}
	v := reflect.ValueOf(o)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
