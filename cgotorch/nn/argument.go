package nn

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// refuse makes the Do fail with ErrInvalidArgument. The arguments `format` and `args` give the text
// of the error. For a nil tensor among `args`, the text says what to check.
func refuse(x *cgotorch.Exec, where, format string, args ...any) {
	for i, arg := range args {
		if t, ok := arg.(*cgotorch.Tensor); ok {
			args[i] = t.String() // not its values
			if t == nil {
				args[i] = "nil (check the name in a batch's map, or set the variable)"
			}
		}
	}
	x.Fail(where, fmt.Errorf(format+": %w", append(args, cgotorch.ErrInvalidArgument)...))
}

// argument is a number given to a constructor, with the name of its parameter.
type argument struct {
	name  string
	value int
}

// atLeast makes the Do fail if the value of one of the `arguments` is below `least`.
func atLeast(x *cgotorch.Exec, where string, least int, arguments ...argument) {
	for _, a := range arguments {
		if a.value < least {
			refuse(x, where, "%s is %d, want at least %d", a.name, a.value, least)
		}
	}
}
