package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// benchOverlapStep compares captured training steps of ResNet-50 with an Overlap and without an
// Overlap. It compares time and memory.
func benchOverlapStep(c *config, emit func(row)) error {
	s := switches{benchmark: c.device.IsCUDA()}
	if err := s.set(); err != nil {
		return err
	}
	batch := c.or(2, 32)
	overlap, err := cgotorch.NewOverlap(cgotorch.OverlapOptions{Log: c.tell})
	if err != nil {
		return err
	}
	var steps []*graphStep
	var sides []side
	for _, o := range []*cgotorch.Overlap{nil, overlap} {
		g, err := newGraphStep(c, trainCase{"resnet50", batch, "bf16"}, stepForm{overlap: o})
		if err != nil {
			return err
		}
		defer g.close()
		steps = append(steps, g)
		sides = append(sides, func() (float64, error) { return g.block(c.or(1, 40)) })
	}
	values, err := interleave(c.roundsOr(5), sides...)
	if err != nil {
		return err
	}
	note := fmt.Sprintf("batch %d, captured, autocast to bfloat16, channels last, fused SGD; %v; %s; %v", batch, overlap.Stats(), c.settings(), s)
	emit(inTurns(fmt.Sprintf("overlap/step/resnet50/batch=%d", batch), values[1], "ms", "on one stream", values[0], lower,
		fmt.Sprintf("two streams %v, one %v; %s", values[1], values[0], note)))
	emit(against(fmt.Sprintf("overlap/step/resnet50/batch=%d/memory", batch), steps[1].peak/(1<<20), "MiB", "on one stream", steps[0].peak/(1<<20), lower,
		fmt.Sprintf("peak of allocated bytes; reserved %.0f MiB, on one stream %.0f; %s", steps[1].reserved/(1<<20), steps[0].reserved/(1<<20), note)))
	return nil
}
