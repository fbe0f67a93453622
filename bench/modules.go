package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// matrices is a module with two tensors. The products read only Weight.
type matrices struct {
	Weight *cgotorch.Tensor
	Rest   *cgotorch.Tensor
}

// matrixStore returns a store of `count` modules. Each module has `bytes` bytes, and its first
// tensor is a square matrix of n rows.
func matrixStore(count, n int, bytes int64) (*weights.Store, error) {
	square := weights.TensorSpec{Name: "weight", DType: cgotorch.Float32, Shape: []int64{int64(n), int64(n)}}
	rest := weights.TensorSpec{Name: "rest", DType: cgotorch.Uint8, Shape: []int64{bytes - 4*int64(n)*int64(n)}}
	if rest.Shape[0] < 0 {
		return nil, fmt.Errorf("a matrix of %d rows has more than %d bytes", n, bytes)
	}
	var specs []weights.UnitSpec
	for i := range count {
		specs = append(specs, weights.UnitSpec{Name: fmt.Sprint(i), Tensors: []weights.TensorSpec{square, rest}})
	}
	return weights.NewStore(specs)
}

func newMatrices(n int, bytes int64) func(x *cgotorch.Exec, name string) (*matrices, error) {
	return func(x *cgotorch.Exec, _ string) (*matrices, error) {
		side := int64(n)
		return &matrices{Weight: x.Keep(x.Empty(cgotorch.Float32, side, side)), Rest: x.Keep(x.Empty(cgotorch.Uint8, bytes-4*side*side))}, nil
	}
}

// beside has what is needed to copy a module while matrix products run on the default stream.
type beside struct {
	device cgotorch.Device
	store  *weights.Store
	cache  *weights.Cache[*matrices]

	copies   *cgotorch.Stream // for the control, which copies from memory that is not page-locked
	pageable *cgotorch.HostSlab
	to       *cgotorch.Tensor

	a, b, out *cgotorch.Tensor
	products  int
	next      int
}

func newBeside(d cgotorch.Device, n, products int, bytes int64) (*beside, error) {
	b := &beside{device: d, products: products}
	err := func() (err error) {
		if b.store, err = matrixStore(2, 1, bytes); err != nil {
			return err
		}
		if b.cache, err = weights.NewCache(b.store, d, newMatrices(1, bytes), weights.CacheOptions{Slots: 1}); err != nil {
			return err
		}
		if b.pageable, err = cgotorch.NewHostSlab(int(bytes)); err != nil {
			return err
		}
		if b.copies, err = cgotorch.NewStream(d, cgotorch.StreamOptions{}); err != nil {
			return err
		}
		clear(b.pageable.Bytes())
		if err := b.copies.Do(func(x *cgotorch.Exec) error { b.to = x.Keep(x.Empty(cgotorch.Uint8, bytes)); return nil }); err != nil {
			return err
		}
		return cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error {
			side := int64(n)
			b.a, b.b, b.out = x.Keep(x.Randn(cgotorch.Float32, side, side)), x.Keep(x.Randn(cgotorch.Float32, side, side)), x.Keep(x.Empty(cgotorch.Float32, side, side))
			return nil
		})
	}()
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *beside) close() {
	if b.cache != nil {
		b.cache.Close()
	}
	if b.store != nil {
		b.store.Close()
	}
	if b.pageable != nil {
		b.pageable.Close()
	}
	for _, t := range []*cgotorch.Tensor{b.to, b.a, b.b, b.out} {
		t.Close()
	}
	b.copies.Close()
}

func (b *beside) compute(x *cgotorch.Exec) {
	x = x.NoGrad()
	for range b.products {
		x.Call("aten::mm.out", b.a, b.b, b.out)
	}
}

// copy enqueues a copy and returns the microseconds that the call took.
func (b *beside) copy(pinned bool) (float64, error) {
	name := fmt.Sprint(b.next % 2) // the other module was copied last, so this module is not in the slot
	b.next++
	began := time.Now()
	var err error
	if pinned {
		err = b.cache.Prefetch(context.Background(), name)
	} else {
		var from, to *cgotorch.Event
		from, to, err = b.copies.CopyFrom(nil, cgotorch.HostCopy{To: b.to, From: b.pageable.Bytes()})
		from.Close()
		to.Close()
	}
	took := micros(time.Since(began))
	b.cache.Drop(name)
	return took, err
}

// besideFigures holds the figures of one round. Compute, Copy and Both are milliseconds, and
// Issue is microseconds. Hidden is the share of the copy that was hidden.
type besideFigures struct {
	Compute, Copy, Both float64
	Issue               float64 `json:"issue_microseconds"`
	Hidden              float64
}

func (b *beside) round(pinned, copyFirst bool) (f besideFigures, err error) {
	stream := cgotorch.DefaultStream(b.device)
	timed := func(work func(x *cgotorch.Exec) error) (milliseconds float64, err error) {
		for range 3 { // two rounds warm the device up, as for the peer. Only the last round counts
			if err := b.device.Synchronize(); err != nil {
				return 0, err
			}
			began := time.Now()
			if err := errors.Join(stream.Do(work), b.cache.Flush(context.Background()), b.device.Synchronize()); err != nil {
				return 0, err
			}
			milliseconds = 1e3 * time.Since(began).Seconds()
		}
		return milliseconds, nil
	}
	compute := func(x *cgotorch.Exec) error { b.compute(x); return nil }
	issue := func(*cgotorch.Exec) (err error) { f.Issue, err = b.copy(pinned); return err }
	if f.Compute, err = timed(compute); err != nil {
		return f, err
	}
	if f.Copy, err = timed(issue); err != nil {
		return f, err
	}
	f.Both, err = timed(func(x *cgotorch.Exec) error {
		if copyFirst {
			if err := issue(x); err != nil {
				return err
			}
			return compute(x)
		}
		b.compute(x)
		return issue(x)
	})
	f.Hidden = 1 - (f.Both-f.Compute)/f.Copy
	return f, err
}

