package text_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A conversation on a lost device ends with an error that says what to do. The test loses the
// device in a process of its own, because a lost device cannot be used again in its process.
func TestConversation_LostDevice(t *testing.T) {
	d := torchtest.CUDA(t)
	const inside = "STREAMTORCH_TEST_LOSE_DEVICE"
	if os.Getenv(inside) == "" {
		command := exec.Command(os.Args[0], "-test.run=^TestConversation_LostDevice$", "-test.v")
		command.Env = append(os.Environ(), inside+"=1")
		out, err := command.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestConversation_LostDevice ") {
			t.Errorf("the process that lost its device: %v\n%s", err, out)
		}
		return
	}
	m := openRandom(t, configs["llama"], text.Options{Context: 64})
	c := m.NewConversation()
	defer c.Close()
	var last error
	tokens := 0
	for _, err := range c.Generate(t.Context(), []int64{1, 2, 3}, text.GenerateOptions{IgnoreEnd: true}) {
		if last = err; err == nil {
			tokens++
		}
		if tokens == 5 {
			_ = cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
				x.IndexSelect(x.Ones(cgotorch.Float32, 4), 0, cgotorch.FromSlice(x, []int64{1 << 20}))
				return d.Synchronize()
			})
		}
	}
	if !errors.Is(last, cgotorch.ErrDeviceLost) || !strings.Contains(last.Error(), "CUDA_LAUNCH_BLOCKING=1") || tokens > 7 {
		t.Errorf("%d tokens, then %v", tokens, last)
	}
	if err := errorOf(t.Context(), c, []int64{1}, text.GenerateOptions{}); !errors.Is(err, cgotorch.ErrDeviceLost) {
		t.Errorf("another answer: got %v", err)
	}
}
