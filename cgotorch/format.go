package cgotorch

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Note [Values of a tensor as text]
//
// The text of values equals that of NumPy's print: the same digits, columns and line breaks. A
// tensor of more than 1,000 elements shows the first and the last three along each dimension. The
// line in front of the values has dtype, shape and device.
//
// fmt calls Tensor.Format, which has no Exec. So Format reads memory itself, and only where this is
// safe: on the CPU, on the goroutine of a running Do. It runs no operator, and it does not wait.
// Exec.Format reads any tensor.

const (
	formatThreshold = 1000 // elements
	formatEdge      = 3    // elements at each end of a long dimension
	formatWidth     = 75   // characters
	formatDigits    = 8    // after the point
)

// Format makes package fmt show the values of a tensor with the verb %v: dtype and shape, then the
// values as NumPy prints them. It shows values of a CPU tensor on the goroutine of a running Do. In
// other places the text says why it has no values. It never waits, and it enqueues nothing.
// [Exec.Format] shows the values of any tensor. All other verbs show [Tensor.String].
func (t *Tensor) Format(f fmt.State, verb rune) {
	if verb != 'v' || f.Flag('#') {
		fmt.Fprint(f, t.String())
		return
	}
	v, why := t.readable()
	if why != "" {
		fmt.Fprintf(f, "%s (%s)", t.safeString(), why)
		return
	}
	fmt.Fprint(f, v.text(t.String()))
}

// MarshalJSON returns dtype, shape and values, the values in lists inside lists. It fails where
// [Tensor.Format] shows no values, and for complex numbers, NaN and infinity.
func (t *Tensor) MarshalJSON() ([]byte, error) {
	v, why := t.readable()
	if why != "" {
		return nil, fmt.Errorf("cgotorch: %s as JSON: %s", t.safeString(), why)
	}
	values, err := v.list(nil)
	if err != nil {
		return nil, fmt.Errorf("cgotorch: %s as JSON: %w", t, err)
	}
	return json.Marshal(struct {
		DType  string  `json:"dtype"`
		Shape  []int64 `json:"shape"`
		Values any     `json:"values"`
	}{v.dtype.String(), v.shape, values})
}

// Format returns dtype, shape and values of t, as NumPy prints them. It waits for x's stream. Of a
// large tensor it copies only the values that it shows. A sparse tensor is shown as a dense one.
func (x *Exec) Format(t *Tensor) string {
	const op = "Exec.Format"
	x.check(op)
	x.open(op, t)
	name := t.String()
	if t.RequiresGrad() {
		name += " requires grad"
	}
	y := x.NoGrad().NoAutocast()
	var text string
	y.Tidy(func() *Tensor {
		v := y.Detach(t)
		if v.info().IsStrided == 0 {
			v = y.Call1("aten::to_dense", v)
		}
		if v.DType().Size() == 0 { // a dtype without a name here, such as one of 8 bits
			v = y.To(v, Float32)
		}
		shape := v.Shape()
		if v.Numel() > formatThreshold {
			for d, n := range shape {
				if n > 2*formatEdge {
					v = y.Cat([]*Tensor{y.Narrow(v, d, 0, formatEdge), y.Narrow(v, d, int(n)-formatEdge, formatEdge)}, d)
				}
			}
		}
		got := &elements{dtype: v.DType(), shape: shape, cut: v.Shape()}
		got.strides = denseStrides(got.cut)
		bytes := ToBytes(y, v)
		if len(bytes) > 0 {
			got.at = unsafe.Pointer(&bytes[0])
		}
		text = got.text(name)
		return nil
	})
	return text
}

// elements is memory of the CPU with the elements of a tensor.
type elements struct {
	dtype   DType
	shape   []int64 // of the tensor
	cut     []int64 // of the memory; shorter than shape where the memory has only the ends of a dimension
	strides []int64 // of the memory, in elements
	at      unsafe.Pointer
	conj    bool
	neg     bool
}

func denseStrides(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	step := int64(1)
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = step
		step *= max(shape[d], 1)
	}
	return strides
}

