package text_test

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A step fails when the table already tells of an expert that no kernel has brought. The next step
// brings it.
func TestSwitch_Slots_FailedStep(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckLeaks(t)
		s := torchtest.NewStream(t, d)
		config := tiny()
		config.DFF = 16
		var models [2]*text.Switch
		var caches [2]*text.Cache
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			for i, slots := range []int{0, 1} {
				m := randomSwitch(t, x, config, text.SwitchOptions{DType: cgotorch.BFloat16, Slots: slots})
				models[i], caches[i] = m, m.NewCache(x, text.CacheOptions{})
				ids := cgotorch.FromSlice(x, []int64{3, 1, 4, 1}, 1, 4)
				m.Decoder.Start(x, caches[i], m.Encode(x, ids, nil), nil)
			}
		})
		defer models[0].Close()
		defer models[1].Close()
		defer caches[0].Close()
		defer caches[1].Close()
		err := s.Do(func(x *cgotorch.Exec) error { models[1].FailStep(x, caches[1]); return nil })
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "shares")
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			want, got := models[0].Step(x, caches[0]), models[1].Step(x, caches[1])
			if !x.AllClose(got, want, cgotorch.ToleranceOptions{Relative: cgotorch.Set(0.02), Absolute: cgotorch.Set(0.02)}) {
				t.Errorf("got %v, want %v", cgotorch.ToSlice[float32](x, x.To(got, cgotorch.Float32)), cgotorch.ToSlice[float32](x, x.To(want, cgotorch.Float32)))
			}
		})
	})
}
