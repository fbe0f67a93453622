package main

import "fmt"

// comparison compares processes that load the images of one recipe. Each process is one side.
type comparison struct {
	c         *config
	recipe    recipe
	processes []*peer
	images    []int // for each process, the images of one epoch
}

// ours starts a process of this program and adds it as a side. The process opens the archive.
func (s *comparison) ours(archive string) error {
	p, err := s.c.startOwn()
	if err != nil {
		return err
	}
	return s.add(p, "open", "archive", archive, "recipe", s.recipe.name, "batch", s.batch())
}

// theirs starts a process of PyTorch and adds it as a side. The process unpacks the archive and
// starts no workers.
func (s *comparison) theirs(archive, decoder string) error {
	p, err := s.c.startPeer("loader.py", switches{})
	if err != nil {
		return err
	}
	err = s.add(p, "prepare", "archive", archive, "part", s.recipe.train, "recipe", s.recipe.name, "decoder", decoder, "batch", s.batch())
	if err != nil {
		return err
	}
	return p.do(nil, "workers", "count", 0)
}

func (s *comparison) add(p *peer, what string, arguments ...any) error {
	s.processes = append(s.processes, p)
	var reply struct{ Images int }
	err := p.do(&reply, what, arguments...)
	s.images = append(s.images, reply.Images)
	return err
}

func (s *comparison) batch() int { return s.c.or(8, 128) }

// sides returns a side for each process. A side measures images per second. It reads several
// epochs at a time, for some seconds.
func (s *comparison) sides() []side {
	var all []side
	for i, p := range s.processes {
		epochs := s.c.or(1, 2)
		all = append(all, func() (float64, error) {
			rate, err := p.value("images_per_second", "epochs", "count", epochs)()
			if !s.c.brief && err == nil {
				const seconds = 4
				epochs = max(epochs, int(seconds*rate)/s.images[i])
			}
			return rate, err
		})
	}
	return all
}

// row returns the row that compares two sides.
func (s *comparison) row(name string, ours sample, peer string, theirs sample, note string) row {
	versions := s.processes[len(s.processes)-1].versions
	return inTurns(name, ours, "images/s", peer, theirs, higher,
		fmt.Sprintf("%s; ours %v; peer %v; %s, %s", note, ours, theirs, s.processes[0].versions, versions))
}

func (s *comparison) close() {
	for _, p := range s.processes {
		p.close()
	}
}