// readable returns the elements of t, or why they cannot be read here.
func (t *Tensor) readable() (v *elements, why string) {
	if t == nil {
		return nil, "no tensor"
	}
	w := currentWorker()
	switch {
	case t.foreign(w):
		return nil, "no values: it belongs to a Do on another goroutine"
	case t.h == nil:
		return nil, "it was closed by the program, or freed when the Do that made it returned: Keep it there"
	}
	info := t.info()
	switch {
	case deviceOf(info.Device).IsCUDA():
		return nil, "no values: they are on the device, and x.Format reads them"
	case info.IsStrided == 0 || dtypes[DType(info.DType)].size == 0 || info.Address == 0 && info.Elements > 0:
		return nil, "no values: it is not dense, and x.Format shows it"
	case w == nil || w.scope == nil:
		return nil, "no values outside a Do, where another goroutine could write them"
	}
	shape, strides := t.geometry()
	return &elements{dtype: DType(info.DType), shape: shape, cut: shape, strides: strides, at: *(*unsafe.Pointer)(unsafe.Pointer(&info.Address)),
		conj: info.IsConj != 0, neg: info.IsNeg != 0}, ""
}

// foreign reports whether t belongs to a Do on another goroutine than the worker's. That Do may
// free t at any time.
func (t *Tensor) foreign(w *worker) bool {
	owner := t.owner
	return owner != nil && (w == nil || ct.ThreadID() != owner.thread)
}

// safeString is String for a tensor that another goroutine may free.
func (t *Tensor) safeString() string {
	if t != nil && t.foreign(currentWorker()) {
		return "tensor"
	}
	return t.String()
}

// element returns the address of an element. `index` counts in the tensor.
func (v *elements) element(index []int) unsafe.Pointer {
	at := int64(0)
	for d, i := range index {
		at += (int64(i) - max(0, v.skipped(d, i))) * v.strides[d]
	}
	return unsafe.Add(v.at, at*int64(v.dtype.Size()))
}

// skipped returns how many elements of dimension d in front of i are not in the memory.
func (v *elements) skipped(d, i int) int64 {
	if int64(i) < v.cut[d]-formatEdge {
		return 0
	}
	return v.shape[d] - v.cut[d]
}

// number returns a real element as float64, for integers and booleans too.
func (v *elements) number(index []int) float64 {
	p := v.element(index)
	var n float64
	switch v.dtype {
	case Float32:
		n = float64(*(*float32)(p))
	case Float64:
		n = *(*float64)(p)
	case Float16:
		n = float64((*(*Float16Bits)(p)).Float32())
	case BFloat16:
		n = float64((*(*BFloat16Bits)(p)).Float32())
	default:
		n = float64(v.integer(index))
	}
	if v.neg {
		return -n
	}
	return n
}

func (v *elements) integer(index []int) int64 {
	p := v.element(index)
	switch v.dtype {
	case Uint8, Bool:
		return int64(*(*uint8)(p))
	case Int8:
		return int64(*(*int8)(p))
	case Int16:
		return int64(*(*int16)(p))
	case Int32:
		return int64(*(*int32)(p))
	case Uint16:
		return int64(*(*uint16)(p))
	case Uint32:
		return int64(*(*uint32)(p))
	}
	return *(*int64)(p)
}

// digits returns an integer as text.
func (v *elements) digits(index []int) string {
	if n := v.integer(index); v.dtype != Uint64 {
		return strconv.FormatInt(n, 10)
	} else {
		return strconv.FormatUint(uint64(n), 10)
	}
}

func (v *elements) complex(index []int) (re, im float64) {
	p := v.element(index)
	if v.dtype == Complex64 {
		re, im = float64(*(*float32)(p)), float64((*[2]float32)(p)[1])
	} else {
		re, im = *(*float64)(p), (*[2]float64)(p)[1]
	}
	if v.neg {
		re, im = -re, -im
	}
	if v.conj {
		im = -im
	}
	return re, im
}

// list returns the values below `index` as lists inside lists.
func (v *elements) list(index []int) (any, error) {
	d := len(index)
	if d < len(v.shape) {
		values := make([]any, 0, v.shape[d])
		for i := range int(v.shape[d]) {
			value, err := v.list(append(index[:d:d], i))
			if err != nil {
				return nil, err
			}
			values = append(values, value)
		}
		return values, nil
	}
	switch {
	case v.dtype == Complex64 || v.dtype == Complex128:
		return nil, fmt.Errorf("JSON has no complex numbers: split them with x.Call(\"aten::view_as_real\", …)")
	case v.dtype == Bool:
		return v.integer(index) != 0, nil
	case !v.dtype.IsFloat():
		return json.Number(v.digits(index)), nil
	}
	n := v.number(index)
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, fmt.Errorf("JSON has no %v, which is element %v", n, index)
	}
	return json.Number(shortest(n, 'g', v.dtype)), nil
}

// text returns the name and the values.
func (v *elements) text(name string) string {
	l := layout{elements: v, summarised: numel(v.shape) > formatThreshold}
	if len(v.shape) == 0 {
		return name + " " + v.scalar()
	}
	l.write = l.writer()
	if numel(v.shape) == 0 {
		return name + " []"
	}
	return name + "\n" + l.rows(nil, " ", formatWidth)
}

