package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/aoti"
)

// packageSides adds the package of a batch, as it is and captured. `done` closes what the sides
// use, also after an error.
func (r *programRun) packageSides(all *sidesByName, batch, calls int, in *cgotorch.Tensor, want []float32) (done func(), err error) {
	done = func() {}
	p, err := r.loadPackage(batch, 2)
	if err != nil {
		return done, err
	}
	done = func() { p.Close() }
	once := packageWork(p)
	call := func(change func(x *cgotorch.Exec) *cgotorch.Exec) error {
		return cgotorch.DefaultStream(r.c.device).Do(func(x *cgotorch.Exec) error {
			_, err := deviation(x, once(x, in)[0], want)
			if err == nil {
				once(change(x), in)
			}
			return err
		})
	}
	for _, change := range []func(x *cgotorch.Exec) *cgotorch.Exec{(*cgotorch.Exec).NoGrad, (*cgotorch.Exec).NoWaits} {
		if err := call(change); err != nil {
			return done, err
		}
	}
	w, err := newCapturedWork(r.c, once, cgotorch.CapturedOptions{InPlace: true, Log: r.c.tell}, 5, in)
	done = func() { w.close(); p.Close() }
	if err != nil {
		return done, err
	}
	far, err := w.difference(want)
	if err != nil {
		return done, err
	}
	made, _ := r.result(making{"package", r.model, batch})
	how := fmt.Sprintf("differs by %.2g, compiled in %.0f s with %d at a time, NoWaits silent", far, made.Seconds, made.Beside)
	stream := cgotorch.DefaultStream(r.c.device)
	all.add("package", func() (float64, error) {
		return microseconds(r.c, calls, func() error {
			return stream.Do(func(x *cgotorch.Exec) error { once(x, in); return nil })
		})
	}, how)
	all.add("package, captured", w.side(calls), how)
	return done, nil
}

// packageWork returns the Forward of a package as a function that can be captured.
func packageWork(p *aoti.Package) work {
	return func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor { return p.Forward(x.NoGrad(), in...) }
}

func (r *programRun) loadPackage(batch, lanes int) (p *aoti.Package, err error) {
	err = cgotorch.DefaultStream(r.c.device).Do(func(x *cgotorch.Exec) error {
		p, err = aoti.Load(x, r.compiled(r.model, batch), aoti.Options{Lanes: lanes})
		return err
	})
	return p, err
}

// lanes makes the rows of a package with 8 lanes. It compares the memory with that of one lane. It
// compares the calls of 16 goroutines on 8 streams with those of one goroutine. Each answer is read
// back, and must be right.
func (r *programRun) lanes(batch int) error {
	const goroutines, lanes = 16, 8
	c := r.c
	if made, _ := r.result(making{"package", r.model, batch}); made.Error != "" {
		return nil // PyTorch has not compiled it
	}
	one, bytesOfOne, err := r.loadMeasured(batch, 1)
	if err != nil {
		return err
	}
	if err := one.Close(); err != nil {
		return err
	}
	p, bytes, err := r.loadMeasured(batch, lanes)
	if err != nil {
		return err
	}
	defer p.Close()
	in, want, err := r.stored(r.model, batch)
	if err != nil {
		return err
	}
	defer in.Close()
	var streams []*cgotorch.Stream
	defer func() {
		for _, s := range streams {
			s.Close()
		}
	}()
	for range lanes {
		s, err := cgotorch.NewStream(c.device, cgotorch.StreamOptions{Name: "lane"})
		if err != nil {
			return err
		}
		streams = append(streams, s)
	}
	work := packageWork(p)
	run := func(n, calls int) (float64, error) {
		began := time.Now()
		var wait sync.WaitGroup
		errs := make([]error, n)
		for g := range n {
			wait.Add(1)
			go func() {
				defer wait.Done()
				for range max(1, calls/n) {
					err := streams[g%lanes].Do(func(x *cgotorch.Exec) error {
						_, err := deviation(x, work(x, in)[0], want)
						return err
					})
					if err != nil {
						errs[g] = err
						return
					}
				}
			}()
		}
		wait.Wait()
		return float64(max(1, calls/n)*n) / time.Since(began).Seconds(), errors.Join(errs...)
	}
	// The input was made on the default stream.
	if err := c.device.Synchronize(); err != nil {
		return err
	}
	calls := c.or(2*goroutines, 1000)
	values, err := interleave(c.roundsOr(5), func() (float64, error) { return run(goroutines, calls) }, func() (float64, error) { return run(1, calls/8) })
	if err != nil {
		return err
	}
	note := fmt.Sprintf("package of AOTInductor, %s; %s; %v", r.form(batch), c.settings(), r.s)
	prefix := fmt.Sprintf("program/%s/%d/lanes", r.model, batch)
	r.emit(inTurns(prefix, values[0], "calls/s", "one goroutine", values[1], higher,
		fmt.Sprintf("%d goroutines on %d streams over %d lanes, each answer read back and right; ours %v; one goroutine %v; %s", goroutines, lanes, lanes, values[0], values[1], note)))
	r.emit(against(prefix+"/memory", bytes/(1<<20), "MiB", "one lane", bytesOfOne/(1<<20), lower,
		fmt.Sprintf("allocated by LibTorch after Load with %d lanes; %s", lanes, note)))
	return nil
}

// loadMeasured loads a package, and returns the bytes that LibTorch has allocated for it.
func (r *programRun) loadMeasured(batch, lanes int) (*aoti.Package, float64, error) {
	before, err := r.c.device.Memory()
	if err != nil {
		return nil, 0, err
	}
	p, err := r.loadPackage(batch, lanes)
	if err != nil {
		return nil, 0, err
	}
	after, err := r.c.device.Memory()
	return p, float64(after.Allocated - before.Allocated), err
}
