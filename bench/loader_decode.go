package main

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// benchLoaderDecode measures how much faster decoding alone gets with more threads. The files are
// in memory. No loader can gain more from its threads.
func benchLoaderDecode(c *config, emit func(row)) error {
	return c.withPhotographs(imagenet, func(all photographs, _ string) error {
		sides := make([]side, 2)
		for i, workers := range []int{c.threads, 1} {
			pool, err := decode.NewPool(decode.Options{Workers: workers, Transform: decode.RandomResizedCrop{Height: 224, Width: 224}, HorizontalFlip: 0.5})
			if err != nil {
				return err
			}
			defer pool.Close()
			images := make([]decode.Image, c.or(16, 64*workers*4))
			results := make([]decode.Result, len(images))
			to := make([]byte, len(images)*224*224*3)
			key := uint64(0)
			sides[i] = func() (float64, error) {
				for j := range images {
					key++
					images[j] = decode.Image{Data: all[j%len(all)].data, Key: key}
				}
				began := time.Now()
				if err := pool.Decode(images, to, results); err != nil {
					return 0, err
				}
				rate := float64(len(images)) / time.Since(began).Seconds()
				for _, r := range results {
					if r.Err != nil {
						return 0, r.Err
					}
				}
				return rate, nil
			}
		}
		values, err := interleave(c.roundsOr(9), sides...)
		if err != nil {
			return err
		}
		note := fmt.Sprintf("photographs in memory to 224x224x3, random resized crop; %d cores; %d threads %v, one thread %v", runtime.NumCPU(), c.threads, values[0], values[1])
		emit(alone("loader/decode/scaling", values[0].median()/values[1].median(), "times the rate of one thread", note))
		emit(alone("loader/decode/all-cores", values[0].median(), "images/s", note))
		return nil
	})
}

// benchLoaderDevice measures the rate of the threads alone, of the device with one thread beside
// it, and of both. It does so with an idle device, and while a captured step of ResNet-50 runs on
// it. All pools decode the same files with the same keys, and must give the same bytes.
func benchLoaderDevice(c *config, emit func(row)) error {
	if !c.device.IsCUDA() {
		return errors.New("a CPU has no engines that decode JPEG; use -device cuda")
	}
	return c.withPhotographs(imagenet, func(all photographs, _ string) error {
		decoder, err := images.NewJPEGDecoder(c.device, images.JPEGDecoderOptions{})
		if err != nil {
			return err
		}
		defer decoder.Close()
		pools := make([]*decoding, 3)
		for i, o := range []decode.Options{{Workers: c.threads}, {Workers: 1, JPEGDevice: decoder}, {Workers: c.threads, JPEGDevice: decoder}} {
			if pools[i], err = newDecoding(o, all, c.or(16, 256)); err != nil {
				return err
			}
			defer pools[i].pool.Close()
			if i > 0 && !bytes.Equal(pools[i].first, pools[0].first) {
				return errors.New("the device's pixels differ from those of the threads")
			}
		}
		blocks := c.or(2, 60)
		rates := func(sides ...*decoding) ([]sample, error) {
			turns := make([]side, len(sides))
			for i, p := range sides {
				turns[i] = func() (float64, error) { return p.rate(blocks) }
			}
			return interleave(c.roundsOr(5), turns...)
		}
		idle, err := rates(pools...)
		if err != nil {
			return err
		}
		note := func(values []sample) string {
			return fmt.Sprintf("photographs in memory to 224x224x3, random resized crop; pixels equal to the bit; %d cores; threads %v; device and one thread %v; both %v; images on the device: %.0f %% with one thread, %.0f %% with all; %s",
				runtime.NumCPU(), values[0], values[1], values[2], 100*pools[1].share(), 100*pools[2].share(), c.settings())
		}
		for i, name := range []string{"threads", "device", "both"} {
			emit(alone("loader/device/"+name, idle[i].median(), "images/s", note(idle)))
		}
		emit(against("loader/device/sum", idle[2].median(), "images/s", "threads + device", idle[0].median()+idle[1].median(), higher, note(idle)))
		return besideStep(c, pools[2], blocks, emit)
	})
}

