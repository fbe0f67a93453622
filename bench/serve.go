package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
)

// service is a model that answers with the scores of images.
type service struct {
	c             *config
	name          string
	size, classes int
	model         nn.Module
	table         *cgotorch.Tensor // normalises pixels
}

// newService makes the model of the rows about requests: ResNet-50, or ResNet-20 on a CPU.
func (c *config) newService() (*service, error) {
	s := &service{c: c, name: "resnet20", size: 32, classes: 10}
	if c.device.IsCUDA() {
		s.name, s.size, s.classes = "resnet50", 224, 1000
	}
	err := cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		trained, err := vision.New(x, s.name, vision.Options{Classes: s.classes})
		if err != nil {
			return err
		}
		defer nn.Close(trained)
		nn.SetTraining(trained, false)
		nn.To(x, trained, nn.ToOptions{ChannelsLast: true})
		s.model = nn.Fuse(x, trained, nn.FuseOptions{})
		nn.To(x, s.model, nn.ToOptions{DType: c.dtype()})
		s.table = x.Keep(images.NormalizationTable(x, vision.ImageNetMean[:], vision.ImageNetStd[:], c.dtype()))
		return nil
	})
	return s, err
}

func (s *service) close() {
	nn.Close(s.model)
	s.table.Close()
}

func (s *service) shape() []int64 { return []int64{int64(s.size), int64(s.size), 3} }

// image returns one image.
func (s *service) image() serve.Array {
	return serve.Of(make([]uint8, s.size*s.size*3), append([]int64{1}, s.shape()...)...)
}

func (s *service) forward(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	pixels := x.Permute(x.Empty(s.table.DType(), in[0].Shape()...), 0, 3, 1, 2)
	images.Normalize(x, in[0], nil, s.table, pixels)
	return []*cgotorch.Tensor{x.To(s.model.Forward(x, pixels), cgotorch.Float32)}
}

// batchSizes are those that a server would have.
func (c *config) batchSizes() []int {
	switch {
	case c.brief:
		return []int{1, 2}
	case c.device.IsCUDA():
		return []int{1, 2, 4, 8, 16, 32, 64, 128, 256}
	}
	return []int{1, 2, 4, 8, 16, 32}
}

// clients returns the numbers of clients that a server is measured with.
func (c *config) clients() []int {
	switch {
	case c.brief:
		return []int{2}
	case c.device.IsCUDA():
		return []int{1, 8, 64, 512}
	}
	return []int{1, 64}
}

// block is how long a block of requests lasts.
func (c *config) block() time.Duration {
	switch {
	case c.brief:
		return 100 * time.Millisecond
	case c.device.IsCUDA():
		return 500 * time.Millisecond // it answers a hundred times as many requests
	}
	return 3 * time.Second
}

// batcher returns a Batcher of the model.
func (s *service) batcher(sizes []int) (*serve.Batcher, error) {
	in := serve.Spec{Name: "image", DType: cgotorch.Uint8, Shape: s.shape()}
	return serve.New(s.c.device, s.forward, serve.Options{Inputs: []serve.Spec{in}, Outputs: []string{"scores"}, BatchSizes: sizes, Queue: 4096, Log: s.c.tell})
}

// benchServe measures how many requests of one image a Batcher answers to many callers. The peer
// is a Batcher that answers one by one.
func benchServe(c *config, emit func(row)) error {
	s, err := c.newService()
	if err != nil {
		return err
	}
	defer s.close()
	many, err := s.batcher(c.batchSizes())
	if err != nil {
		return err
	}
	defer many.Close()
	single, err := s.batcher([]int{1})
	if err != nil {
		return err
	}
	defer single.Close()
	for _, n := range c.clients() {
		var latency [2]sample
		var sides []side
		for i, b := range []*serve.Batcher{many, single} {
			sides = append(sides, func() (float64, error) {
				rate, took, err := s.callers(b, n)
				latency[i] = append(latency[i], took...)
				return rate, err
			})
		}
		values, err := interleave(c.roundsOr(5), sides...)
		if err != nil {
			return err
		}
		emit(inTurns(fmt.Sprintf("serve/%s/%d", s.name, n), values[0], "images/s", "one by one", values[1], higher,
			fmt.Sprintf("%d callers in a closed loop, one image of %d x %d each, uint8; latency: median %.2f ms, 99 %% %.2f ms, one by one median %.2f ms; %v; %s",
				n, s.size, s.size, latency[0].median(), latency[0].quantile(0.99), latency[1].median(), values[0], c.settings())))
	}
	return nil
}

// callers lets n goroutines call the Batcher in a closed loop.
func (s *service) callers(b *serve.Batcher, n int) (rate float64, took sample, err error) {
	return closedLoop(n, s.c.block(), func() (request func() error, end func()) {
		in := s.image()
		return func() error {
			_, err := b.Predict(context.Background(), in)
			return err
		}, func() {}
	})
}

// closedLoop lets n goroutines make requests again and again. Each has a function of its own from
// `requester`, and another one that it calls at the end. It returns requests a second, and the
// milliseconds of each request.
func closedLoop(n int, long time.Duration, requester func() (request func() error, end func())) (rate float64, took sample, err error) {
	var first atomic.Pointer[error]
	var all sync.WaitGroup
	each := make([]sample, n)
	began := time.Now()
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			request, end := requester()
			defer end()
			for time.Since(began) < long {
				at := time.Now()
				if err := request(); err != nil {
					first.CompareAndSwap(nil, &err)
					return
				}
				each[i] = append(each[i], time.Since(at).Seconds()*1e3)
			}
		}()
	}
	all.Wait()
	seconds := time.Since(began).Seconds()
	if err := first.Load(); err != nil {
		return 0, nil, *err
	}
	took = slices.Concat(each...)
	return float64(len(took)) / seconds, took, nil
}
