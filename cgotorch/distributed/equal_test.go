package distributed

import (
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A step that was not reduced is found, and values that are not finite are no difference.
func TestCheckEqual(t *testing.T) {
	torchtest.CheckLeaks(t)
	errs := together(t, 2, Options{}, func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error {
			m := nn.NewLinear(x, 2, 2, nn.LinearOptions{})
			defer nn.Close(m)
			Broadcast(x, g, m)
			x.NoGrad().CopyInPlace(x.Select(m.Bias, 0, 0), x.Full(cgotorch.Float32, math.NaN()))
			CheckEqual(x, g, m)
			if g.Rank() == 1 {
				x.NoGrad().CopyInPlace(m.Bias, x.Ones(cgotorch.Float32, 2))
			}
			CheckEqual(x, g, m)
			return nil
		})
	})
	wantErrors(t, errs, cgotorch.ErrInvalidArgument, "has other values than rank 0 in bias", "rank 1 (")
}
