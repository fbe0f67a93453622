// Package docs holds the rows of the pages docs/from-pytorch.md and docs/from-gotorch.md. Each row
// is code of a test, so each row compiles and runs. The tests fail if a page and its rows differ.
// This command writes the pages:
//
//	go test ./tests/docs -update
//
// A row begins with a comment, such as "// PyTorch: torch.eye(2)". The lines after it, up to a call
// of the test's own checks or an empty line, are the row's Go code.
package docs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/prefetcher"
)

var update = flag.Bool("update", false, "write the pages")

func TestMain(m *testing.M) { torchtest.Main(m) }

// A row is a row of a page.
type row struct {
	group  string
	theirs []string // lines of the other library's code
	notRun bool     // the other library's code needs a GPU, files or several processes
	setUp  []string // Python code before the row, which the page does not show
	value  string   // the Python expression to compare; "" means the row's last line
	ours   []string // lines of Go
	remark string
	line   int
}

var (
	groupLine  = regexp.MustCompile(`^// Group: (.*)$`)
	rowLine    = regexp.MustCompile(`^// (?:PyTorch|gotorch)(, not run)?: (.*)$`)
	moreLine   = regexp.MustCompile(`^//      (.*)$`)
	setUpLine  = regexp.MustCompile(`^// Python: (.*)$`)
	valueLine  = regexp.MustCompile(`^// Value: (.*)$`)
	remarkLine = regexp.MustCompile(`^// Remark: (.*)$`)
	checkLine  = regexp.MustCompile(`^(c\.|defer |for .*// check$|\}\)?$)`)
)

// rows reads the rows of a source file.
func rows(t *testing.T, path string) []row {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	var all []row
	var open *row // nil between two rows
	var setUp []string
	group, indent := "", ""
	end := func() {
		if open != nil {
			all = append(all, *open)
		}
		open = nil
	}
	number := 0
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		number++
		line := strings.TrimLeft(s.Text(), "\t")
		tabs := s.Text()[:len(s.Text())-len(line)]
		switch found := rowLine.FindStringSubmatch(line); {
		case found != nil:
			end()
			open, indent = &row{group: group, theirs: []string{found[2]}, notRun: found[1] != "", setUp: setUp, line: number}, tabs
			setUp = nil
		case groupLine.MatchString(line):
			end()
			group = groupLine.FindStringSubmatch(line)[1]
		case setUpLine.MatchString(line):
			setUp = append(setUp, setUpLine.FindStringSubmatch(line)[1])
		case open == nil:
		case remarkLine.MatchString(line):
			open.remark = remarkLine.FindStringSubmatch(line)[1]
		case moreLine.MatchString(line) && open.remark != "":
			open.remark += " " + moreLine.FindStringSubmatch(line)[1]
		case valueLine.MatchString(line):
			open.value = valueLine.FindStringSubmatch(line)[1]
		case moreLine.MatchString(line) && len(open.ours) == 0:
			open.theirs = append(open.theirs, moreLine.FindStringSubmatch(line)[1])
		case line == "" || len(tabs) < len(indent) || tabs == indent && checkLine.MatchString(line) && !(line[0] == '}' && opened(open.ours)):
			end()
		default:
			open.ours = append(open.ours, strings.TrimPrefix(s.Text(), indent))
		}
	}
	end()
	return all
}

// opened reports whether lines have more opening braces than closing ones.
func opened(lines []string) bool {
	text := strings.Join(lines, "")
	return strings.Count(text, "{") > strings.Count(text, "}")
}

// table writes rows as tables, one for each group.
func table(all []row, head string, remarks bool) string {
	var b strings.Builder
	group := ""
	for _, r := range all {
		if r.group != group {
			group = r.group
			fmt.Fprintf(&b, "\n## %s\n\n%s\n%s\n", group, head, regexp.MustCompile(`[^|]+`).ReplaceAllString(head, " --- "))
		}
		ours := cell(r.ours)
		switch {
		case remarks:
			ours += " | " + r.remark
		case r.remark != "" && ours != "":
			ours += "<br>" + r.remark
		case r.remark != "":
			ours = r.remark
		}
		fmt.Fprintf(&b, "| %s | %s |\n", cell(r.theirs), ours)
	}
	return b.String()
}