// besideStep measures a captured step of ResNet-50 alone, and while the pool decodes.
func besideStep(c *config, pool *decoding, blocks int, emit func(row)) error {
	s := switches{benchmark: true}
	if err := s.set(); err != nil {
		return err
	}
	r := imagenet
	r.batch = 256
	l, err := r.learner(c, 1, 1_000_000)
	if err != nil {
		return err
	}
	defer l.close()
	var in, labels *cgotorch.Tensor
	if err := l.stream.Do(func(x *cgotorch.Exec) error {
		in, labels = randomBatch(x, r.batch, r.size, r.classes)
		return nil
	}); err != nil {
		return err
	}
	defer in.Close()
	defer labels.Close()
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		return []*cgotorch.Tensor{l.step(x, in[0], in[1])}
	}, cgotorch.CapturedOptions{InPlace: true, Log: c.tell})
	defer step.Close()
	// The method returns images per second.
	run := func() (float64, error) {
		seconds, err := c.secondsEach(c.or(2, 40), func() error {
			return l.stream.Do(func(x *cgotorch.Exec) error { step.Run(x, in, labels); return nil })
		})
		return float64(r.batch) / seconds, err
	}
	var decoded sample
	beside := func() (float64, error) {
		var stop atomic.Bool
		done := make(chan error)
		go func() {
			for {
				rate, err := pool.rate(blocks)
				decoded = append(decoded, rate)
				if err != nil || stop.Load() {
					done <- err
					return
				}
			}
		}()
		rate, err := run()
		stop.Store(true)
		return rate, errors.Join(err, <-done)
	}
	values, err := interleave(c.roundsOr(5), run, beside)
	if err != nil {
		return err
	}
	emit(inTurns("loader/device/step", values[1], "images/s", "the step alone", values[0], higher,
		fmt.Sprintf("captured step of ResNet-50, batch %d, while the threads and the device decode %.0f images/s, %v; %s; %v", r.batch, decoded.median(), decoded, c.settings(), s)))
	return nil
}

// decoding decodes batches of photographs in memory, a few at a time.
type decoding struct {
	pool     *decode.Pool
	all      photographs
	sound    []uint64
	batch    int
	first    []byte // the first batch
	onDevice int
	images   int
	mu       sync.Mutex
}

func newDecoding(o decode.Options, all photographs, batch int) (*decoding, error) {
	o.Transform, o.HorizontalFlip = decode.RandomResizedCrop{Height: 224, Width: 224}, 0.5
	pool, err := decode.NewPool(o)
	if err != nil {
		return nil, err
	}
	d := &decoding{pool: pool, all: all, sound: make([]uint64, len(all)), batch: batch, first: make([]byte, batch*224*224*3)}
	for i := range (len(all)-1)/batch + 1 { // afterwards most files are known to be sound
		to := d.first
		if i > 0 {
			to = make([]byte, len(d.first))
		}
		if err := d.decode(i, to); err != nil {
			pool.Close()
			return nil, err
		}
	}
	return d, nil
}

// decode decodes batch number `number` into `to`.
func (d *decoding) decode(number int, to []byte) error {
	files, results := make([]decode.Image, d.batch), make([]decode.Result, d.batch)
	d.mu.Lock()
	for i := range files {
		n := number*d.batch + i
		files[i] = decode.Image{Data: d.all[n%len(d.all)].data, Key: uint64(n), Sound: d.sound[n%len(d.all)]}
	}
	d.mu.Unlock()
	if err := d.pool.Decode(files, to, results); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, r := range results {
		if r.Err != nil {
			return r.Err
		}
		d.images++
		if r.OnDevice {
			d.onDevice++
		}
		if r.Sound != 0 {
			d.sound[(number*d.batch+i)%len(d.all)] = r.Sound
		}
	}
	return nil
}

// rate decodes `blocks` batches, three at a time as a loader does. It returns images per second.
func (d *decoding) rate(blocks int) (float64, error) {
	began := time.Now()
	var next atomic.Int64
	errs := make([]error, 3)
	var running sync.WaitGroup
	for i := range errs {
		running.Add(1)
		go func() {
			defer running.Done()
			to := make([]byte, len(d.first))
			for n := next.Add(1); int(n) <= blocks && errs[i] == nil; n = next.Add(1) {
				errs[i] = d.decode(int(n), to)
			}
		}()
	}
	running.Wait()
	return float64(blocks*d.batch) / time.Since(began).Seconds(), errors.Join(errs...)
}

// share returns which share of the images the device has decoded.
func (d *decoding) share() float64 { return float64(d.onDevice) / float64(max(d.images, 1)) }
