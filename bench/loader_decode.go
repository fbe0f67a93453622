package main

import (
	"fmt"
	"runtime"
	"time"

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
