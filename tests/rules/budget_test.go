package rules

import (
	"flag"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/tests/rules/budget"
)

var tree = flag.String("tree", root, "count the tree in this folder; limits hold for our own alone")

// The tree holds no more than budget.txt allows. This command prints the counts of a tree, with
// what they count:
//
//	go test ./tests/rules -run TestBudget -v -args -tree FOLDER
func TestBudget(t *testing.T) {
	loaded := must.Get(budget.Load(*tree))(t)
	figures := must.Get(loaded.Figures())(t)
	limits := readLimits(t, "budget.txt")
	for _, f := range figures {
		limit, ok := limits[f.Name]
		delete(limits, f.Name)
		t.Logf("%s: %d of at most %d\n\t%s", f.Name, f.Count, limit, strings.Join(f.What, "\n\t"))
		if *tree == root && (!ok || f.Count > limit) {
			t.Errorf("%s: %d, and budget.txt allows %d", f.Name, f.Count, limit)
		}
	}
	for name := range limits {
		t.Errorf("budget.txt has a limit for %q, which nothing counts", name)
	}
}

// readLimits reads lines such as "init functions: 1, for the seam". The text after the number is
// the reason, and no line goes without one.
func readLimits(t *testing.T, path string) map[string]int {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	limits := map[string]int{}
	shape := regexp.MustCompile(`^([A-Za-z ]+): (\d+), \S.*$`)
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		match := shape.FindStringSubmatch(line)
		if match == nil {
			t.Fatalf("%s:%d: %q is not \"name: limit, reason\"", path, i+1, line)
		}
		limits[match[1]], _ = strconv.Atoi(match[2]) // only digits
	}
	return limits
}
