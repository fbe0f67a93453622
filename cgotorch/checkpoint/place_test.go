package checkpoint

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Resume refuses a file whose Epoch and Loader's place are of different epochs, unless the program
// leaves the Loader out.
func TestResume_EpochOfAnotherPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	for _, c := range []struct{ run, want string }{
		{`"epoch":4,"loader":{"seed":0,"epoch":3,"batch":9,"position":90}`, "its Epoch is 4, and the Loader's place is in epoch 3, after 9 batches: in the loop over batches save with Epoch 3"},
		{`"epoch":0,"loader":{"seed":0,"epoch":1,"batch":0,"position":0}`, "after the loop over its batches epoch 0 is over, so save with Epoch 1"},
		{`"epoch":4,"loader":{"seed":0,"epoch":1,"batch":2,"position":20}`, "count epochs from 0 as the Loader does"},
		{`"epoch":3,"loader":{"seed":0,"epoch":3,"batch":9,"position":90}`, ""},
		{`"epoch":0,"loader":{"seed":0,"epoch":3,"batch":9,"position":90}`, ""}, // counts no epochs
		{`"epoch":4,"loader":{"epoch":9}`, ""}, // the program's own
	} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			w := safetensors.Tensor{Name: "w", DType: "F32", Shape: []int64{1}, Data: make([]byte, 4)}
			metadata := `{"version":1,` + c.run + `}`
			tensors := withChecksums([]safetensors.Tensor{w}, []byte(metadata))
			cgotorch.Check(safetensors.WriteFile(path, tensors, map[string]string{metadataKey: metadata}))
			model := &struct{ W *cgotorch.Tensor }{x.Zeros(cgotorch.Float32, 1)}
			cgotorch.Check(Resume(x, path, &Checkpoint{Model: model}))
			var place json.RawMessage
			again := Checkpoint{Model: model, Loader: &place}
			err := Resume(x, path, &again)
			if c.want == "" {
				cgotorch.Check(err)
				return Save(x, path, again)
			}
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, c.want, "leave the Loader out of the Checkpoint")
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%v does not name the file", err)
			}
			return nil
		})
	}
}
