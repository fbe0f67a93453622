//go:build cgo && linux

package streams

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/tests/streams/ambient"
)

// Experts lie in host memory, and the device chooses them. The work on a token does not wait for
// the device. LibTorch's sync-debug mode and x.NoWaits check this. Sync-debug mode is a switch of
// the whole process.
func TestSyncDebug_Experts(t *testing.T) {
	torchtest.CUDA(t)
	s := cgotorch.DefaultStream(cgotorch.CUDA(0))
	path := saveSwitch(t, s)
	var m *text.Switch
	var c *text.Cache
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		m, c = decoding(t, x, path, text.SwitchOptions{DType: cgotorch.BFloat16, Slots: 2})
		for range 3 { // the first steps allocate memory
			c.Next(x, m.Step(x, c))
		}
	})
	restore := must.Get(ambient.SyncDebug(2))(t)
	defer restore()
	for i := range steps - 3 {
		err := s.Do(func(x *cgotorch.Exec) error {
			x = x.NoWaits()
			c.Next(x, m.Step(x, c))
			return nil
		})
		if err != nil {
			t.Fatalf("token %d: %v", i, err)
		}
	}
}
