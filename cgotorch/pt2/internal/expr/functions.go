package expr

import (
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Functions are the functions on numbers that stand in a graph beside operators: those of
// Python's module operator, and those of torch on symbols. Integers are int64 as in Python as far
// as 64 bits go.
var Functions = map[string]func(args []any) (any, error){
	"_operator.add":      arithmetic(addInts, func(a, b float64) float64 { return a + b }),
	"_operator.sub":      arithmetic(subInts, func(a, b float64) float64 { return a - b }),
	"_operator.mul":      arithmetic(mulInts, func(a, b float64) float64 { return a * b }),
	"_operator.floordiv": arithmetic(floorDiv, func(a, b float64) float64 { return math.Floor(a / b) }),
	"_operator.mod":      arithmetic(floorMod, floatMod),
	"_operator.pow":      arithmetic(powInts, math.Pow),
	"_operator.truediv":  quotient,
	"_operator.lshift":   arithmetic(shiftLeft, nil),
	"_operator.rshift":   arithmetic(func(a, b int64) (int64, error) { return a >> min(uint64(b), 63), nil }, nil),
	"_operator.neg": func(args []any) (any, error) {
		return arithmetic(subInts, func(a, b float64) float64 { return a - b })([]any{int64(0), first(args)})
	},
	"_operator.invert": func(args []any) (any, error) {
		n, ok := Integer(first(args))
		if !ok {
			return nil, fmt.Errorf("%v is no integer", first(args))
		}
		return ^n, nil
	},
	"_operator.pos":   func(args []any) (any, error) { return first(args), nil },
	"_operator.eq":    comparison(func(order int) bool { return order == 0 }),
	"_operator.ne":    comparison(func(order int) bool { return order != 0 }),
	"_operator.lt":    comparison(func(order int) bool { return order == -1 }),
	"_operator.le":    comparison(func(order int) bool { return order == -1 || order == 0 }),
	"_operator.gt":    comparison(func(order int) bool { return order == 1 }),
	"_operator.ge":    comparison(func(order int) bool { return order == 1 || order == 0 }),
	"_operator.and_":  logic(func(a, b bool) bool { return a && b }, func(a, b int64) int64 { return a & b }),
	"_operator.or_":   logic(func(a, b bool) bool { return a || b }, func(a, b int64) int64 { return a | b }),
	"_operator.xor":   logic(func(a, b bool) bool { return a != b }, func(a, b int64) int64 { return a ^ b }),
	"_operator.not_":  not,
	"torch.sym_not":   not,
	"torch.sym_min":   arithmetic(func(a, b int64) (int64, error) { return min(a, b), nil }, math.Min),
	"torch.sym_max":   arithmetic(func(a, b int64) (int64, error) { return max(a, b), nil }, math.Max),
	"torch.sym_sum":   sum,
	"torch.sym_float": func(args []any) (any, error) { return ToFloat(first(args)) },
	"torch.sym_int":   func(args []any) (any, error) { return rounded(args, math.Trunc) },
	"torch._sym_sqrt": onFloat(math.Sqrt),
	"torch._sym_log2": onFloat(math.Log2),
	"torch.sym_ite":   ifElse,
	"math.trunc":      func(args []any) (any, error) { return rounded(args, math.Trunc) },
	"math.floor":      func(args []any) (any, error) { return rounded(args, math.Floor) },
	"math.ceil":       func(args []any) (any, error) { return rounded(args, math.Ceil) },
	"math.sqrt":       onFloat(math.Sqrt),
	"math.log2":       onFloat(math.Log2),
	"builtins.round":  round,
	"builtins.abs":    absolute,
}

func first(args []any) any {
	if len(args) == 0 {
		return nil
	}
	return args[0]
}

func subInts(a, b int64) (int64, error) {
	if d := a - b; (d < a) == (b > 0) {
		return d, nil
	}
	return 0, errOverflow
}

func shiftLeft(a, b int64) (int64, error) {
	if b < 0 || b > 62 {
		return 0, errOverflow
	}
	return mulInts(a, 1<<b)
}

func floatMod(a, b float64) float64 {
	m := math.Mod(a, b)
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m
}

// Integer returns the value of an int64 or a bool.
func Integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// ToFloat returns the value of a float64, an int64 or a bool.
func ToFloat(v any) (float64, error) {
	if f, ok := v.(float64); ok {
		return f, nil
	}
	if n, ok := Integer(v); ok {
		return float64(n), nil
	}
	return 0, fmt.Errorf("%v (a %T) is no number", v, v)
}

func two(args []any) (a, b any, err error) {
	if len(args) != 2 {
		return nil, nil, fmt.Errorf("%d arguments, want 2", len(args))
	}
	return args[0], args[1], nil
}

func arithmetic(ints func(a, b int64) (int64, error), floats func(a, b float64) float64) func([]any) (any, error) {
	return func(args []any) (any, error) {
		a, b, err := two(args)
		if err != nil {
			return nil, err
		}
		m, ok := Integer(a)
		n, ok2 := Integer(b)
		if ok && ok2 {
			return ints(m, n)
		}
		f, err := ToFloat(a)
		g, err2 := ToFloat(b)
		if err != nil {
			return nil, err
		}
		if err2 != nil {
			return nil, err2
		}
		if floats == nil {
			return nil, fmt.Errorf("%v and %v are no integers", a, b)
		}
		if v := floats(f, g); g != 0 || !math.IsNaN(v) && !math.IsInf(v, 0) || math.IsNaN(f) || math.IsInf(f, 0) {
			return v, nil
		}
		return nil, errors.New("a division by zero")
	}
}

func quotient(args []any) (any, error) {
	a, b, err := two(args)
	if err != nil {
		return nil, err
	}
	f, err := ToFloat(a)
	if err != nil {
		return nil, err
	}
	g, err := ToFloat(b)
	if err == nil && g == 0 {
		err = fmt.Errorf("a division by zero")
	}
	return f / g, err
}

func comparison(holds func(order int) bool) func([]any) (any, error) {
	return func(args []any) (any, error) {
		a, b, err := two(args)
		if err != nil {
			return nil, err
		}
		order := 0
		m, ok := Integer(a)
		n, ok2 := Integer(b)
		if ok && ok2 {
			switch {
			case m < n:
				order = -1
			case m > n:
				order = 1
			}
			return holds(order), nil
		}
		f, err := ToFloat(a)
		if err != nil {
			return nil, err
		}
		g, err := ToFloat(b)
		switch {
		case f < g:
			order = -1
		case f > g:
			order = 1
		case f != g: // one of them is not a number
			order = 2
		}
		return holds(order), err
	}
}

// logic is an operator of two truth values, or of two integers.
func logic(of func(a, b bool) bool, ints func(a, b int64) int64) func([]any) (any, error) {
	return func(args []any) (any, error) {
		a, b, err := two(args)
		if err != nil {
			return nil, err
		}
		p, ok := a.(bool)
		q, ok2 := b.(bool)
		if ok && ok2 {
			return of(p, q), nil
		}
		m, ok := Integer(a)
		n, ok2 := Integer(b)
		if !ok || !ok2 {
			return nil, fmt.Errorf("%v and %v are neither truth values nor integers", a, b)
		}
		return ints(m, n), nil
	}
}

func not(args []any) (any, error) {
	if v, ok := first(args).(bool); ok {
		return !v, nil
	}
	return nil, fmt.Errorf("%v is no truth value", first(args))
}

func sum(args []any) (any, error) {
	list, ok := first(args).([]int64)
	if !ok {
		return nil, fmt.Errorf("%v is no list of integers", first(args))
	}
	total := int64(0)
	for _, n := range list {
		var err error
		if total, err = addInts(total, n); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func rounded(args []any, round func(float64) float64) (any, error) {
	if len(args) > 1 && args[1] != nil {
		return nil, fmt.Errorf("rounding to %v digits", args[1])
	}
	if n, ok := Integer(first(args)); ok {
		return n, nil
	}
	f, err := ToFloat(first(args))
	if err == nil && !(math.Abs(f) < 1<<63) {
		err = errOverflow
	}
	return int64(round(f)), err
}

// round rounds to an integer, or to the nearest number with some digits behind the point.
func round(args []any) (any, error) {
	digits, ok := int64(0), false
	if len(args) == 2 {
		digits, ok = args[1].(int64)
	}
	f, isFloat := first(args).(float64)
	if !ok || !isFloat || digits < 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		return rounded(args, math.RoundToEven)
	}
	return strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(min(digits, 400)), 64), 64)
}

func absolute(args []any) (any, error) {
	if n, ok := Integer(first(args)); ok {
		if n < 0 {
			return subInts(0, n)
		}
		return n, nil
	}
	f, err := ToFloat(first(args))
	return math.Abs(f), err
}

func onFloat(of func(float64) float64) func([]any) (any, error) {
	return func(args []any) (any, error) {
		f, err := ToFloat(first(args))
		return of(f), err
	}
}

func ifElse(args []any) (any, error) {
	if len(args) == 3 {
		if condition, ok := args[0].(bool); ok {
			if condition {
				return args[1], nil
			}
			return args[2], nil
		}
	}
	return nil, fmt.Errorf("%v is no condition with two values", args)
}
