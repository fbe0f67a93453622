package cifar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/internal/pickle"
)

// array is an array of numpy, of whole numbers or of others.
type array struct {
	shape   []int
	dtype   string // such as u1
	order   string // of the bytes of a number: <, > or |
	columns bool   // the elements are in the order of columns, as in Fortran
	data    string
}

// arrayOf returns the array that a value of a pickle stands for.
func arrayOf(value any) (*array, error) {
	o, ok := value.(*pickle.Object)
	if !ok {
		return nil, fmt.Errorf("it is a %T", value)
	}
	switch strings.Replace(o.Class, "numpy._core.", "numpy.core.", 1) {
	case "numpy.core.multiarray._reconstruct": // the state is version, shape, dtype, order, data
		state, _ := o.State.(*pickle.List)
		if state != nil && len(state.Items) == 5 {
			columns, isOrder := state.Items[3].(bool)
			if n, ok := state.Items[3].(int64); ok {
				columns, isOrder = n != 0, true
			}
			return newArray(state.Items[1], state.Items[2], columns, isOrder, state.Items[4])
		}
	case "numpy.core.numeric._frombuffer": // protocol 5: data, dtype, shape, order
		if len(o.Args) == 4 {
			order, _ := o.Args[3].(string)
			return newArray(o.Args[2], o.Args[1], order == "F", order == "F" || order == "C", o.Args[0])
		}
	}
	return nil, fmt.Errorf("it is a %.100s", o.Class)
}

// newArray returns an array. isOrder is false if the order of the elements is not known.
func newArray(shape, dtype any, columns, isOrder bool, data any) (*array, error) {
	sizes, isShape := shape.(*pickle.List)
	kind, order, isKind := dtypeOf(dtype)
	text, isData := data.(string)
	if !isShape || !isKind || !isOrder || !isData {
		return nil, fmt.Errorf("an array of a %T, a %T and a %T", shape, dtype, data)
	}
	a := &array{dtype: kind, order: order, columns: columns, data: text}
	size := 1
	for _, v := range sizes.Items {
		n, ok := v.(int64)
		if !ok || n < 0 || n > math.MaxInt32 || n > 0 && size > math.MaxInt32/int(n) {
			return nil, errors.New("an array of impossible sizes")
		}
		a.shape = append(a.shape, int(n))
		size *= int(n)
	}
	if width := a.width(); width > 0 && size*width != len(text) {
		return nil, fmt.Errorf("an array %v of %s with %d bytes", a.shape, a.dtype, len(text))
	}
	return a, nil
}

// dtypeOf returns the name of a dtype and its order of bytes. The state is version, order and more.
func dtypeOf(value any) (name, order string, ok bool) {
	o, isObject := value.(*pickle.Object)
	if !isObject || o.Class != "numpy.dtype" || len(o.Args) == 0 {
		return "", "", false
	}
	if state, _ := o.State.(*pickle.List); state != nil && len(state.Items) > 1 {
		order, _ = state.Items[1].(string)
	}
	name, ok = o.Args[0].(string)
	return name, order, ok
}

// width returns the number of bytes of a whole number, or 0 for another dtype.
func (a *array) width() int {
	if d := a.dtype; len(d) == 2 && (d[0] == 'i' || d[0] == 'u') && strings.Contains("1248", d[1:]) {
		return int(d[1] - '0')
	}
	return 0
}

// wholeNumbers returns the elements of a list, or of an array of whole numbers in one dimension.
func wholeNumbers(value any) ([]int64, error) {
	if l, ok := value.(*pickle.List); ok {
		all := make([]int64, len(l.Items))
		for i, v := range l.Items {
			n, err := wholeNumber(v)
			if err != nil {
				return nil, err
			}
			all[i] = n
		}
		return all, nil
	}
	a, err := arrayOf(value)
	if err != nil {
		return nil, err
	}
	if a.width() == 0 || len(a.shape) != 1 {
		return nil, fmt.Errorf("it is an array %v of %s", a.shape, a.dtype)
	}
	all := make([]int64, a.shape[0])
	for i := range all {
		all[i] = a.number(i)
	}
	return all, nil
}

// wholeNumber returns an integer of Python, or a number of numpy.
func wholeNumber(value any) (int64, error) {
	switch v := value.(type) {
	case int64:
		return v, nil
	case *pickle.Object: // dtype and data
		if strings.Replace(v.Class, "numpy._core.", "numpy.core.", 1) != "numpy.core.multiarray.scalar" || len(v.Args) != 2 {
			return 0, fmt.Errorf("it holds a %.100s", v.Class)
		}
		one, err := newArray(&pickle.List{Items: []any{int64(1)}}, v.Args[0], false, true, v.Args[1])
		if err != nil {
			return 0, err
		}
		if one.width() > 0 {
			return one.number(0), nil
		}
		return 0, fmt.Errorf("it holds a number of %s", one.dtype)
	}
	return 0, fmt.Errorf("it holds a %T", value)
}

// number returns element i of an array of whole numbers.
func (a *array) number(i int) int64 {
	width := a.width()
	var whole [8]byte // with the low byte first
	copy(whole[:], a.data[i*width:][:width])
	if a.order == ">" {
		slices.Reverse(whole[:width])
	}
	n := int64(binary.LittleEndian.Uint64(whole[:]))
	if shift := 64 - 8*width; a.dtype[0] == 'i' {
		n = n << shift >> shift
	}
	return n
}
