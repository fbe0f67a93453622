package nn

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Copy writes source, broadcast and cast, into destination, and records nothing for backward. Between host and device it
// waits for the device.
func Copy(x *cgotorch.Exec, destination, source *cgotorch.Tensor) {
	x.NoGrad().CopyInPlace(destination, source).Close()
}

// LoadOptions are the options of [Load]; the zero value wants exactly the model's names.
type LoadOptions struct {
	AllowMissing    bool // names of the model that are not among the tensors keep their values
	AllowUnexpected bool // names that the model does not have are passed over
}

// LoadError says what keeps tensors from being a model's state. All names are sorted as in the model, or by alphabet.
type LoadError struct {
	Missing    []string // the model has them, the tensors do not
	Unexpected []string // the tensors have them, the model does not
	Misshapen  []string // of another shape; each with both shapes
}

func (e *LoadError) Error() string {
	var parts []string
	for _, p := range []struct {
		what  string
		names []string
	}{{"missing", e.Missing}, {"unexpected", e.Unexpected}, {"of another shape", e.Misshapen}} {
		if len(p.names) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s: %s", len(p.names), p.what, strings.Join(p.names, ", ")))
		}
	}
	return "nn: Load: the tensors do not fit the model: " + strings.Join(parts, "; ")
}

// Load copies tensors, by their names in [State], into m's parameters and buffers, casting to their dtypes. Between host and
// device it waits for the device. It fails with a [*LoadError] and changes nothing unless names and shapes fit. A missing
// num_batches_tracked is no error: files older than PyTorch 0.4.1 do not have it.
func Load(x *cgotorch.Exec, m any, tensors map[string]*cgotorch.Tensor, o LoadOptions) error {
	state := State(m)
	failure := &LoadError{}
	known := map[string]bool{}
	for _, n := range state {
		known[n.Name] = true
		t := tensors[n.Name]
		switch {
		case t == nil:
			if !o.AllowMissing && !strings.HasSuffix(n.Name, "num_batches_tracked") {
				failure.Missing = append(failure.Missing, n.Name)
			}
		case t.Closed() || !slices.Equal(t.Shape(), n.Tensor.Shape()):
			failure.Misshapen = append(failure.Misshapen, fmt.Sprintf("%s (%v, the model has %v)", n.Name, t, n.Tensor))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		if !o.AllowUnexpected && !known[name] {
			failure.Unexpected = append(failure.Unexpected, name)
		}
	}
	if len(failure.Missing)+len(failure.Unexpected)+len(failure.Misshapen) > 0 {
		return failure
	}
	for _, n := range state {
		if t := tensors[n.Name]; t != nil {
			Copy(x, n.Tensor, t)
		}
	}
	return nil
}
