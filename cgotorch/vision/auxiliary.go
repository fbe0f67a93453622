package vision

import "github.com/streamtorch/streamtorch/cgotorch"

// runsHeads reports whether a model is in training, where its auxiliary heads run. A change makes a
// captured function be captured again.
func runsHeads(x *cgotorch.Exec, what string, eval *bool) bool {
	used := *eval
	if x.Capturing() {
		x.DependsOn(func() string {
			if *eval != used {
				return what + " has changed between training and evaluation"
			}
			return ""
		})
	}
	return !used
}
