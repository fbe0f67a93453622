package cgotorch_test

import (
	"encoding/json"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A fixtureCall is a call in testdata/calls.json. Args holds the arguments behind the Exec. A
// tensor is the name of an input there, and a variadic parameter takes all arguments that are left.
type fixtureCall struct {
	Args      []json.RawMessage
	Options   map[string]json.RawMessage // the fields of an options struct
	Tolerance float64                    // relative; 0 means that of fixture.compare
	Absolute  bool                       // only absolute values are compared, where signs are free
	Results   []fixture
}

// Every call of testdata/calls.json gives PyTorch's result.
func TestOperators_Calls(t *testing.T) {
	f := readFixtureCalls(t)
	before := LiveHandles()["tensor"]
	for _, name := range slices.Sorted(maps.Keys(f.Calls)) {
		err := DefaultStream(CPU).Do(func(x *Exec) error {
			Check(Seed(42))
			in := make(inputs)
			for name, input := range f.Calls[name].named(f.Inputs) {
				in[name] = input.tensor(x)
			}
			return f.Calls[name].run(x, name, in)
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := LiveHandles()["tensor"]; after != before {
		t.Errorf("%d tensors are left", after-before)
	}
}

type fixtureCalls struct {
	Torch  string
	Inputs map[string]fixture
	Calls  map[string]fixtureCall
}

func readFixtureCalls(t *testing.T) (f fixtureCalls) {
	t.Helper()
	text := Must(os.ReadFile("testdata/calls.json"))
	must.Do(t, json.Unmarshal(text, &f))
	t.Logf("the calls of testdata/calls.py are of torch %s, LibTorch is %s", f.Torch, LibTorchVersion())
	return f
}

// named returns those of the inputs that the call names.
func (c fixtureCall) named(inputs map[string]fixture) map[string]fixture {
	text, inputs := fmt.Sprintf("%s %s", c.Args, c.Options), maps.Clone(inputs)
	maps.DeleteFunc(inputs, func(name string, _ fixture) bool { return !strings.Contains(text, `"`+name+`"`) })
	return inputs
}

func (c fixtureCall) run(x *Exec, name string, in inputs) error {
	method, _, _ := strings.Cut(name, "/")
	got, first, err := callOperator(x, method, c.Args, c.Options, in)
	if err != nil {
		return err
	}
	if len(got) == 0 { // an operator that changes a list
		got = first
	} else if returnsArgument(method) && (got[0] == any(first[0]) || !got[0].(*Tensor).SharesMemory(first[0].(*Tensor))) {
		return fmt.Errorf("the result is not a new handle of the argument")
	}
	if len(got) != len(c.Results) {
		return fmt.Errorf("got %d results, want %d", len(got), len(c.Results))
	}
	for i, want := range c.Results {
		if difference := want.differs(x, got[i], c.Tolerance, c.Absolute); difference != "" {
			return fmt.Errorf("result %d: %s", i, difference)
		}
	}
	return nil
}

// callOperator calls a method of Exec, or a function such as "linalg.SVD". It returns the results,
// lists taken apart, and the first tensor or list of the arguments.
func callOperator(x *Exec, name string, args []json.RawMessage, options map[string]json.RawMessage, in inputs) (results, first []any, err error) {
	fn := reflect.ValueOf(x).MethodByName(name)
	if packaged, ok := packageFunctions[name]; ok {
		full := reflect.ValueOf(packaged)
		return callFunction(full, []reflect.Value{reflect.ValueOf(x)}, args, options, in)
	}
	if !fn.IsValid() {
		return nil, nil, fmt.Errorf("there is no such operator")
	}
	return callFunction(fn, nil, args, options, in)
}

func callFunction(fn reflect.Value, values []reflect.Value, args []json.RawMessage, options map[string]json.RawMessage, in inputs) (results, first []any, err error) {
	signature := fn.Type()
	for i := len(values); i < signature.NumIn(); i++ {
		of := signature.In(i)
		switch {
		case signature.IsVariadic() && i == signature.NumIn()-1:
			for _, arg := range args {
				v := reflect.New(of.Elem()).Elem()
				if err := decode(arg, v, in); err != nil {
					return nil, nil, err
				}
				values = append(values, v)
			}
			args = nil
			continue
		case of.Kind() == reflect.Struct && strings.Contains(of.Name(), "Options"):
			v := reflect.New(of).Elem()
			for name, value := range options {
				field := v.FieldByName(name)
				if !field.IsValid() {
					return nil, nil, fmt.Errorf("%v has no field %s", of, name)
				}
				if err := decode(value, field, in); err != nil {
					return nil, nil, err
				}
			}
			values, options = append(values, v), nil
			continue
		case len(args) == 0:
			return nil, nil, fmt.Errorf("there is no argument %d, a %v", i, of)
		}
		v := reflect.New(of).Elem()
		if err := decode(args[0], v, in); err != nil {
			return nil, nil, fmt.Errorf("argument %d: %w", i, err)
		}
		values, args = append(values, v), args[1:]
	}
	if len(args) > 0 || len(options) > 0 {
		return nil, nil, fmt.Errorf("%d arguments and %d options are left", len(args), len(options))
	}
	for _, v := range values {
		if first = parts(v); first != nil {
			break
		}
	}
	for _, v := range fn.Call(values) {
		if of := parts(v); of != nil || v.Kind() == reflect.Slice {
			results = append(results, of...)
		} else {
			results = append(results, v.Interface())
		}
	}
	return results, first, nil
}

// parts returns a tensor, or the tensors of a list. For another value it returns nil.
func parts(v reflect.Value) (all []any) {
	switch v := v.Interface().(type) {
	case *Tensor:
		return []any{v}
	case []*Tensor:
		for _, t := range v {
			all = append(all, t)
		}
	}
	return all
}

// decode sets v to a JSON value.
func decode(text json.RawMessage, v reflect.Value, in inputs) error {
	if string(text) == "null" {
		return nil
	}
	decoded := func(to any) error { return json.Unmarshal(text, to) }
	switch to := v.Addr().Interface().(type) {
	case **Tensor:
		var name string
		if err := decoded(&name); err != nil {
			return err
		}
		if *to = in[name]; *to == nil {
			return fmt.Errorf("there is no input %q", name)
		}
	case *[]*Tensor:
		var names []string
		if err := decoded(&names); err != nil {
			return err
		}
		*to = []*Tensor{}
		for _, name := range names {
			*to = append(*to, in[name])
		}
	case *DType:
		var name string
		if err := decoded(&name); err != nil {
			return err
		}
		dtype, err := ParseDType(name)
		*to = dtype
		return err
	case *Scalar:
		var number json.Number
		if string(text) == "true" || string(text) == "false" {
			*to = string(text) == "true"
		} else if text[0] == '"' { // "nan", "inf" or "-inf"
			var v float64
			err := decode(text, reflect.ValueOf(&v).Elem(), in)
			*to = v
			return err
		} else if err := decoded(&number); err != nil {
			return err
		} else if n, err := number.Int64(); err == nil {
			*to = n
		} else if *to, err = number.Float64(); err != nil {
			return err
		}
	case *float64:
		var n number
		err := decoded(&n)
		*to = float64(n)
		return err
	case *Opt[int]:
		return decodeOpt(text, to, in)
	case *Opt[float64]:
		return decodeOpt(text, to, in)
	case *Opt[bool]:
		return decodeOpt(text, to, in)
	case *Opt[DType]:
		return decodeOpt(text, to, in)
	default:
		return decoded(to)
	}
	return nil
}

func decodeOpt[T any](text json.RawMessage, to *Opt[T], in inputs) error {
	var v T
	err := decode(text, reflect.ValueOf(&v).Elem(), in)
	*to = Set(v)
	return err
}

// differs is compare for any result of a typed operator.
func (f fixture) differs(x *Exec, result any, tolerance float64, absolute bool) string {
	var got *Tensor
	switch v := result.(type) {
	case *Tensor:
		got = v
	case bool:
		got = x.Full(Bool, v)
	case int:
		got = x.Full(Int64, v)
	case float64:
		got = x.Full(Float32, v)
	case DType:
		if v.String() != f.DType {
			return fmt.Sprintf("got %v, want %s", v, f.DType)
		}
		return ""
	}
	if tolerance == 0 && !absolute && got != nil && got.DType() != Complex64 {
		return f.compare(x, got)
	}
	if got == nil {
		return "got nil"
	}
	if got.DType().String() != f.DType || !slices.Equal(got.Shape(), f.Shape) {
		return fmt.Sprintf("got %v, want %s%v", got, f.DType, f.Shape)
	}
	values, wants := []complex128{}, []complex128{}
	if got.DType() == Complex64 {
		values = ToSlice[complex128](x, x.To(x.Detach(got), Complex128))
		for i := range len(f.Data) / 2 {
			wants = append(wants, complex(float64(f.Data[2*i]), float64(f.Data[2*i+1])))
		}
	} else {
		for i, v := range ToSlice[float64](x, x.To(x.Detach(got), Float64)) {
			values, wants = append(values, complex(v, 0)), append(wants, complex(float64(f.Data[i]), 0))
		}
	}
	if tolerance == 0 {
		tolerance = 1e-5
	}
	largest := 0.0 // results of linear algebra are as exact as their largest element
	for _, want := range wants {
		if size := math.Hypot(real(want), imag(want)); !math.IsInf(size, 0) && !math.IsNaN(size) {
			largest = max(largest, size)
		}
	}
	for i, v := range values {
		want := wants[i]
		if absolute {
			v, want = complex(math.Hypot(real(v), imag(v)), 0), complex(math.Hypot(real(want), imag(want)), 0)
		}
		d := v - want
		same := v == want || math.IsNaN(real(v)) && math.IsNaN(real(want))
		if !same && !(math.Hypot(real(d), imag(d)) <= 1e-6+tolerance*largest) {
			return fmt.Sprintf("element %d: got %v, want %v", i, v, want)
		}
	}
	return ""
}
