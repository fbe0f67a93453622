package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

const (
	version      = 1
	metadataKey  = "streamtorch"
	checksumName = "checkpoint/crc32c"
	cpuGenerator = "generator/cpu"
	gpuGenerator = "generator/cuda"
	ofOptimizer  = "optimizer/"
	ofEMA        = "ema/"
	ofLBFGS      = "lbfgs/"
)

// ErrDamaged is wrapped by the error for a file that is not a complete safetensors file, or that
// has changed since it was saved.
var ErrDamaged = errors.New("damaged: copy it again, or go on from another checkpoint")

// Info holds all fields of a checkpoint except its tensors.
type Info struct {
	Version   int             `json:"version"`             // 0 if this package did not save the file
	Epoch     int             `json:"epoch"`               // from [Checkpoint]
	Step      int             `json:"step"`                // from [Checkpoint]
	Loader    json.RawMessage `json:"loader,omitempty"`    // from [Checkpoint]: the position in the data, or nil
	Config    json.RawMessage `json:"config,omitempty"`    // from [Checkpoint]: the settings of the run, or nil
	Optimizer *OptimizerInfo  `json:"optimizer,omitempty"` // nil if the run was saved without an optimizer

	LBFGS  *LBFGSInfo         `json:"lbfgs,omitempty"`  // nil if the run was saved without an LBFGS
	Scaler *optim.ScalerState `json:"scaler,omitempty"` // for [optim.Scaler.Restore]; nil if the run was saved without a scaler
}

// OptimizerInfo holds all fields of an optimizer's state except its tensors. See [optim.State].
type OptimizerInfo struct {
	Rule     string          `json:"rule"`
	LR       float64         `json:"lr"`
	Scale    float64         `json:"scale"`
	GroupLRs map[int]float64 `json:"group_lrs,omitempty"`
	// Groups has the names of the parameters of each group in GroupLRs. It is nil in files of earlier
	// versions, and of optimizers that are not *optim.Optimizer.
	Groups map[int][]string `json:"groups,omitempty"`
	Params []string         `json:"params"` // names of the parameters in the model, in the optimizer's order
	Steps  []int64          `json:"steps"`
}

// Inspect reads all fields of a checkpoint except its tensors, for instance to make the model. For
// a file that this package has not saved it returns the zero Info. It fails with [ErrDamaged] if
// these fields have changed since the file was saved. It does not look at the tensors.
func Inspect(path string) (Info, error) {
	f, err := open(path)
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	if _, err := f.checksums(); err != nil {
		return Info{}, err
	}
	return f.info, nil
}

type file struct {
	pth.Weights
	info Info
}

// fail returns an error that names the file. format and args give its text.
func (f *file) fail(format string, args ...any) error {
	return fmt.Errorf("checkpoint: %s: %w", f.Name(), fmt.Errorf(format, args...))
}

func open(path string) (*file, error) {
	f, err := pth.OpenWeights(path)
	if missing := (*fs.PathError)(nil); errors.As(err, &missing) {
		return nil, fmt.Errorf("checkpoint: %w; check the path", missing)
	} else if errors.Is(err, safetensors.ErrFormat) || errors.Is(err, pth.ErrFormat) {
		return nil, fmt.Errorf("checkpoint: %w: %w", err, ErrDamaged)
	} else if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	c, err := newFile(f)
	if err != nil {
		f.Close()
	}
	return c, err
}

// newFile reads the fields of a checkpoint.
func newFile(f pth.Weights) (*file, error) {
	c := &file{Weights: f}
	if text, ok := f.Metadata()[metadataKey]; ok {
		if err := json.Unmarshal([]byte(text), &c.info); err != nil {
			return nil, c.fail("metadata %s: %w: %w", metadataKey, err, ErrDamaged)
		}
		if c.info.Version != version {
			return nil, c.fail("it is of version %d, and this program reads version %d: load it with the program that saved it", c.info.Version, version)
		}
	}
	return c, nil
}

// ofModel reports whether a tensor of this name belongs to the model.
func (f *file) ofModel(name string) bool { return f.info.Version == 0 || !strings.Contains(name, "/") }

// tensor makes a tensor on x's device from the file's tensor of this name.
func (f *file) tensor(x *cgotorch.Exec, name string) (*cgotorch.Tensor, error) {
	t, ok := f.Lookup(name)
	if !ok {
		return nil, f.fail("there is no tensor %s", name)
	}
	dtype, ok := DType(t.DType)
	if !ok {
		return nil, f.unsupported(t)
	}
	data, err := f.Read(name)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return cgotorch.FromBytes(x, data, dtype, t.Shape), nil
}

// checksums maps the name of each tensor to its checksum. Under metadataKey it has the checksum
// of the metadata.
type checksums map[string]string

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(data []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(data, castagnoli)) }

// openWhole opens a file and compares its tensors with their checksums. If the file is not a
// checkpoint and has no checksums, openWhole compares nothing.
func openWhole(path string) (*file, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := f.verify(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checksums reads the checksums of the tensors, and compares the metadata with theirs. It returns
// nil for a file without checksums that is not a checkpoint.
func (f *file) checksums() (checksums, error) {
	if _, ok := f.Lookup(checksumName); !ok {
		if f.info.Version != 0 {
			return nil, f.fail("the tensor %s is missing: %w", checksumName, ErrDamaged)
		}
		return nil, nil
	}
	text, err := f.Read(checksumName)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var want checksums
	if err := json.Unmarshal(text, &want); err != nil {
		return nil, f.fail("tensor %s: %w: %w", checksumName, err, ErrDamaged)
	}
	if got := checksum([]byte(f.Metadata()[metadataKey])); got != want[metadataKey] {
		return nil, f.fail("metadata %s has the CRC-32C %s, and %q when it was saved: %w", metadataKey, got, want[metadataKey], ErrDamaged)
	}
	return want, nil
}

func (f *file) verify() error {
	want, err := f.checksums()
	if want == nil || err != nil {
		return err
	}
	for _, t := range f.Tensors() {
		if t.Name == checksumName {
			continue
		}
		data, err := f.Read(t.Name)
		if err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
		if got := checksum(data); got != want[t.Name] {
			return f.fail("tensor %s has the CRC-32C %s, and %q when it was saved: %w", t.Name, got, want[t.Name], ErrDamaged)
		}
	}
	return nil
}