// scalar returns the only element of a tensor without dimensions, as Python prints it.
func (v *elements) scalar() string {
	real := func(n float64, dtype DType) string {
		switch a := math.Abs(n); {
		case math.IsNaN(n):
			return "nan"
		case math.IsInf(n, 0):
			return strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(n, 'g', -1, 64)), "+")
		case a != 0 && (a < 1e-4 || a >= 1e16):
			return shortest(n, 'e', dtype)
		}
		text := shortest(n, 'f', dtype)
		if !strings.Contains(text, ".") {
			text += ".0"
		}
		return text
	}
	switch {
	case v.dtype == Complex64 || v.dtype == Complex128:
		part := Float64
		if v.dtype == Complex64 {
			part = Float32
		}
		re, im := v.complex(nil)
		sign := ""
		if !math.Signbit(im) {
			sign = "+"
		}
		return "(" + strings.TrimSuffix(real(re, part), ".0") + sign + strings.TrimSuffix(real(im, part), ".0") + "j)"
	case v.dtype == Bool && v.integer(nil) != 0:
		return "True"
	case v.dtype == Bool:
		return "False"
	case !v.dtype.IsFloat():
		return v.digits(nil)
	}
	return real(v.number(nil), v.dtype)
}

func numel(shape []int64) int64 {
	n := int64(1)
	for _, size := range shape {
		n *= size
	}
	return n
}

// A layout puts values into rows and columns, as NumPy does.
type layout struct {
	*elements
	summarised bool
	write      func(index []int) string
}

// shown calls f for each index that is shown.
func (l *layout) shown(index []int, f func(index []int)) {
	d := len(index)
	if d == len(l.shape) {
		f(index)
		return
	}
	for _, i := range l.along(d) {
		if i >= 0 {
			l.shown(append(index[:d:d], i), f)
		}
	}
}

// along returns the indices that are shown along dimension d. -1 stands for those that are left
// out.
func (l *layout) along(d int) (indices []int) {
	n := int(l.shape[d])
	for i := range n {
		if l.summarised && n > 2*formatEdge && i >= formatEdge && i < n-formatEdge {
			if i == formatEdge {
				indices = append(indices, -1)
			}
			continue
		}
		indices = append(indices, i)
	}
	return indices
}

// rows returns what lies below `index`. All lines but the first begin with `indent`.
func (l *layout) rows(index []int, indent string, width int) string {
	const between = " "
	d := len(index)
	if d == len(l.shape) {
		return l.write(index)
	}
	indices := l.along(d)
	var b strings.Builder
	if d+1 < len(l.shape) {
		for k, i := range indices {
			b.WriteString(indent)
			if i < 0 {
				b.WriteString("...")
			} else {
				b.WriteString(l.rows(append(index[:d:d], i), indent+" ", width-1))
			}
			if k < len(indices)-1 {
				b.WriteString(strings.Repeat("\n", len(l.shape)-d-1))
			}
		}
	} else {
		line := indent
		for k, i := range indices {
			word := "..."
			if i >= 0 {
				word = l.write(append(index[:d:d], i))
			}
			if len(line)+len(word) > width-1 && len(line) > len(indent) {
				b.WriteString(strings.TrimRight(line, " ") + "\n")
				line = indent
			}
			line += word
			if k < len(indices)-1 {
				line += between
			}
		}
		b.WriteString(line)
	}
	return "[" + b.String()[len(indent):] + "]"
}

// writer returns a function that writes an element. All elements that are shown get the same width.
func (l *layout) writer() func(index []int) string {
	switch {
	case l.dtype == Complex64 || l.dtype == Complex128:
		part := Float64
		if l.dtype == Complex64 {
			part = Float32
		}
		re, im := column{dtype: part}, column{dtype: part, plus: true}
		var res, ims []float64
		l.shown(nil, func(index []int) {
			r, i := l.complex(index)
			res, ims = append(res, r), append(ims, i)
		})
		re.fit(res)
		im.fit(ims)
		return func(index []int) string {
			r, i := l.complex(index)
			text := im.text(i)
			digits := strings.TrimRight(text, " ")
			return re.text(r) + digits + "j" + text[len(digits):]
		}
	case l.dtype == Bool:
		return func(index []int) string {
			if l.integer(index) == 0 {
				return "False"
			}
			return " True"
		}
	case !l.dtype.IsFloat():
		width := 0
		l.shown(nil, func(index []int) { width = max(width, len(l.elements.digits(index))) })
		return func(index []int) string { return fmt.Sprintf("%*s", width, l.elements.digits(index)) }
	}
	of := column{dtype: l.dtype}
	var values []float64
	l.shown(nil, func(index []int) { values = append(values, l.number(index)) })
	of.fit(values)
	return func(index []int) string { return of.text(l.number(index)) }
}

