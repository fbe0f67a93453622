//go:build !windows

package examples

import (
	"regexp"
	"strconv"
	"testing"
)

// The programs that train on other data than images print a loss that falls.
func TestData_LossFalls(t *testing.T) {
	for _, program := range []string{"tabular", "text", "audio"} {
		t.Run(program, func(t *testing.T) {
			out := mustRun(t, program)
			found := regexp.MustCompile(`loss ([0-9.]+)`).FindAllStringSubmatch(out, -1)
			if len(found) < 2 {
				t.Fatalf("it printed %q", out)
			}
			first, _ := strconv.ParseFloat(found[0][1], 64)
			last, _ := strconv.ParseFloat(found[len(found)-1][1], 64)
			if !(last < 0.7*first) {
				t.Errorf("the loss went from %v to %v:\n%s", first, last, out)
			}
		})
	}
}
