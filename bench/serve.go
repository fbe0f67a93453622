package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// benchServe measures how many requests of one image a Batcher answers to many callers, beside a
// Batcher that answers one by one.
func benchServe(c *config, emit func(row)) error {
	models := []struct {
		name    string
		size    int
		classes int
		clients []int
	}{{"resnet20", 32, 10, []int{1, 64}}, {"resnet18", 224, 1000, []int{32}}}
	if c.device.IsCUDA() {
		models[1].name, models[1].clients = "resnet50", []int{1, 8, 64, 512}
	}
	for _, m := range models {
		if c.brief {
			m.clients = m.clients[:1]
		}
		if err := serveRows(c, m.name, m.size, m.classes, m.clients, emit); err != nil {
			return err
		}
	}
	return nil
}

func serveRows(c *config, name string, size, classes int, clients []int, emit func(row)) error {
	var model nn.Module
	err := cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		trained, err := newModel(x, name, vision.Options{Classes: classes})
		if err != nil {
			return err
		}
		defer nn.Close(trained)
		nn.SetTraining(trained, false)
		nn.To(x, trained, nn.ToOptions{ChannelsLast: true})
		model = nn.Fuse(x, trained, nn.FuseOptions{})
		return nil
	})
	if err != nil {
		return err
	}
	defer nn.Close(model)
	sizes := [][]int{{1, 2, 4, 8, 16, 32}, {1}}
	if c.device.IsCUDA() {
		sizes[0] = append(sizes[0], 64, 128, 256)
	}
	if c.brief {
		sizes[0] = sizes[0][:2]
	}
	batchers := make([]*serve.Batcher, len(sizes))
	defer func() {
		for _, b := range batchers {
			b.Close()
		}
	}()
	for i := range sizes {
		o := serve.Options{Inputs: []serve.Spec{{Name: "pixels", DType: cgotorch.Uint8, Shape: []int64{int64(size), int64(size), 3}}}, BatchSizes: sizes[i], Queue: 4096, Log: c.tell}
		if c.device.IsCUDA() {
			o.Autocast = cgotorch.BFloat16
		}
		if batchers[i], err = serve.New(c.device, func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			return []*cgotorch.Tensor{model.Forward(x, vision.Normalize(x, in[0], vision.ImageNetMean, vision.ImageNetStd))}
		}, o); err != nil {
			return err
		}
	}
	for _, n := range clients {
		var latency [2]sample
		sides := make([]side, 2)
		for i, b := range batchers {
			sides[i] = func() (float64, error) {
				before := b.Stats()
				rate, err := callers(b, n, size, time.Duration(c.or(1, 30))*100*time.Millisecond)
				after := b.Stats()
				latency[i] = append(latency[i], (after.Took-before.Took).Seconds()*1e3/float64(max(after.Requests-before.Requests, 1)))
				return rate, err
			}
		}
		values, err := interleave(c.roundsOr(5), sides...)
		if err != nil {
			return err
		}
		emit(inTurns(fmt.Sprintf("serve/%s/%d", name, n), values[0], "images/s", "one by one", values[1], higher,
			fmt.Sprintf("%d callers in a closed loop, one image of %d x %d each, uint8; mean latency %.2f ms, one by one %.2f ms; %s", n, size, size, latency[0].median(), latency[1].median(), c.settings())))
	}
	return nil
}

// callers lets n goroutines call the Batcher again and again. It returns requests a second.
func callers(b *serve.Batcher, n, size int, long time.Duration) (float64, error) {
	var done atomic.Int64
	var first atomic.Pointer[error]
	var all sync.WaitGroup
	began := time.Now()
	for range n {
		all.Add(1)
		go func() {
			defer all.Done()
			pixels := serve.Of(make([]uint8, size*size*3), 1, int64(size), int64(size), 3)
			for time.Since(began) < long {
				if _, err := b.Predict(context.Background(), pixels); err != nil {
					first.CompareAndSwap(nil, &err)
					return
				}
				done.Add(1)
			}
		}()
	}
	all.Wait()
	if err := first.Load(); err != nil {
		return 0, *err
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}
