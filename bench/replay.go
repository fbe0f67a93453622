package main

import (
	"context"
	"errors"
	"iter"

	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/arena"
)

// replay is a source of batches that is never slower than the device. It decodes batches once. It
// then yields them again and again from page-locked memory. Its epochs do not end.
type replay struct {
	memory  []byte
	pinner  imageloader.Pinner
	batches []imageloader.HostBatch // Epoch yields copies of these structs
}

// newReplay decodes `count` whole batches of a loader and stores them.
func newReplay(loader *imageloader.Loader, count int) (*replay, error) {
	n, height, width, channels := loader.Shape()
	each := n * height * width * channels
	r := &replay{}
	var err error
	if r.memory, err = arena.MapPages(count * each); err != nil {
		return nil, err
	}
	for len(r.batches) < count {
		before := len(r.batches)
		for batch, err := range loader.Epoch(context.Background()) {
			if err != nil {
				r.close()
				return nil, err
			}
			if batch.N == n && len(r.batches) < count {
				memory := r.memory[len(r.batches)*each:][:each]
				copy(memory, batch.Images)
				r.batches = append(r.batches, imageloader.HostBatch{
					N: n, Height: height, Width: width, Channels: channels, Images: memory,
					Labels: append([]int64(nil), batch.Labels...), Flip: append([]bool(nil), batch.Flip...),
					Names: batch.Names, Index: len(r.batches),
				})
			}
			batch.Release()
		}
		if len(r.batches) == before {
			r.close()
			return nil, errors.New("the archive has less than one batch")
		}
	}
	return r, nil
}

// Epoch yields the batches one after another, again and again, until ctx ends.
func (r *replay) Epoch(ctx context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(yield func(*imageloader.HostBatch, error) bool) {
		for i := 0; ctx.Err() == nil; i++ {
			b := &r.batches[i%len(r.batches)]
			again := &imageloader.HostBatch{
				N: b.N, Height: b.Height, Width: b.Width, Channels: b.Channels,
				Images: b.Images, Labels: b.Labels, Flip: b.Flip, Names: b.Names, Index: i,
			}
			if !yield(again, nil) {
				return
			}
		}
	}
}

// Shape returns the shape of every batch.
func (r *replay) Shape() (n, height, width, channels int) {
	b := &r.batches[0]
	return b.N, b.Height, b.Width, b.Channels
}

// Pin pins the memory of the images.
func (r *replay) Pin(p imageloader.Pinner) error {
	r.pinner = p
	return p.Pin(r.memory)
}

func (r *replay) close() {
	if r.pinner != nil {
		r.pinner.Unpin(r.memory)
	}
	_ = arena.UnmapPages(r.memory)
}
