package pt2_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/pt2test"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Programs run with the sizes with which they run in PyTorch, and fail with the others.
func TestProgram_Call_Guards(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		run, refused := 0, 0
		for _, p := range pt2test.GuardedPrograms(t) {
			for _, fuse := range []bool{false, true} {
				var program *pt2.Program
				torchtest.DoOn(t, cgotorch.DefaultStream(d), func(x *cgotorch.Exec) (err error) {
					program, err = load(x, p.File(t), pt2.Options{Fuse: fuse})
					return err
				})
				for i := range p.Calls {
					c := &p.Calls[i]
					if shapes, ok := c.Shapes(); ok {
						deferred := strings.HasPrefix(p.Name, "deferred") // nodes refuse
						if err := program.Accepts(shapes...); (err == nil) == c.Refused && !(deferred && err == nil) {
							t.Errorf("%s: Accepts of call %d: %v, and PyTorch refuses: %v", p.Name, i, err, c.Refused)
						}
					}
					var result error
					err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
						var args []any
						for k := range c.Args {
							args = append(args, c.Args[k].Value(x))
						}
						keywords := pt2.Keywords{}
						for name, v := range c.Kwargs {
							keywords[name] = v.Value(x)
						}
						result = p.Compare(x, i, program.Call(x, append(args, keywords)...))
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
				must.Check(t, program.Close())
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
	changed := pt2test.Entries()
	changed["models/model.json"] = strings.Replace(pt2test.Model, `"guards_code": []`, fmt.Sprintf(`"guards_code": %s`, text), 1)
	data, err := pt2test.Zipped(changed)
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
	e := pt2test.Entries()
	e["models/model.json"] = strings.Replace(pt2test.Model, `[{"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)"}}, {"as_int": 2}]`,
		`[{"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)"}}, {"as_expr": {"expr_str": "Pow(Symbol('s0', positive=True, integer=True), Integer(64))"}}]`, 1)
	if e["models/model.json"] == pt2test.Model {
		t.Fatal("nothing is replaced")
	}
	err := forwardSmall(t, pt2test.Archive(t, e), pt2.Options{}, 3)
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "the input x is float32[3 2]", "whose size s0^64 is a number above 64 bits")
}

// A guard of an unknown form refuses all sizes but those of the export.
func TestProgram_Forward_UnknownGuard(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, rows := range []int64{4, 5} {
		data := pt2test.Entries()
		data["models/model.json"] = strings.NewReplacer(
			`"guards_code": []`, `"guards_code": ["f(L['x'])"]`,
			`{"as_expr": {"expr_str": "Symbol('s0'`, `{"as_expr": {"hint": {"as_int": 4}, "expr_str": "Symbol('s0'`,
		).Replace(pt2test.Model)
		err := forwardSmall(t, pt2test.Archive(t, data), pt2.Options{}, rows)
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
	data := pt2test.Entries()
	data["models/model.json"] = strings.Replace(pt2test.Model, `"guards_code": [],`, "", 1)
	for rows, runs := range map[int64]bool{1: true, 8: true, 9: false} {
		log.Reset()
		if err := forwardSmall(t, pt2test.Archive(t, data), pt2.Options{}, rows); (err == nil) != runs {
			t.Errorf("%d rows: %v", rows, err)
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "net.pt2: the file has no guards") {
			t.Errorf("the log is %q", text)
		}
	}
}
