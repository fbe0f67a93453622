package cgotorch_test

import (
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// hostileCalls is the environment variable that makes TestOperators_EndNoProcess run calls instead
// of child processes: "SEED FROM TO", and a fourth word for the file that holds the running call.
const hostileCalls = "CGOTORCH_HOSTILE_CALLS"

// No call of a typed operator ends the process or hangs, whatever its arguments are. Child
// processes make the calls, so that the test can name the call that ends one. Half of the calls
// have random arguments of the right types. The others are the calls of the operators' tests, with
// tensors of other values, dtypes, layouts and shapes.
func TestOperators_EndNoProcess(t *testing.T) {
	if words := strings.Fields(os.Getenv(hostileCalls)); len(words) >= 3 {
		runHostileCalls(t, words)
		return
	}
	if os.Getenv("CGOTORCH_CHECK") != "" {
		t.Skip("the checks make each call slow")
	}
	seed, calls := uint64(1), 100_000
	if testing.Short() {
		calls = 5_000
	}
	if s := os.Getenv("CGOTORCH_HOSTILE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	parts := min(2, runtime.NumCPU())
	var all sync.WaitGroup
	for part := range parts {
		all.Add(1)
		go func() {
			defer all.Done()
			for from, to := part*calls/parts, (part+1)*calls/parts; from < to; {
				from = runHostileChild(t, seed, from, to) + 1
			}
		}()
	}
	all.Wait()
}

// mostHostile is the time that a call may take in a child.
const mostHostile = 60 * time.Second

// runHostileChild makes the calls from..to in a child process. It returns the number of the call
// that ended the process, or `to`.
func runHostileChild(t *testing.T, seed uint64, from, to int) int {
	now := filepath.Join(t.TempDir(), "now")
	command := exec.Command(os.Args[0], "-test.run=^TestOperators_EndNoProcess$", "-test.v", "-test.timeout=0")
	command.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %s", hostileCalls, seed, from, to, now))
	var out strings.Builder
	command.Stdout, command.Stderr = &out, &out
	if err := command.Start(); err != nil {
		t.Error(err)
		return to
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	running := func() (number int, name string) {
		text, _ := os.ReadFile(now)
		first, rest, _ := strings.Cut(strings.TrimRight(string(text), " "), " ")
		number, err := strconv.Atoi(first)
		if err != nil {
			return to, "no call"
		}
		return number, rest
	}
	for last, since := -1, time.Now(); ; {
		select {
		case err := <-ended:
			if err == nil {
				return to
			}
			number, name := running()
			t.Errorf("%s ends the process: call %d of seed %d: %v\n%s\nrun it alone with %s='%[3]d %[2]d %[7]d'",
				name, number, seed, err, lastOf(out.String()), hostileCalls, number+1)
			return number
		case <-time.After(time.Second):
			number, name := running()
			if number != last {
				last, since = number, time.Now()
			}
			if time.Since(since) < mostHostile {
				continue
			}
			_ = command.Process.Kill()
			<-ended
			t.Errorf("%s hangs: call %d of seed %d; run it alone with %s='%[3]d %[2]d %[5]d'", name, number, seed, hostileCalls, number+1)
			return number
		}
	}
}

// lastOf returns the lines of a crash that name it.
func lastOf(out string) string {
	for _, line := range strings.Split(out, "\n") {
		if strings.Contains(line, "SIG") || strings.Contains(line, "panic:") || strings.Contains(line, "terminate") || strings.HasPrefix(line, "    ") {
			return line
		}
	}
	return out[max(0, len(out)-300):]
}

func runHostileCalls(t *testing.T, words []string) {
	seed, _ := strconv.ParseUint(words[0], 10, 64)
	from, _ := strconv.Atoi(words[1])
	to, _ := strconv.Atoi(words[2])
	now := Must(os.Create(slices.Concat(words, []string{os.DevNull})[3]))
	defer now.Close()
	must.Do(t, SetThreads(1))
	h := &hostile{fixtures: readFixtures(t).Inputs, calls: readFixtureCalls(t), alone: to == from+1}
	h.cases = append(slices.Sorted(maps.Keys(operatorCases)), slices.Sorted(maps.Keys(h.calls.Calls))...)
	for _, pkg := range []string{"", "linalg", "fft", "special"} {
		source := Must(os.ReadFile(filepath.Join(pkg, "operators_gen.go")))
		for _, f := range regexp.MustCompile(`(?m)^func (?:\(x \*Exec\) )?(\w+)\(`).FindAllStringSubmatch(string(source), -1) {
			h.names = append(h.names, strings.TrimPrefix(pkg+"."+f[1], "."))
		}
	}
	failed := 0
	for number := from; number < to; number++ {
		h.Rand = rand.New(rand.NewPCG(seed, uint64(number)))
		err := DefaultStream(CPU).Do(func(x *Exec) error {
			Check(Seed(uint64(number)))
			name, run := h.call(x)
			if _, err := now.WriteAt(fmt.Appendf(nil, "%d %-60s", number, name), 0); err != nil {
				t.Fatal(err)
			}
			return run()
		})
		if err != nil {
			failed++
		}
		if h.alone {
			fmt.Println(err)
		}
	}
	t.Logf("%d calls, %d of them refused", to-from, failed)
}

// hostile makes random calls.
type hostile struct {
	*rand.Rand
	fixtures map[string]fixture
	calls    fixtureCalls
	names    []string // of all typed operators
	cases    []string // of operatorCases and of the calls
	alone    bool     // the arguments are printed
}

// call returns a call, and the name of its operator.
func (h *hostile) call(x *Exec) (name string, run func() error) {
	if h.IntN(2) == 0 {
		name = h.names[h.IntN(len(h.names))]
		return name, func() error { return h.random(x, name) }
	}
	name = h.cases[h.IntN(len(h.cases))]
	return name, func() error {
		if of, ok := operatorCases[name]; ok {
			of(x, h.inputs(x, h.fixtures))
			return nil
		}
		method, _, _ := strings.Cut(name, "/")
		call := h.calls.Calls[name]
		_, _, err := callOperator(x, method, call.Args, call.Options, h.inputs(x, call.named(h.calls.Inputs)))
		return err
	}
}

// inputs returns the inputs of a case. Some of them are changed.
func (h *hostile) inputs(x *Exec, of map[string]fixture) inputs {
	in := make(inputs)
	for _, name := range slices.Sorted(maps.Keys(of)) {
		t := of[name].tensor(x)
		switch h.IntN(5) {
		case 0, 1: // other values
			t = h.fill(x, t.DType(), t.Shape())
		case 2:
			t = h.fill(x, h.dtype(), t.Shape())
		case 3:
			if h.IntN(4) == 0 {
				t = h.tensor(x)
			}
		}
		in[name] = h.layout(x, t)
		if h.alone {
			fmt.Printf("%s: %v\n", name, x.Format(in[name]))
		}
	}
	return in
}

// random calls an operator with random arguments.
func (h *hostile) random(x *Exec, name string) error {
	fn, args := reflect.ValueOf(x).MethodByName(name), []reflect.Value(nil)
	if packaged, ok := packageFunctions[name]; ok {
		fn, args = reflect.ValueOf(packaged), []reflect.Value{reflect.ValueOf(x)}
	}
	signature := fn.Type()
	for i := len(args); i < signature.NumIn(); i++ {
		if signature.IsVariadic() && i == signature.NumIn()-1 {
			for range h.IntN(4) {
				args = append(args, h.value(x, signature.In(i).Elem()))
			}
			break
		}
		args = append(args, h.value(x, signature.In(i)))
	}
	if h.alone {
		for _, arg := range args[min(1, len(args)):] {
			fmt.Printf("%v: %+v\n", arg.Type(), arg)
		}
	}
	fn.Call(args)
	return nil
}

var (
	// The sizes are small, or so large that no memory holds them. Sizes between would only be slow.
	hostileInts   = []int64{0, 0, 0, 1, 1, 1, 2, 2, 3, 4, -1, -1, -2, -5, 7, math.MaxInt64, math.MinInt64}
	hostileFloats = []float64{0, 0, 1, 1, -1, 2, 0.5, -0.5, 1e-45, 1e300, math.Inf(1), math.Inf(-1), math.NaN()}
	hostileTexts  = []string{"ij,jk->ik", "ij->ji", "", "i", "...i->...", "i->jj", "sum", "mean", "amax", "none", "right", "floor", "trunc", "gelu", "linear", "valid", "same", "reflect", "bilinear"}
	hostileShapes = [][]int64{{}, {1}, {3}, {0}, {2, 3}, {3, 2}, {3, 3}, {1, 3}, {0, 3}, {2, 0}, {0, 0}, {2, 3, 3}, {2, 3, 4}, {2, 1, 4}, {2, 0, 4}, {0, 3, 3}, {1, 2, 4, 4}, {2, 4, 3, 5}, {1, 2, 3, 4, 4}}
	hostileDTypes = []DType{Float32, Float32, Float32, Float32, Float64, Float64, Float16, BFloat16, Int64, Int64, Int32, Int16, Int8, Uint8, Bool, Complex64, Complex128}
)

func oneOf[T any](h *hostile, of []T) T { return of[h.IntN(len(of))] }

func (h *hostile) dtype() DType { return oneOf(h, hostileDTypes) }

func (h *hostile) tensor(x *Exec) *Tensor { return h.fill(x, h.dtype(), oneOf(h, hostileShapes)) }

// value returns a random value of a type.
func (h *hostile) value(x *Exec, of reflect.Type) reflect.Value {
	v := reflect.New(of).Elem()
	switch to := v.Addr().Interface().(type) {
	case **Tensor:
		if h.IntN(30) > 0 {
			*to = h.layout(x, h.tensor(x))
		}
	case *[]*Tensor:
		for range h.IntN(4) {
			*to = append(*to, h.tensor(x))
		}
	case *Scalar:
		switch h.IntN(6) {
		case 0:
			*to = nil
		case 1, 2:
			*to = oneOf(h, hostileInts)
		case 3, 4:
			*to = oneOf(h, hostileFloats)
		case 5:
			*to = complex(oneOf(h, hostileFloats), oneOf(h, hostileFloats))
		}
	case *[]Scalar:
		for range h.IntN(4) {
			*to = append(*to, oneOf(h, hostileInts))
		}
	case *[]int64:
		for range h.IntN(4) {
			*to = append(*to, oneOf(h, hostileInts))
		}
	case *[]float64:
		for range h.IntN(4) {
			*to = append(*to, oneOf(h, hostileFloats))
		}
	case *string:
		*to = oneOf(h, hostileTexts)
	case *DType:
		*to = h.dtype()
	case *Opt[int]:
		hostileOpt(h, to, func() int { return int(oneOf(h, hostileInts)) })
	case *Opt[bool]:
		hostileOpt(h, to, func() bool { return h.IntN(2) == 0 })
	case *Opt[float64]:
		hostileOpt(h, to, func() float64 { return oneOf(h, hostileFloats) })
	case *Opt[DType]:
		hostileOpt(h, to, h.dtype)
	default:
		switch of.Kind() {
		case reflect.Struct:
			for i := range of.NumField() {
				if h.IntN(2) == 0 {
					v.Field(i).Set(h.value(x, of.Field(i).Type))
				}
			}
		case reflect.Bool:
			v.SetBool(h.IntN(2) == 0)
		case reflect.Float64:
			v.SetFloat(oneOf(h, hostileFloats))
		case reflect.Int, reflect.Int64, reflect.Int8:
			n := oneOf(h, hostileInts)
			if of.Kind() == reflect.Int8 || of.PkgPath() != "" {
				n %= 5
			}
			v.SetInt(n)
		case reflect.Pointer, reflect.Slice, reflect.Interface, reflect.Func: // nil
		default:
			panic(fmt.Sprintf("hostile calls know no %v", of))
		}
	}
	return v
}

func hostileOpt[T any](h *hostile, to *Opt[T], value func() T) {
	if h.IntN(2) == 0 {
		*to = Set(value())
	}
}

// fill returns a tensor with small, extreme or mixed values.
func (h *hostile) fill(x *Exec, dtype DType, shape []int64) *Tensor {
	n := int64(1)
	for _, size := range shape {
		n *= size
	}
	kind := h.IntN(6)
	least, most := leastOf(dtype)
	if !dtype.IsFloat() && dtype != Complex64 && dtype != Complex128 {
		values := make([]int64, n)
		for i := range values {
			switch kind {
			case 0:
				values[i] = least
			case 1:
				values[i] = oneOf(h, []int64{least, most, -1, 0, 1, least + 1})
			case 2:
				values[i] = int64(h.IntN(3))
			case 3:
				values[i] = -1
			default:
				values[i] = int64(h.IntN(10) - 4)
			}
		}
		return x.To(FromSlice(x, values, shape...), dtype)
	}
	values := make([]float64, n)
	for i := range values {
		switch {
		case kind == 0, kind == 1 && h.IntN(3) == 0:
			values[i] = oneOf(h, []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 5e-324, 0})
		case kind == 2:
			values[i] = float64(h.IntN(3))
		case kind == 3:
			values[i] = 0
		default:
			values[i] = h.NormFloat64()
		}
	}
	t := x.To(FromSlice(x, values, shape...), dtype)
	if !dtype.IsFloat() {
		t = x.MulScalar(t, complex(1, h.NormFloat64()))
	}
	return t
}

func leastOf(dtype DType) (least, most int64) {
	switch dtype {
	case Int64:
		return math.MinInt64, math.MaxInt64
	case Int32:
		return math.MinInt32, math.MaxInt32
	case Int16:
		return math.MinInt16, math.MaxInt16
	case Int8:
		return math.MinInt8, math.MaxInt8
	case Uint8:
		return 0, math.MaxUint8
	}
	return 0, 1
}

// layout returns the same elements, sometimes with other strides.
func (h *hostile) layout(x *Exec, t *Tensor) *Tensor {
	switch dims := t.Dim(); {
	case h.IntN(3) > 0 || dims == 0:
		return t
	case dims > 1 && h.IntN(2) == 0:
		return x.Transpose(x.Contiguous(x.Transpose(t, 0, -1), Contiguous), 0, -1)
	case t.Shape()[0] > 0:
		return x.Expand(x.Narrow(t, 0, 0, 1), t.Shape()...)
	}
	return t
}
