package weights

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/leaktest"
)

func devices() []cgotorch.Device {
	all := []cgotorch.Device{cgotorch.CPU}
	if n, _ := cgotorch.CUDACount(); n > 0 {
		all = append(all, cgotorch.CUDA(0))
	}
	return all
}

func onEachDevice(t *testing.T, test func(t *testing.T, d cgotorch.Device)) {
	for _, d := range devices() {
		t.Run(d.String(), func(t *testing.T) {
			checkLeaks(t)
			test(t, d)
		})
	}
}

// checkLeaks fails the test if it leaves goroutines or handles behind. Default streams are closed.
func checkLeaks(t *testing.T) {
	t.Helper()
	leaktest.Check(t, cgotorch.LiveHandles, func() {
		for _, d := range devices() {
			cgotorch.DefaultStream(d).Close()
		}
	})
}

// checkStreams fails the test for each race that the stream checker finds until it ends. To be called before what is to be closed
// is made.
func checkStreams(t *testing.T) {
	t.Helper()
	stop, err := cgotorch.CheckStreams(func(r *cgotorch.StreamRace) { t.Error(r) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
}

// newStream is a stream that is closed, when its work is done, at the end of the test.
func newStream(t *testing.T, d cgotorch.Device) *cgotorch.Stream {
	t.Helper()
	s, err := cgotorch.NewStream(d, cgotorch.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
