package pt2_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A guarded is a line of testdata/guards/programs.jsonl: a program, and what PyTorch does with it.
type guarded struct {
	Name  string
	Model json.RawMessage
	Calls []guardedCall
}

type guardedCall struct {
	Args    []guardedValue
	Kwargs  map[string]guardedValue
	Refused bool
	Result  []struct {
		Shape  []int64
		Values []string
		Int    int64
	}
}

// leaves returns the arguments one by one, in the order of the program's inputs.
func (c *guardedCall) leaves() (list []guardedValue) {
	for i := range c.Args {
		list = c.Args[i].leaves(list)
	}
	for _, v := range c.Kwargs {
		list = v.leaves(list)
	}
	return list
}

// shapes returns the shapes of the arguments, if all of them are tensors.
func (c *guardedCall) shapes() (shapes [][]int64, ok bool) {
	for _, v := range c.leaves() {
		if v.Tensor == nil {
			return nil, false
		}
		shapes = append(shapes, v.Tensor)
	}
	return shapes, true
}

type guardedValue struct {
	Tensor     []int64
	Transposed bool
	Int        int64
	List       []guardedValue
	Dict       map[string]guardedValue
}

// guardedPrograms returns the programs of make.py.
func guardedPrograms(t testing.TB) (list []guarded) {
	data, err := os.ReadFile("testdata/guards/programs.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var p guarded
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 40 {
		t.Fatalf("%d programs, want 40 or more", len(list))
	}
	return list
}

// file returns a program as a file of torch.export.save.
func (p *guarded) file(t testing.TB) []byte {
	return archive(t, map[string]string{
		"models/model.json": string(p.Model), "data/weights/model_weights_config.json": `{"config": {}}`,
		"data/constants/model_constants_config.json": `{"config": {}}`, "archive_format": "pt2", "archive_version": "0", "byteorder": "little",
	})
}

// value makes an argument. The elements of a tensor are those of make.py.
func (v *guardedValue) value(x *cgotorch.Exec) any {
	switch {
	case v.Tensor != nil:
		n := int64(1)
		for _, size := range v.Tensor {
			n *= size
		}
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(i%5 - 1)
		}
		shape := slices.Clone(v.Tensor)
		if v.Transposed {
			slices.Reverse(shape)
			return x.Transpose(cgotorch.FromSlice(x, data, shape...), 0, 1)
		}
		return cgotorch.FromSlice(x, data, shape...)
	case v.List != nil:
		list := []any{}
		for i := range v.List {
			list = append(list, v.List[i].value(x))
		}
		return list
	case v.Dict != nil:
		dict := map[string]any{}
		for key, item := range v.Dict {
			dict[key] = item.value(x)
		}
		return dict
	}
	return v.Int
}

// leavesOf returns the leaves of a result.
func leavesOf(v any) (list []any) {
	if items, ok := v.([]any); ok {
		for _, item := range items {
			list = append(list, leavesOf(item)...)
		}
		return list
	}
	return append(list, v)
}

// compare compares the result of call i with PyTorch's.
func (p *guarded) compare(x *cgotorch.Exec, i int, result any) error {
	got, want := leavesOf(result), p.Calls[i].Result
	if len(got) != len(want) {
		return fmt.Errorf("%d results, want %d", len(got), len(want))
	}
	for k, w := range want {
		t, ok := got[k].(*cgotorch.Tensor)
		if !ok {
			if got[k] != w.Int {
				return fmt.Errorf("result %d is %v, want %d", k, got[k], w.Int)
			}
			continue
		}
		if !slices.Equal(t.Shape(), w.Shape) && len(t.Shape())+len(w.Shape) > 0 {
			return fmt.Errorf("result %d has the shape %v, want %v", k, t.Shape(), w.Shape)
		}
		for j, v := range cgotorch.ToSlice[float32](x, t) {
			if !near(v, w.Values[j], !x.Device().IsCUDA()) {
				return fmt.Errorf("element %d of result %d is %v, want %v", j, k, v, w.Values[j])
			}
		}
	}
	return nil
}

// near reports whether a value is PyTorch's on the CPU, whose text is given: to the bit there, and
// up to rounding on another device.
func near(got float32, want string, sameBits bool) bool {
	w, err := strconv.ParseFloat(want, 64)
	if err != nil {
		return false
	}
	if sameBits || math.IsNaN(w) || math.IsInf(w, 0) {
		return fmt.Sprint(got) == fmt.Sprint(float32(w))
	}
	return math.Abs(float64(got)-w) <= 1e-5*max(1, math.Abs(w))
}

