package cgotorch

// Must returns v if err is nil. Otherwise it ends the Do around it as a failed operator does: the
// Do returns an [*Error] that wraps err. Must is for the function of a Do, and for short programs:
//
//	opt := cgotorch.Must(optim.NewAdam(o, optim.Group{Params: nn.Parameters(model)}))
//
// Must panics with that error outside a Do, on another goroutine than the Do's, and in a function
// given to [Exec.AtEnd]. A server should test the error there instead.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(unmet{&Error{Op: "Must", Kind: kindOf(err), Caller: caller(), Err: err}})
	}
	return v
}

// Check is [Must] for a function that returns an error alone, such as checkpoint.LoadModel or
// [Stream.Do]. A loop that Ctrl-C ends by signal.NotifyContext returns an error, too. Ask
// errors.Is(err, context.Canceled) before Check there, or the program ends with a stack.
func Check(err error) {
	if err != nil {
		panic(unmet{&Error{Op: "Check", Kind: kindOf(err), Caller: caller(), Err: err}})
	}
}

// unmet is the value of the panic of Must and Check. The scope of the Do takes the error out of it.
type unmet struct{ err *Error }

func (u unmet) Error() string { return u.err.Error() }

// Unwrap returns the [*Error].
func (u unmet) Unwrap() error { return u.err }
