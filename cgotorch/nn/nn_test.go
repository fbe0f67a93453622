package nn_test

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

func values(x *cgotorch.Exec, t *cgotorch.Tensor) []float32 { return cgotorch.ToSlice[float32](x, t) }
