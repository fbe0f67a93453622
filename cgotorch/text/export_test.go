package text

import "github.com/streamtorch/streamtorch/cgotorch"

// Load copies the tensors of files into m, as LoadSwitch does with a new model.
func (m *Switch) Load(x *cgotorch.Exec, paths ...string) error { return m.load(x, paths...) }
