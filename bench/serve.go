package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// service is a model that answers with the scores of images.
type service struct {
	c             *config
	name          string
	size, classes int
	model         nn.Module
	table         *cgotorch.Tensor // normalises pixels
}

func (c *config) newService(name string, size, classes int) (*service, error) {
	s := &service{c: c, name: name, size: size, classes: classes}
	err := cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		trained, err := newModel(x, name, vision.Options{Classes: classes})
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

// service returns the model that rows about requests serve.
func (c *config) service() (*service, error) {
	if c.device.IsCUDA() {
		return c.newService("resnet50", 224, 1000)
	}
	return c.newService("resnet20", 32, 10)
}

func (s *service) close() {
	nn.Close(s.model)
	s.table.Close()
}

func (s *service) shape() []int64 { return []int64{int64(s.size), int64(s.size), 3} }

// pixels returns n images.
func (s *service) pixels(n int) serve.Array {
	return serve.Of(make([]uint8, n*s.size*s.size*3), append([]int64{int64(n)}, s.shape()...)...)
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

// batcher returns a Batcher of the model, for pixels, or for files of images if there is a pool.
func (s *service) batcher(sizes []int, pool *decode.Pool) (*serve.Batcher, error) {
	in := serve.Spec{Name: "image", DType: cgotorch.Uint8, Shape: s.shape()}
	if pool != nil {
		in = serve.Spec{Name: "image", Decoder: pool}
	}
	return serve.New(s.c.device, s.forward, serve.Options{Inputs: []serve.Spec{in}, Outputs: []string{"scores"}, BatchSizes: sizes, Queue: 4096, Log: s.c.tell})
}

// benchServe measures how many requests of one image a Batcher answers to many callers. The peers
// are a Batcher that answers one by one, and batches that are computed back to back.
func benchServe(c *config, emit func(row)) error {
	models := []struct {
		name          string
		size, classes int
		clients       []int
	}{{"resnet20", 32, 10, []int{1, 64}}, {"resnet18", 224, 1000, []int{32}}}
	if c.device.IsCUDA() {
		models[1].name, models[1].clients = "resnet50", []int{1, 8, 64, 512}
		slices.Reverse(models)
	}
	for _, m := range models {
		if c.brief {
			m.clients = m.clients[:1]
		}
		s, err := c.newService(m.name, m.size, m.classes)
		if err != nil {
			return err
		}
		err = s.rows(m.clients, emit)
		s.close()
		if err != nil {
			return err
		}
	}
	return nil
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

// rows emits two rows for each number of callers, and one of what a single caller pays.
func (s *service) rows(clients []int, emit func(row)) error {
	c := s.c
	var batchers []*serve.Batcher
	defer func() {
		for _, b := range batchers {
			b.Close()
		}
	}()
	for _, sizes := range [][]int{c.batchSizes(), {1}} {
		b, err := s.batcher(sizes, nil)
		if err != nil {
			return err
		}
		batchers = append(batchers, b)
	}
	if err := s.single(batchers[0], emit); err != nil {
		return err
	}
	rates := offlineRates{}
	for _, n := range clients {
		var latency [2]sample
		var sides []side
		for i, b := range batchers {
			sides = append(sides, func() (float64, error) {
				rate, took, err := callers(b, n, c.block(), func() serve.Array { return s.pixels(1) })
				latency[i] = append(latency[i], took...)
				return rate, err
			})
		}
		batch, err := rates.best(s, max(n/2, 1)) // the other half waits while a batch is computed
		if err != nil {
			return err
		}
		offline, err := s.newOffline(batch)
		if err != nil {
			return err
		}
		before := batchers[0].Stats()
		values, err := interleave(c.roundsOr(5), append(sides, func() (float64, error) { return offline.run(c.block()) })...)
		offline.close()
		if err != nil {
			return err
		}
		note := fmt.Sprintf("%d callers in a closed loop, one image of %d x %d each, uint8; latency: median %.2f ms, 99 %% %.2f ms; %s; %s; %s", n, s.size, s.size,
			latency[0].median(), latency[0].quantile(0.99), batchesBetween(before, batchers[0].Stats()), values[0], c.settings())
		emit(inTurns(fmt.Sprintf("serve/%s/%d", s.name, n), values[0], "images/s", "one by one", values[1], higher,
			fmt.Sprintf("%s; one by one: median %.2f ms", note, latency[1].median())))
		emit(inTurns(fmt.Sprintf("serve/%s/%d/offline", s.name, n), values[0], "images/s", fmt.Sprintf("batches of %d back to back", batch), values[2], higher,
			fmt.Sprintf("%s; back to back, by batch: %v", note, rates)))
	}
	return nil
}

// single emits the row of what one caller waits for an answer. The peer is the captured function,
// whose input is on the device already and whose result stays there.
func (s *service) single(b *serve.Batcher, emit func(row)) error {
	o, err := s.newOffline(1)
	if err != nil {
		return err
	}
	defer o.close()
	input := s.pixels(1)
	var sides []side
	for _, call := range []func() error{
		func() error { _, err := b.Predict(context.Background(), input); return err },
		o.resident,
		o.copied,
	} {
		sides = append(sides, func() (float64, error) {
			_, took, err := closedLoop(1, s.c.block(), func() func() error { return call })
			return took.median() * 1e3, err
		})
	}
	values, err := interleave(s.c.roundsOr(5), sides...)
	if err != nil {
		return err
	}
	emit(inTurns(fmt.Sprintf("serve/%s/single", s.name), values[0], "us", "the captured function", values[1], lower,
		fmt.Sprintf("one caller, one image of %d x %d, uint8, medians; with its copy from page-locked memory and of its result, the captured function takes %.0f us; %s; %s",
			s.size, s.size, values[2].median(), values[0], s.c.settings())))
	return nil
}

// batchesBetween tells of the batches that were computed: their mean size, and the most frequent
// sizes.
func batchesBetween(before, after serve.Stats) string {
	batches, sizes := int64(0), []int{}
	for n, count := range after.Batches {
		after.Batches[n] = count - before.Batches[n]
		batches += after.Batches[n]
		sizes = append(sizes, n)
	}
	slices.SortFunc(sizes, func(a, b int) int { return int(after.Batches[b] - after.Batches[a]) })
	text := fmt.Sprintf("mean batch %.1f, most often", float64(after.Entries-before.Entries)/float64(max(batches, 1)))
	for _, n := range sizes[:min(len(sizes), 4)] {
		text += fmt.Sprintf(" %d (%.0f %%)", n, 100*float64(after.Batches[n])/float64(max(batches, 1)))
	}
	return text
}

// offlineRates are images a second of batches back to back, by batch size.
type offlineRates map[int]float64

// best returns the batch size up to `most` with the highest rate.
func (r offlineRates) best(s *service, most int) (size int, err error) {
	for _, n := range s.c.batchSizes() {
		if n > most {
			break
		}
		if r[n] == 0 {
			o, err := s.newOffline(n)
			if err != nil {
				return 0, err
			}
			if _, err = o.run(s.c.block() / 10); err == nil { // this also captures
				r[n], err = o.run(s.c.block() / 2)
			}
			o.close()
			if err != nil {
				return 0, err
			}
		}
		if r[n] > r[size] {
			size = n
		}
	}
	return size, nil
}

func (r offlineRates) String() string {
	var parts []string
	for _, n := range slices.Sorted(maps.Keys(r)) {
		parts = append(parts, fmt.Sprintf("%d %.0f", n, r[n]))
	}
	return strings.Join(parts, ", ")
}

// withService calls `use` with the model that rows about requests serve, and with a Batcher of it.
func (c *config) withService(use func(s *service, b *serve.Batcher) error) error {
	s, err := c.service()
	if err != nil {
		return err
	}
	defer s.close()
	b, err := s.batcher(c.batchSizes(), nil)
	if err != nil {
		return err
	}
	defer b.Close()
	return use(s, b)
}

// callers lets n goroutines call the Batcher in a closed loop.
func callers(b *serve.Batcher, n int, long time.Duration, input func() serve.Array) (rate float64, took sample, err error) {
	return closedLoop(n, long, func() func() error {
		in := input()
		return func() error {
			_, err := b.Predict(context.Background(), in)
			return err
		}
	})
}

// closedLoop lets n goroutines make requests again and again, each with a function of its own. It
// returns requests a second, and the milliseconds of each request.
func closedLoop(n int, long time.Duration, requester func() func() error) (rate float64, took sample, err error) {
	var first atomic.Pointer[error]
	var all sync.WaitGroup
	each := make([]sample, n)
	began := time.Now()
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			request := requester()
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
	for _, e := range each {
		took = append(took, e...)
	}
	return float64(len(took)) / seconds, took, nil
}

// offline computes batches back to back: while one is computed, the next one is copied from
// page-locked memory on a stream of its own. No server can answer more images of this batch size.
type offline struct {
	s        *service
	batch    int
	captured *cgotorch.Captured
	streams  [2]*cgotorch.Stream // computes, copies
	slabs    [2]*cgotorch.HostSlab
	inputs   [2]*cgotorch.Tensor
	reads    [2]*cgotorch.HostRead // the results of the last batch of each input
}

func (s *service) newOffline(batch int) (*offline, error) {
	o := &offline{s: s, batch: batch, captured: cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return s.forward(x.NoGrad(), in...)
	}, cgotorch.CapturedOptions{WarmUp: 1, InPlace: true, Log: s.c.tell})}
	if err := o.open(); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *offline) open() (err error) {
	for i := range o.streams {
		if o.streams[i], err = cgotorch.NewStream(o.s.c.device, cgotorch.StreamOptions{}); err != nil {
			return err
		}
	}
	for i := range o.slabs {
		if o.slabs[i], err = cgotorch.NewHostSlab(o.batch * o.s.size * o.s.size * 3); err != nil {
			return err
		}
		if o.s.c.device.IsCUDA() {
			if err := o.slabs[i].Pin(); err != nil {
				return err
			}
		}
		err := o.streams[0].Do(func(x *cgotorch.Exec) error {
			o.inputs[i] = x.Keep(x.Zeros(cgotorch.Uint8, append([]int64{int64(o.batch)}, o.s.shape()...)...))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return o.streams[0].Synchronize()
}

// one enqueues a batch from one of the two slabs.
func (o *offline) one(i int) error {
	began, done, err := o.streams[1].CopyFrom(nil, cgotorch.HostCopy{To: o.inputs[i], From: o.slabs[i].Bytes()})
	if err != nil {
		return err
	}
	defer began.Close()
	defer done.Close()
	return o.streams[0].Do(func(x *cgotorch.Exec) error {
		x.Wait(done)
		o.reads[i] = x.ReadAsync(o.captured.Run(x, o.inputs[i])[0])
		return nil
	})
}

// await waits for the results of the last batch from a slab.
func (o *offline) await(i int) error {
	if o.reads[i] == nil {
		return nil
	}
	<-o.reads[i].Done()
	_, err := o.reads[i].Bytes()
	o.reads[i].Close()
	o.reads[i] = nil
	return err
}

// run returns images a second.
func (o *offline) run(long time.Duration) (float64, error) {
	count := 0
	began := time.Now()
	for time.Since(began) < long || count < 2 {
		i := count % 2
		if err := o.await(i); err != nil {
			return 0, err
		}
		if err := o.one(i); err != nil {
			return 0, err
		}
		count++
	}
	for i := range o.reads {
		if err := o.await(i); err != nil {
			return 0, err
		}
	}
	return float64(count*o.batch) / time.Since(began).Seconds(), nil
}

// copied computes one batch from page-locked memory, and waits for its results on the host.
func (o *offline) copied() error {
	if err := o.one(0); err != nil {
		return err
	}
	return o.await(0)
}

// resident computes one batch that is on the device, and waits for the device.
func (o *offline) resident() error {
	err := o.streams[0].Do(func(x *cgotorch.Exec) error {
		o.captured.Run(x, o.inputs[0])
		return nil
	})
	if err != nil {
		return err
	}
	return o.streams[0].Synchronize()
}

// alone returns the milliseconds of batches for each of which the host waits.
func (o *offline) alone(times int) (took sample, err error) {
	for range times {
		began := time.Now()
		if err := o.copied(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began).Seconds()*1e3)
	}
	return took, nil
}

func (o *offline) close() {
	o.captured.Close()
	for _, r := range o.reads {
		r.Close()
	}
	for i := range o.inputs {
		o.inputs[i].Close()
		o.slabs[i].Close()
		o.streams[i].Close()
	}
}