// cell returns lines of code as the text of a cell.
func cell(lines []string) string {
	var cells []string
	for _, line := range lines {
		code := strings.TrimLeft(line, "\t ")
		indent := strings.Count(line, "\t") + (len(line)-len(strings.TrimLeft(line, " ")))/4
		quote := "`"
		if strings.Contains(code, quote) {
			quote = "``"
		}
		cells = append(cells, strings.Repeat("&emsp;", indent)+quote+strings.ReplaceAll(code, "|", `\|`)+quote)
	}
	return strings.Join(cells, "<br>")
}

// samePage fails the test if a page is not the text, or writes it.
func samePage(t *testing.T, name, want string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", name)
	if *update {
		must.Do(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	got := must.Get(os.ReadFile(path))(t)
	if string(got) == want {
		return
	}
	gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(want, "\n")
	for i, line := range wantLines {
		if i >= len(gotLines) || gotLines[i] != line {
			t.Fatalf("docs/%s:%d is not what its rows give; run go test ./tests/docs -update\nwant %s", name, i+1, line)
		}
	}
	t.Fatalf("docs/%s has lines after its last row; run go test ./tests/docs -update", name)
}

// checks compares the results of rows. It remembers what Python must give too.
type checks struct {
	t    *testing.T
	x    *cgotorch.Exec // nil outside a Do
	want map[int]any    // by the number of the line of the check
}

// The Python of a row must give the values of `values` and the shape of `shape`, by line.
var wanted = map[string]map[int]any{}

func newChecks(t *testing.T, file string, x *cgotorch.Exec) *checks {
	if wanted[file] == nil {
		wanted[file] = map[int]any{}
	}
	return &checks{t, x, wanted[file]}
}

// values fails the test unless the elements are about `want`.
func (c *checks) values(got *cgotorch.Tensor, want ...float64) {
	c.t.Helper()
	y := c.x.NoGrad()
	c.numbers(cgotorch.ToSlice[float64](y, y.To(got, cgotorch.Float64)), want)
	c.want[caller()] = want
}

// number fails the test unless a number is about `want`.
func (c *checks) number(got, want float64) {
	c.t.Helper()
	c.numbers([]float64{got}, []float64{want})
	c.want[caller()] = []float64{want}
}

func (c *checks) numbers(got, want []float64) {
	c.t.Helper()
	if len(got) != len(want) {
		c.t.Errorf("got %v, want %v", got, want)
		return
	}
	for i := range want {
		if !(math.Abs(got[i]-want[i]) <= 1e-4*max(1, math.Abs(want[i]))) {
			c.t.Errorf("got %v, want %v", got, want)
			return
		}
	}
}

// shape fails the test unless the shape is `want`.
func (c *checks) shape(got *cgotorch.Tensor, want ...int64) {
	c.t.Helper()
	if fmt.Sprint(got.Shape()) != fmt.Sprint(want) {
		c.t.Errorf("got shape %v, want %v", got.Shape(), want)
	}
	c.want[caller()] = map[string][]int64{"shape": want}
}

// is fails the test unless the condition holds.
func (c *checks) is(ok bool, got ...any) {
	c.t.Helper()
	if !ok {
		c.t.Errorf("the check is false: %v", got)
	}
}

func (c *checks) noError(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// python runs the Python code of rows in order, and compares the value of each row's last line. The
// variable CGOTORCH_PEER is the path of a Python that has torch.
func python(t *testing.T, file string) {
	peer := os.Getenv("CGOTORCH_PEER")
	if peer == "" {
		t.Skip("CGOTORCH_PEER is not set: the path of a Python with torch 2.11")
	}
	type step struct {
		Line  int    `json:"line"`
		Group string `json:"group"`
		Code  string `json:"code"`
		Want  any    `json:"want"`
	}
	var steps []step
	all := rows(t, file)
	for i, r := range all {
		next := math.MaxInt
		if i+1 < len(all) {
			next = all[i+1].line
		}
		var want any
		for line := r.line; line < min(next, r.line+40) && want == nil; line++ {
			want = wanted[file][line]
		}
		code := strings.Join(r.setUp, "\n")
		if !r.notRun {
			code += "\n" + strings.Join(r.theirs, "\n") + "\n" + r.value
		}
		steps = append(steps, step{r.line, r.group, code, want})
	}
	input := must.Get(json.Marshal(steps))(t)
	cmd := exec.Command(peer, "-c", peerProgram)
	cmd.Dir, cmd.Stdin = t.TempDir(), bytes.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

const peerProgram = `
import ast, json, sys
import torch, torch.nn as nn, torch.nn.functional as F
import torchvision

torch.set_num_threads(1)
group, names, failed, compared, ran = None, {}, 0, 0, 0
for step in json.load(sys.stdin):
    if step["group"] != group:
        group, names = step["group"], {"torch": torch, "nn": nn, "F": F, "torchvision": torchvision}
    try:
        tree = ast.parse(step["code"])
        value = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, "row", "exec"), names)
            value = eval(compile(last, "row", "eval"), names)
        else:
            exec(compile(tree, "row", "exec"), names)
            if tree.body and isinstance(tree.body[-1], ast.Assign):
                value = eval(ast.unparse(tree.body[-1].targets[0]), names)
        ran += bool(tree.body) or value is not None
        want = step["want"]
        if want is not None and value is not None:
            compared += 1
            if isinstance(want, dict):
                assert list(value.shape) == (want["shape"] or []), list(value.shape)
            else:
                got = torch.as_tensor(value).detach().double().flatten()
                assert torch.allclose(got, torch.tensor(want, dtype=torch.float64), rtol=1e-4, atol=1e-4), got
    except Exception as e:
        failed += 1
        print("line %d: %s: %r, want %s" % (step["line"], step["code"].strip(), e, step["want"]))
print("%d rows ran, %d were compared" % (ran, compared))
sys.exit(failed > 0)
`

// reads reads a batch of the images of `folder` with some options, and returns height and channels.
func (c *checks) reads(folder string, o imageloader.Options) (form [2]int) {
	c.t.Helper()
	o.BatchSize, o.Split = 2, "train"
	loader, err := imageloader.Open(folder, o)
	c.noError(err)
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background()) {
		c.noError(err)
		form = [2]int{batch.Height, batch.Channels}
		batch.Release()
	}
	return form
}

// copies copies an epoch of `folder` with some options, and returns the dtype of the labels.
func (c *checks) copies(folder string, o prefetcher.Options, channels int) (labels cgotorch.DType) {
	c.t.Helper()
	loader, err := imageloader.Open(folder, imageloader.Options{Split: "train", BatchSize: 2, Crop: imageloader.Crop{Channels: channels, Transform: decode.Resize{Height: 32, Width: 32}}})
	c.noError(err)
	defer loader.Close()
	ahead, err := prefetcher.New(loader, cgotorch.CPU, o)
	c.noError(err)
	defer ahead.Close()
	for batch, err := range ahead.Epoch(context.Background()) {
		c.noError(err)
		c.noError(cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
			images, classes := batch.Use(x)
			if finite := x.Item(x.All(x.IsFinite(images))); finite != 1 {
				c.t.Errorf("the images are %v", x.Format(images))
			}
			labels = classes.DType()
			return nil
		}))
	}
	return labels
}

// caller returns the number of the line that called a check.
func caller() int {
	_, _, line, _ := runtime.Caller(2)
	return line
}
