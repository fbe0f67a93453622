package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// benchLoaderOneCore compares how fast photographs are loaded on one core. Both sides use the
// same core. Loading is reading, decoding, cropping and collating.
func benchLoaderOneCore(c *config, emit func(row)) error {
	return c.withPhotographs(imagenet, func(all photographs, folder string) error {
		images := c.or(16, 3*len(all))
		archive := filepath.Join(folder, "photographs.tar")
		if err := all.writeTar(archive, images); err != nil {
			return err
		}
		one := *c
		one.threads, one.core = 1, lastCore()
		s := comparison{c: &one, recipe: imagenet}
		defer s.close()
		if err := errors.Join(s.ours(archive), s.theirs(archive, "pillow"), s.theirs(archive, "torchvision")); err != nil {
			return err
		}
		values, err := interleave(c.roundsOr(5), s.sides()...)
		if err != nil {
			return err
		}
		note := fmt.Sprintf("%s; %d images from a .tar, the peer's from a folder, in the page cache; both on the same core, with one thread", photographsText, images)
		for i, decoder := range []string{"pillow", "torchvision"} {
			emit(s.row("loader/photos-1-core/"+decoder, values[0], "DataLoader, 0 workers, "+decoder, values[i+1], note))
		}
		return nil
	})
}

// lastCore returns the highest core that this process may use. Linux prefers the low ones for its
// own work.
func lastCore() string {
	list := processStatus("Cpus_allowed_list")
	return list[strings.LastIndexAny(list, ",-")+1:]
}

const photographsText = "uint8 batches of 128x224x224x3, random resized crop and flip (ours only decides on the flip, which the device does)"

// benchLoaderAllCores compares how fast photographs are loaded on all cores.
func benchLoaderAllCores(c *config, emit func(row)) error {
	return c.withPhotographs(imagenet, func(all photographs, folder string) error {
		images := c.or(16, max(3000, 750*runtime.NumCPU())) // an epoch takes some seconds
		plain, compressed := filepath.Join(folder, "photographs.tar"), filepath.Join(folder, "photographs.tgz")
		if err := errors.Join(all.writeTar(plain, images), all.writeTgz(compressed, images)); err != nil {
			return err
		}
		s := comparison{c: c, recipe: imagenet}
		defer s.close()
		if err := errors.Join(s.ours(plain), s.ours(compressed), s.theirs(plain, "pillow")); err != nil {
			return err
		}
		workers, err := s.processes[2].bestWorkers(c, false)
		if err != nil {
			return err
		}
		values, err := interleave(c.roundsOr(3), s.sides()...)
		if err != nil {
			return err
		}
		note := fmt.Sprintf("%s; %d images, the peer's in a folder, in the page cache; epochs from the second on, each with its boundary; %d cores, ours as many decode threads, peer %d workers, the best of those tried",
			photographsText, images, runtime.NumCPU(), workers)
		emit(s.row("loader/photos-all-cores/tar", values[0], "DataLoader, Pillow", values[2], "from a .tar; "+note))
		emit(s.row("loader/photos-all-cores/tgz", values[1], "DataLoader, Pillow", values[2], "from a .tgz larger than the shuffle buffer, which each epoch inflates; "+note))
		return nil
	})
}

// withPhotographs reads the images of a recipe. It calls the function `use` with the images and
// with a folder for archives made from them. It then removes the folder.
func (c *config) withPhotographs(r recipe, use func(all photographs, folder string) error) error {
	once, err := c.find(r.archive)
	if err != nil {
		return err
	}
	all, err := readPhotographs(once)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "bench-photographs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	return use(all, folder)
}