// benchModulesOverlap copies one module while two products run. The copy is enqueued after the
// products in some rows, and before the products in others. The control copies from memory that
// is not page-locked. The peer is PyTorch.
func benchModulesOverlap(c *config, emit func(row)) error {
	s := switches{}
	p, err := c.startPeer("copies.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	n, products, bytes := c.or(64, 4096), 2, int64(c.or(1<<16, 64<<20))
	b, err := newBeside(c.device, n, products, bytes)
	if err != nil {
		return err
	}
	defer b.close()
	for _, pinned := range []bool{true, false} {
		for _, order := range []string{"kernels", "copy"} {
			var ours, theirs [4]sample // the times of both together, of the copy, of the products, and of the call that enqueues the copy
			keep := func(to *[4]sample, f besideFigures) {
				for i, v := range []float64{f.Both, f.Copy, f.Compute, f.Issue} {
					to[i] = append(to[i], v)
				}
			}
			hidden, err := interleave(c.roundsOr(11),
				func() (float64, error) {
					f, err := b.round(pinned, order == "copy")
					keep(&ours, f)
					return f.Hidden, err
				},
				func() (float64, error) {
					var f besideFigures
					err := p.do(&f, "overlap", "pinned", pinned, "order", order, "device", c.device.String(), "n", n, "count", products, "bytes", bytes)
					keep(&theirs, f)
					return f.Hidden, err
				})
			if err != nil {
				return err
			}
			memory := map[bool]string{true: "pinned", false: "pageable"}[pinned]
			emit(against("modules/overlap/"+memory+"/"+order+"-first", hidden[0].median(), "share of the copy hidden", "PyTorch, by hand", hidden[1].median(), higher,
				fmt.Sprintf("%d float32 products of [%d, %d] on the default stream, a copy of %d bytes on its own; ms with both %.3f, copy alone %.3f, products alone %.3f, the call for the copy returned after %.1f us; PyTorch %.3f, %.3f, %.3f, %.1f; the lowest share %.3f; ours %v; %s; %v; %s",
					products, n, n, bytes, ours[0].median(), ours[1].median(), ours[2].median(), ours[3].median(), theirs[0].median(), theirs[1].median(), theirs[2].median(), theirs[3].median(),
					hidden[0].quantile(0), hidden[0], c.settings(), s, p.versions)))
		}
	}
	return nil
}

// benchModulesRounds repeats work that needs a copied module. The copy takes about as long as the
// work. One side copies on demand. One side copies ahead. On the last side all modules are
// resident.
func benchModulesRounds(c *config, emit func(row)) error {
	s := switches{}
	p, err := c.startPeer("copies.py", s)
	if err != nil {
		return err
	}
	defer p.close()
	n, repeats, bytes, rounds := c.or(64, 2048), 4, int64(c.or(1<<16, 64<<20)), c.or(4, 40)
	store, err := matrixStore(8, n, bytes)
	if err != nil {
		return err
	}
	defer store.Close()
	sides := map[weights.Policy]side{}
	var stats weights.CacheStats
	for _, policy := range []weights.Policy{weights.OnDemand, weights.NextLayer, weights.Resident} {
		cache, err := weights.NewCache(store, c.device, newMatrices(n, bytes), weights.CacheOptions{Policy: policy})
		if err != nil {
			return err
		}
		defer cache.Close()
		sides[policy] = func() (float64, error) {
			seconds, err := c.secondsEach(1, func() error {
				return cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
					x = x.NoGrad()
					for i := range rounds {
						u := cache.Use(x, store.Units()[i%8])
						for range repeats {
							x.MM(u.Module.Weight, u.Module.Weight).Close()
						}
						u.Release(x)
					}
					return nil
				})
			})
			if policy == weights.NextLayer {
				stats = cache.Stats()
			}
			return 1e3 * seconds / float64(rounds), err
		}
	}
	var theirs [2]sample // the times of the products and of a copy
	reply := struct{ Ahead, Compute, Copy float64 }{}
	ask := []any{"device", c.device.String(), "n", n, "repeats", repeats, "bytes", bytes, "count", rounds}
	values, err := interleave(c.roundsOr(11), sides[weights.OnDemand], sides[weights.NextLayer], sides[weights.Resident],
		func() (float64, error) {
			err := p.do(&reply, "rounds", ask...)
			theirs[0], theirs[1] = append(theirs[0], reply.Compute), append(theirs[1], reply.Copy)
			return reply.Ahead, err
		})
	if err != nil {
		return err
	}
	demand, ahead, compute, copying := values[0].median(), values[1].median(), values[2].median(), theirs[1].median()
	limit := (copying + compute) / max(copying, compute)
	note := fmt.Sprintf("%d rounds of %d float32 products of [%d, %d] that read what a copy of %d bytes brought; ms a round on demand %.4f, ahead %.4f, resident %.4f; a copy takes %.4f (PyTorch's); of %v of copying %.3f was hidden; %v; %s; %v; %s",
		rounds, repeats, n, n, bytes, demand, ahead, compute, copying, stats.Copy.Round(time.Microsecond), stats.Hidden(), values[1], c.settings(), s, p.versions)
	emit(against("modules/rounds/gain", demand/ahead, "times as fast as on demand", "the limit, (copy + compute)/max", limit, higher, note))
	emit(against("modules/rounds/ahead", ahead, "ms", "PyTorch, two slots by hand", values[3].median(), lower, note))
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
