package optim_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A layer that a closure hides is told once. Nothing is told of layers that an optimizer has, that
// are frozen, or that run without gradients.
func TestStep_TellsOfStrays(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(hidden *nn.Linear) ([]*cgotorch.Tensor, error) // returns what a second optimizer gets
		noGrad  bool
		want    int
	}{
		"hidden": {want: 1},
		"frozen": {prepare: func(h *nn.Linear) ([]*cgotorch.Tensor, error) {
			return nil, errors.Join(h.Weight.SetRequiresGrad(false), h.Bias.SetRequiresGrad(false))
		}},
		"of another optimizer": {prepare: func(h *nn.Linear) ([]*cgotorch.Tensor, error) { return nn.Parameters(h), nil }},
		"without gradients":    {noGrad: true},
	} {
		t.Run(name, func(t *testing.T) {
			var text bytes.Buffer
			before := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
			defer slog.SetDefault(before)
			torchtest.CheckLeaks(t)
			stream := torchtest.NewStream(t, cgotorch.CPU)
			var hidden *nn.Linear
			var model *nn.Sequential
			var opts []*optim.Optimizer
			torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
				hidden = nn.NewLinear(x, 3, 3, nn.LinearOptions{})
				model = nn.NewSequential(nn.NewLinear(x, 3, 3, nn.LinearOptions{}), nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
					y := x
					if c.noGrad {
						y = x.NoGrad()
					}
					return x.Add(in, hidden.Forward(y, in))
				}))
				groups := [][]*cgotorch.Tensor{nn.Parameters(model)}
				if c.prepare != nil {
					second := cgotorch.Must(c.prepare(hidden))
					if second != nil {
						groups = append(groups, second)
					}
				}
				for _, g := range groups {
					o := cgotorch.Must(optim.NewSGD(optim.SGDOptions{}, optim.Group{Params: g}))
					opts = append(opts, o)
				}
			})
			defer nn.Close(hidden)
			defer nn.Close(model)
			for range 4 {
				torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
					x.Backward(x.Sum(model.Forward(x, x.Ones(cgotorch.Float32, 2, 3))))
					for _, o := range opts {
						o.Step(x)
					}
				})
			}
			for _, o := range opts {
				o.Close()
			}
			if got := strings.Count(text.String(), "no optimizer has"); got != c.want {
				t.Errorf("told %d times, want %d: %s", got, c.want, text.String())
			}
			if c.want > 0 && !(strings.Contains(text.String(), "float32[3 3]") && strings.Contains(text.String(), "stray_test.go:") && strings.Contains(text.String(), "and 1 more")) {
				t.Errorf("the text is %s", text.String())
			}
		})
	}
}
