package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// side is the height and the width of the images.
const side = 32

// pictures holds all images of one part of the data on the device.
type pictures struct {
	pixels  *cgotorch.Tensor // uint8 [N, side, side, 3]
	labels  *cgotorch.Tensor // int64 [N]
	ready   *cgotorch.Event  // after the copies
	n       int
	classes []string
}

// target says where images are copied to. A goroutine opens the device while others decode.
type target struct {
	opened chan struct{}    // closed when the device is open
	copies *cgotorch.Stream // on the device; set before `opened` is closed
}

// reading is the work of a goroutine that decodes one part of the data and copies it to the
// device.
type reading struct {
	pictures *pictures
	err      error
	done     chan struct{} // closed at the end
}

// wait waits until the images have been decoded and their copies are enqueued.
func (r *reading) wait(ctx context.Context) (*pictures, error) {
	select {
	case <-r.done:
		return r.pictures, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// close waits for the goroutine and frees the images.
func (r *reading) close() error {
	<-r.done
	return r.pictures.close()
}

// source says where images come from.
type source struct {
	path  string // an archive, or a folder of archives
	split string // train or test
	limit int    // take so many images at most; 0 means all
}

// file returns the archive of the part. In a folder it is cifar10-SPLIT.tgz.
func (s source) file() string {
	if info, err := os.Stat(s.path); err == nil && info.IsDir() {
		return filepath.Join(s.path, "cifar10-"+s.split+".tgz")
	}
	return s.path
}

// read decodes all images of the part on all cores, without crops and flips. It copies them to the
// target as uint8. Decoding begins at once. Copying begins when the target is open.
func (s source) read(ctx context.Context, to *target, classes []string) (*pictures, error) {
	const batch = 1000
	loader, err := imageloader.Open(s.file(), imageloader.Options{
		Split: s.split, Classes: classes, BatchSize: batch, Transform: decode.Resize{Height: side, Width: side},
		Buffers: 64, // a large number, so that decoding never waits for CUDA
	})
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	p := &pictures{n: loader.Len(), classes: loader.Classes()}
	if s.limit > 0 {
		p.n = min(p.n, s.limit)
	}
	at := 0
	for host, err := range loader.Epoch(ctx) {
		if err != nil {
			return p, err
		}
		err := p.copy(ctx, to, host, at)
		at += host.N
		host.Release()
		if err != nil {
			return p, err
		}
		if at >= p.n {
			break
		}
	}
	if at < p.n {
		return p, fmt.Errorf("%s: %d images, want %d", s.file(), at, p.n)
	}
	p.ready, err = to.copies.Record()
	return p, err
}

// copy copies a host batch behind the first `at` images. It returns when CUDA has read the batch,
// because the memory of the batch is not page-locked. For 150 MB that are read once, page-locking
// takes longer than it saves.
func (p *pictures) copy(ctx context.Context, to *target, host *imageloader.HostBatch, at int) error {
	select {
	case <-to.opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return to.copies.Do(func(x *cgotorch.Exec) error {
		if p.pixels == nil {
			p.pixels = x.Keep(x.Empty(cgotorch.Uint8, int64(p.n), side, side, 3))
			p.labels = x.Keep(x.Empty(cgotorch.Int64, int64(p.n)))
		}
		n := min(host.N, p.n-at)
		cgotorch.CopyFrom(x, x.Narrow(p.pixels, 0, at, n), host.Images[:n*side*side*3])
		cgotorch.CopyFrom(x, x.Narrow(p.labels, 0, at, n), host.Labels[:n])
		return nil
	})
}

// use makes x's stream wait for the copies.
func (p *pictures) use(x *cgotorch.Exec) *pictures {
	x.Wait(p.ready)
	return p
}

func (p *pictures) close() error {
	if p == nil {
		return nil
	}
	return errors.Join(p.pixels.Close(), p.labels.Close(), p.ready.Close())
}

// readBoth starts a goroutine that reads the training images and then the test images. Training
// can begin when the training images are there.
func readBoth(ctx context.Context, c *clock, train, test source, to *target) (first, second *reading) {
	first, second = &reading{done: make(chan struct{})}, &reading{done: make(chan struct{})}
	go func() {
		end := c.begin("reading and decoding, training")
		first.pictures, first.err = train.read(ctx, to, nil)
		end()
		close(first.done)
		if second.err = first.err; first.err == nil {
			end = c.begin("reading and decoding, test")
			second.pictures, second.err = test.read(ctx, to, first.pictures.classes)
			end()
		}
		close(second.done)
	}()
	return first, second
}
