package vision

import "github.com/streamtorch/streamtorch/cgotorch"

// runsHeads reports whether a model is in training mode. The auxiliary heads of the model run
// only in this mode. If the mode changes after a capture, the captured graph is out of date.
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
