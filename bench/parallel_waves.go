package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// benchWaves compares branches side by side with one after another over a range of batches, each with the blocks of its kernels: how much of the
// device one of them fills. And it draws up the kernels of one block of GoogLeNet, as they ran.
func benchWaves(c *config, emit func(row)) error {
	var s switches
	if err := s.set(); err != nil {
		return err
	}
	batches := []int{1, 2, 4, 8, 16, 32, 64, 128}
	if c.brief {
		batches = batches[:1]
	}
	for _, branches := range []int{2, 4} {
		for _, batch := range batches {
			channels, size := c.or(8, 128), c.or(6, 14)
			for _, of := range []section{
				convSection(c, branches, channels, size, batch),
				gemmSection(c, branches, c.or(8, 128)*batch, c.or(8, 1024), c.or(8, 1024)),
			} {
				of.name = "waves/" + of.name
				if err := sectionRows(c, s, of, emit); err != nil {
					return fmt.Errorf("%s: %w", of.name, err)
				}
			}
		}
	}
	if !c.device.IsCUDA() {
		return nil
	}
	for _, schedule := range []nn.Schedule{nn.InTurn, nn.SideBySide} {
		if err := blockRows(c, schedule, emit); err != nil {
			return err
		}
	}
	return nil
}

// blockRows are the kernels of GoogLeNet's block 4b, fused, with one image, each with its stream and its time within the block.
func blockRows(c *config, schedule nn.Schedule, emit func(row)) error {
	m, err := newServed(c, "googlenet", 1)
	if err != nil {
		return err
	}
	defer m.close()
	fused, err := m.fuse(nn.FuseOptions{})
	if err != nil {
		return err
	}
	defer nn.Close(fused)
	nn.SetSchedule(fused, schedule)
	w, err := newCapturedWork(c, inference(fused), cgotorch.CapturedOptions{InPlace: true}, 10, m.input)
	defer w.close()
	if err != nil {
		return err
	}
	kernels, err := w.traced()
	if err != nil {
		return err
	}
	isCat := func(k cgotorch.TraceRecord) bool { return strings.Contains(k.Name, "CatArray") }
	for block := range 4 { // each ends with one: 3a, 3b, 4a and 4b
		end := slices.IndexFunc(kernels, isCat) + 1
		if end == 0 {
			return errors.New("GoogLeNet's blocks end with no kernel of that name any more")
		}
		if block == 3 {
			kernels = kernels[:end]
			break
		}
		kernels = kernels[end:]
	}
	streams := map[uint64]int{}
	for i, k := range kernels {
		if _, ok := streams[k.Stream]; !ok {
			streams[k.Stream] = len(streams)
		}
		us := func(t time.Duration) float64 { return float64(t.Nanoseconds()) / 1e3 }
		way := strings.ReplaceAll(fmt.Sprint(schedule), " ", "-")
		emit(alone(fmt.Sprintf("parallel/block/%s/kernel=%d", way, i), us(k.End-k.Start), "us",
			fmt.Sprintf("stream %d from %.1f us, %d blocks: %s", streams[k.Stream], us(k.Start-kernels[0].Start), k.Blocks, k.Name)))
	}
	return nil
}