// Programs run with the sizes with which they run in PyTorch, and fail with the others.
func TestProgram_Call_Guards(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		run, refused := 0, 0
		for _, p := range guardedPrograms(t) {
			for _, fuse := range []bool{false, true} {
				var program *pt2.Program
				torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) (err error) {
					program, err = load(x, p.file(t), pt2.Options{Fuse: fuse})
					return err
				})
				for i := range p.Calls {
					c := &p.Calls[i]
					if shapes, ok := c.shapes(); ok {
						deferred := strings.HasPrefix(p.Name, "deferred") // nodes refuse
						if err := program.Accepts(shapes...); (err == nil) == c.Refused && !(deferred && err == nil) {
							t.Errorf("%s: Accepts of call %d: %v, and PyTorch refuses: %v", p.Name, i, err, c.Refused)
						}
					}
					var result error
					err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
						var args []any
						for k := range c.Args {
							args = append(args, c.Args[k].value(x))
						}
						keywords := pt2.Keywords{}
						for name, v := range c.Kwargs {
							keywords[name] = v.value(x)
						}
						result = p.compare(x, i, program.Call(x, append(args, keywords)...))
						return nil
					})
					switch {
					case c.Refused && err == nil:
						t.Errorf("%s: call %d (fuse %v) runs, and PyTorch refuses it", p.Name, i, fuse)
					case c.Refused && !errors.Is(err, cgotorch.ErrInvalidArgument):
						t.Errorf("%s: call %d (fuse %v) fails with %v, want ErrInvalidArgument", p.Name, i, fuse, err)
					case c.Refused:
						refused++
					case err != nil:
						t.Errorf("%s: call %d (fuse %v): %v", p.Name, i, fuse, err)
					case result != nil:
						t.Errorf("%s: call %d (fuse %v): %v", p.Name, i, fuse, result)
					default:
						run++
					}
				}
				if err := program.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		t.Logf("%d calls run, %d are refused", run, refused)
	})
}

// withGuards returns the small program with guards, which has the input x of float32[s0 2].
func withGuards(code ...string) []byte {
	text, err := json.Marshal(code)
	if err != nil {
		panic(err)
	}
	changed := entries()
	changed["models/model.json"] = strings.Replace(model, `"guards_code": []`, fmt.Sprintf(`"guards_code": %s`, text), 1)
	data, err := zipped(changed)
	if err != nil {
		panic(err)
	}
	return data
}

// forwardSmall runs a program with one input on float32[rows 2].
func forwardSmall(t *testing.T, data []byte, o pt2.Options, rows int64) error {
	var p *pt2.Program
	torchtest.DoOn(t, cgotorch.DefaultStream(cgotorch.CPU), func(x *cgotorch.Exec) (err error) {
		p, err = load(x, data, o)
		return err
	})
	defer p.Close()
	return cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		p.Forward(x, x.Zeros(cgotorch.Float32, rows, 2))
		return nil
	})
}

