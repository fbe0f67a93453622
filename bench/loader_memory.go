package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
)

// benchLoaderMemory compares what a process needs that only loads photographs, on all cores.
func benchLoaderMemory(c *config, emit func(row)) error {
	workers, epochs := c.or(2, 16), c.or(1, 5)
	return c.withPhotographs(imagenet, func(all photographs, folder string) error {
		images := c.images()
		plain, compressed := filepath.Join(folder, "photographs.tar"), filepath.Join(folder, "photographs.tgz")
		if err := errors.Join(all.writeTar(plain, images), all.writeTgz(compressed, images)); err != nil {
			return err
		}
		s := comparison{c: c, recipe: imagenet}
		defer s.close()
		if err := errors.Join(s.ours(plain), s.ours(compressed), s.theirs(plain, "pillow")); err != nil {
			return err
		}
		theirs := s.processes[2]
		if err := theirs.do(nil, "workers", "count", workers); err != nil {
			return err
		}
		var used [3]struct{ First, Resident, Peak float64 }
		for i, p := range s.processes {
			if err := p.do(&used[i], "memory", "count", epochs); err != nil {
				return err
			}
		}
		for i, kind := range []string{"tar", "tgz"} {
			note := fmt.Sprintf("uint8 batches of %d, %d epochs of %d photographs from a .%s with the loader's default options, after the first %.0f MiB; %d cores; peer: proportional set size of the main process and %d workers, after the first %.0f MiB; %s",
				s.batch(), epochs, images, kind, used[i].First, runtime.NumCPU(), workers, used[2].First, theirs.versions)
			emit(against("loader/memory/"+kind+"/resident", used[i].Resident, "MiB", "DataLoader, Pillow", used[2].Resident, lower,
				"resident set after the last epoch; "+note))
			emit(against("loader/memory/"+kind+"/peak", used[i].Peak, "MiB", "DataLoader, Pillow", used[2].Peak, lower,
				"the most that was resident, the peer's after every eighth batch; "+note))
		}
		return nil
	})
}
