package gosource

// goHelpers are functions that the source holds if it calls them.
var goHelpers = map[string]string{
	"floorDiv": `// floorDiv is the operator // of Python.
func floorDiv(x *cgotorch.Exec, a, b int64) int64 {
	if b == 0 {
		x.Fail("Net", fmt.Errorf("a division of %d by zero: %w", a, cgotorch.ErrInvalidArgument))
	}
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}
`,
	"floorMod": `// floorMod is the operator % of Python.
func floorMod(x *cgotorch.Exec, a, b int64) int64 {
	if b == 0 {
		x.Fail("Net", fmt.Errorf("a division of %d by zero: %w", a, cgotorch.ErrInvalidArgument))
	}
	m := a % b
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	return m
}
`,
	"power": `// power is the operator ** of Python.
func power(x *cgotorch.Exec, base, exponent int64) int64 {
	if exponent < 0 {
		x.Fail("Net", fmt.Errorf("a power with the exponent %d is no integer: %w", exponent, cgotorch.ErrInvalidArgument))
	}
	if base >= -1 && base <= 1 {
		exponent = min(exponent, 2+exponent%2)
	}
	v := int64(1)
	for range exponent {
		v = product(x, v, base)
	}
	return v
}
`,
	"product": `// product is the operator * of Python, and fails above 64 bits.
func product(x *cgotorch.Exec, factors ...int64) int64 {
	v := int64(1)
	for _, f := range factors {
		p := v * f
		if v != 0 && (p/v != f || v == -1 && f == math.MinInt64) {
			x.Fail("Net", fmt.Errorf("the product of %d is above 64 bits: %w", factors, cgotorch.ErrInvalidArgument))
		}
		v = p
	}
	return v
}
`,
	"sum": `// sum is the operator + of Python, and fails above 64 bits.
func sum(x *cgotorch.Exec, terms ...int64) int64 {
	v := int64(0)
	for _, n := range terms {
		s := v + n
		if (s > v) != (n > 0) && n != 0 {
			x.Fail("Net", fmt.Errorf("the sum of %d is above 64 bits: %w", terms, cgotorch.ErrInvalidArgument))
		}
		v = s
	}
	return v
}
`,
	"difference": `// difference is the operator - of Python, and fails above 64 bits.
func difference(x *cgotorch.Exec, a, b int64) int64 {
	d := a - b
	if (d < a) != (b > 0) {
		x.Fail("Net", fmt.Errorf("%d - %d is above 64 bits: %w", a, b, cgotorch.ErrInvalidArgument))
	}
	return d
}
`,
	"roundTo": `// roundTo is round of Python, to a number of digits behind the point.
func roundTo(f float64, digits int) float64 {
	f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
	return f
}
`,
	"require": `// require fails if a condition does not hold. Shown are names and values.
func require(x *cgotorch.Exec, holds bool, condition string, shown ...any) {
	if !holds {
		x.Fail("Net", fmt.Errorf("%v: PyTorch has exported the model for inputs with %s: %w", shown, condition, cgotorch.ErrInvalidArgument))
	}
}
`,
	"free": `// free closes tensors that nobody reads any more.
func free(tensors ...*cgotorch.Tensor) {
	for _, t := range tensors {
		t.Close()
	}
}
`,
	"parameter": `// parameter keeps a tensor that an optimizer trains.
func parameter(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	if err := t.SetRequiresGrad(true); err != nil {
		x.Fail("New", err)
	}
	return x.Keep(t)
}
`,
}
