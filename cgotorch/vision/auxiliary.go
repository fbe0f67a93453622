package vision

import "github.com/streamtorch/streamtorch/cgotorch"

// runsHeads reports whether a model is in training. Its auxiliary heads run only in training. A
// graph is out of date if the mode changes after the capture.
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