// A column is the form of floating-point numbers below each other.
type column struct {
	dtype    DType
	plus     bool // write the sign of positive numbers
	exponent bool // such as 1.5e-05
	left     int  // characters in front of the point
	right    int  // characters behind the point; with an exponent, digits
	digits   int  // of the exponent
	whole    int  // characters of a number
}

// fit chooses the form for the values.
func (c *column) fit(values []float64) {
	smallest, largest, finite := math.Inf(1), 0.0, 0
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		finite++
		if a := math.Abs(v); a != 0 {
			smallest, largest = min(smallest, a), max(largest, a)
		}
	}
	c.exponent = largest != 0 && (largest >= 1e8 || smallest < 1e-4 || largest/smallest > 1000)
	c.left, c.right, c.digits = 0, 0, 0
	if finite == 0 {
		c.right = -1
	}
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		whole, fraction, exponent := c.parts(v)
		c.left, c.right, c.digits = max(c.left, len(whole)), max(c.right, len(fraction)), max(c.digits, len(exponent)-1)
	}
	c.whole = c.left + 1 + c.right
	if c.exponent {
		c.whole += 2 + c.digits
	}
	for _, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			c.whole = max(c.whole, len(c.special(v)))
		}
	}
}

func (c *column) special(v float64) string {
	switch {
	case math.IsInf(v, -1):
		return "-inf"
	case math.IsNaN(v) && c.plus:
		return "+nan"
	case math.IsNaN(v):
		return "nan"
	case c.plus:
		return "+inf"
	}
	return "inf"
}

// parts returns what stands in front of the point, behind it, and the exponent with its sign.
func (c *column) parts(v float64) (whole, fraction, exponent string) {
	verb := byte('f')
	if c.exponent {
		verb = 'e'
	}
	text := shortest(v, verb, c.dtype)
	text, exponent, _ = strings.Cut(text, "e")
	whole, fraction, _ = strings.Cut(text, ".")
	if len(fraction) > formatDigits {
		text = strconv.FormatFloat(v, verb, formatDigits, 64)
		text, exponent, _ = strings.Cut(text, "e")
		whole, fraction, _ = strings.Cut(text, ".")
		fraction = strings.TrimRight(fraction, "0")
	}
	if c.plus && !math.Signbit(v) {
		whole = "+" + whole
	}
	return whole, fraction, exponent
}

func (c *column) text(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Sprintf("%*s", c.whole, c.special(v))
	}
	whole, fraction, exponent := c.parts(v)
	left := fmt.Sprintf("%*s", c.whole-(c.wide()-c.left), whole)
	if !c.exponent {
		return fmt.Sprintf("%s.%-*s", left, c.right, fraction)
	}
	if len(fraction) < c.right { // NumPy then writes the digits of the exact value
		text, _, _ := strings.Cut(strconv.FormatFloat(v, 'e', c.right, 64), "e")
		_, fraction, _ = strings.Cut(text, ".")
	}
	return left + "." + fraction + "e" + exponent[:1] + strings.Repeat("0", c.digits-len(exponent[1:])) + exponent[1:]
}

// wide returns the characters of a finite number.
func (c *column) wide() int {
	if c.exponent {
		return c.left + 1 + c.right + 2 + c.digits
	}
	return c.left + 1 + c.right
}

// shortest returns the fewest digits that no other number of the dtype has.
func shortest(v float64, verb byte, dtype DType) string {
	var same func(float64) bool
	switch dtype {
	case Float64:
		return strconv.FormatFloat(v, verb, -1, 64)
	case Float16:
		same = func(u float64) bool { return ToFloat16(float32(u)) == ToFloat16(float32(v)) }
	case BFloat16:
		same = func(u float64) bool { return ToBFloat16(float32(u)) == ToBFloat16(float32(v)) }
	default:
		return strconv.FormatFloat(v, verb, -1, 32)
	}
	for digits := 1; digits < 9; digits++ {
		text := strconv.FormatFloat(v, 'e', digits-1, 64)
		u, err := strconv.ParseFloat(text, 64)
		if err == nil && same(u) {
			return strconv.FormatFloat(u, verb, -1, 64)
		}
	}
	return strconv.FormatFloat(v, verb, -1, 64)
}