// The small program has s0 from 2 to 8, and its file says no size of the export.
func TestProgram_Forward_GuardTexts(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range []struct {
		guard string
		rows  int64
		want  string // of the error; "" is none
	}{
		{"(L['x'].size()[0] % 2) == 0", 4, ""},
		{"(L['x'].size()[0] % 2) == 0", 5, "dimension 0 of the input x is 5: the program was exported for inputs with (x.size()[0] % 2) == 0"},
		{"L['x'].shape[0] != 5 and L['x'].size()[1] == 2", 5, "dimension 0 of the input x is 5, dimension 1 of the input x is 2"},
		{"not (L['x'].size()[0] == 5)", 5, "with not (x.size()[0] == 5)"},
		{"L['x'].size()[0] == 5 or L['x'].size()[0] == 6", 6, ""},
		{"2 < L['x'].size()[0] < 5 <= 6", 4, ""},
		{"2 < L['x'].size()[0] < 5 <= 6", 5, "2 < x.size()[0]"},
		{"-L['x'].size()[0] // 4 == -2", 5, ""},
		{"-L['x'].size()[0] % 4 == 3", 5, ""},
		{"2 ** L['x'].size()[0] ** 2 == 65536", 4, ""},
		{"-2 ** 2 == -4 and ~L['x'].size()[0] == -6", 5, ""},
		{"L['x'].size()[0] & 4 ^ 1 | 8 == 13 << 0", 5, ""},
		{"1 << L['x'].size()[0] >> 1 == 16", 5, ""},
		{"(3 if L['x'].size()[0] > 4 else 0) == 3", 5, ""},
		{"(3 if L['x'].size()[0] > 4 else 0) == 3", 4, "(3 if (x.size()[0] > 4) else 0) == 3"},
		{"max(L['x'].size()[0], 3, 1) == 5 == max(1, 5)", 5, ""},
		{"min(L['x'].size()[0], 3, 7) == 3", 5, ""},
		{"abs(3 - L['x'].size()[0]) == 2", 5, ""},
		{"round(L['x'].size()[0] / 2) == 2 and round(2.675, 2) == 2.67", 5, ""},
		{"int(1.5*torch.sym_float(L['x'].size()[0])) == 7", 5, ""},
		{"math.floor(-L['x'].size()[0] / 2) == -3 and math.ceil(-2.5) == -2 and math.trunc(-2.5) == -2", 5, ""},
		{"math.sqrt(L['x'].size()[0]) == 2.0", 4, ""},
		{"L['x'].size()[0] < math.inf and L['x'].size()[0] > -math.inf", 4, ""},
		{"L['x'].size()[0] / 0.5e1 == 1", 5, ""},
		{"L['x'].stride()[0] == 2 and L['x'].dim() == 2 and L['x'].ndim == 2", 5, ""},
		{"L['x'].stride()[0] == 3", 5, "stride 0 of the input x is 2"},
		{"L['flat_args'][0].size()[0] == 5", 5, ""},
		{"8 % (L['x'].size()[0] - 5) == 0", 5, "division by zero"},
		{"9223372036854775807 + L['x'].size()[0] > 0", 5, "above 64 bits"},
		// Forms that are not read. The size of the export is not in the file, so no size runs.
		{"IsNonOverlappingAndDenseIndicator(L['x'].size()[0], 2) == 1", 5, "IsNonOverlappingAndDenseIndicator"},
		{"L['y'].size()[0] == 5", 5, "L['y'].size()[0] is not known"},
		{"L['x'].size()[2] == 5", 5, "L['x'].size()[2] is not known"},
		{"L['x'].size()[-1] == 5", 5, "of a form that this package does not read"},
		{"L['x'] == 5", 5, "L['x'] is not known"},
		{"L['x'].size()[0].bit_length() == 3", 5, "is not known"},
		{"L['x'].size()[0] is 5", 5, `"is" is not expected`},
		{"L['x'].size()[0] == ", 5, "it ends too early"},
		{"L['x'].size()[0] == 0x5", 5, "0x5"},
		{"(L['x'].size()[0]) == 5)", 5, `")" is not expected`},
		{"", 5, "it ends too early"},
		{strings.Repeat("(", 1000) + "5" + strings.Repeat(")", 1000), 5, "inside each other"},
		{strings.Repeat("not ", 1000) + "True", 5, "inside each other"},
		{strings.Repeat("-", 1000) + "5", 5, "inside each other"},
		{"'a' == 5", 5, "is not expected"},
		{strings.Repeat("(0 < ", 90) + "(1 + 1)" + strings.Repeat(" < 1)", 90), 5, "a formula between two comparisons in brackets"},
		{strings.Repeat("1 - ", 1<<20) + "1 == 1", 5, "a text of 4194310 bytes"},
		{strings.Repeat("1 - ", 10000) + "1 == -9999", 5, ""},
		{"L['x']" + strings.Repeat(".a", 10000) + " == 1", 5, "is not known"},
		{"-(-L['x'].size()[0]) + abs(-(-L['x'].size()[0])) == 10", 5, ""},
	} {
		for _, fuse := range []bool{false, true} {
			err := forwardSmall(t, withGuards(c.guard), pt2.Options{Fuse: fuse}, c.rows)
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%.100s with %d rows: %v, want %q", c.guard, c.rows, err, c.want)
			}
		}
	}
}

// A size whose formula is above 64 bits is refused. No tensor has it.
func TestProgram_Forward_FormulaAbove64Bits(t *testing.T) {
	torchtest.CheckLeaks(t)
	e := entries()
	e["models/model.json"] = strings.Replace(model, `[{"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)"}}, {"as_int": 2}]`,
		`[{"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)"}}, {"as_expr": {"expr_str": "Pow(Symbol('s0', positive=True, integer=True), Integer(64))"}}]`, 1)
	if e["models/model.json"] == model {
		t.Fatal("nothing is replaced")
	}
	err := forwardSmall(t, archive(t, e), pt2.Options{}, 3)
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "the input x is float32[3 2]", "whose size s0^64 is a number above 64 bits")
}

// A guard of an unknown form refuses all sizes but those of the export.
func TestProgram_Forward_UnknownGuard(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, rows := range []int64{4, 5} {
		data := entries()
		data["models/model.json"] = strings.NewReplacer(
			`"guards_code": []`, `"guards_code": ["f(L['x'])"]`,
			`{"as_expr": {"expr_str": "Symbol('s0'`, `{"as_expr": {"hint": {"as_int": 4}, "expr_str": "Symbol('s0'`,
		).Replace(model)
		err := forwardSmall(t, archive(t, data), pt2.Options{}, rows)
		if rows == 4 && err != nil {
			t.Error(err)
		}
		if want := "dimension 0 of the input x is 5, and the program runs with the size of its export alone, 4, because a guard"; rows == 5 && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
}

// A file without guards is held to the ranges of its sizes, and a line of log says it.
func TestLoad_NoGuards(t *testing.T) {
	torchtest.CheckLeaks(t)
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	data := entries()
	data["models/model.json"] = strings.Replace(model, `"guards_code": [],`, "", 1)
	for rows, runs := range map[int64]bool{1: true, 8: true, 9: false} {
		log.Reset()
		if err := forwardSmall(t, archive(t, data), pt2.Options{}, rows); (err == nil) != runs {
			t.Errorf("%d rows: %v", rows, err)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "net.pt2: the file has no guards") {
			t.Errorf("the log is %q", text)
		}
	}
}
