package imageloader

import (
	"os"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// CUDA opens files of its own when it is first used, and keeps them: before the tests begin to count.
func TestMain(m *testing.M) {
	if slab, err := cgotorch.NewHostSlab(1); err == nil {
		_ = slab.Pin() // fails where there is no CUDA
		slab.Close()
	}
	os.Exit(m.Run())
}
