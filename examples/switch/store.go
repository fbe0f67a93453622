package main

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/prefetcher"
)

// openExperts reads the experts of encoder and decoder into the host's memory. Experts of another dtype than is wanted are converted; they are read from the
// files' own pages, so that only those of the right one take memory.
func openExperts(folder string, dtype cgotorch.DType) (store *prefetcher.Store, err error) {
	files, err := text.WeightFiles(folder)
	if err != nil {
		return nil, err
	}
	experts := prefetcher.StoreOptions{Modules: regexp.MustCompile(text.ExpertPattern), Map: true}
	mapped, err := prefetcher.OpenStore(files, experts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mapped.Close()) }()
	var specs []prefetcher.ModuleSpec
	same := true
	for _, name := range mapped.Modules() {
		spec, err := mapped.Spec(name)
		if err != nil {
			return nil, err
		}
		for i := range spec.Tensors {
			same = same && spec.Tensors[i].DType == dtype
			spec.Tensors[i].DType = dtype
		}
		specs = append(specs, spec)
	}
	if same {
		experts.Map = false
		return prefetcher.OpenStore(files, experts)
	}
	if store, err = prefetcher.NewStore(specs); err != nil {
		return nil, err
	}
	if err = convertAll(store, mapped, specs); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", folder, err), store.Close())
	}
	return store, nil
}

// convertAll copies modules from one store to another of these specs, on as many streams as there are cores.
func convertAll(to, from *prefetcher.Store, specs []prefetcher.ModuleSpec) error {
	workers := runtime.NumCPU()
	errs := make([]error, workers)
	var all sync.WaitGroup
	for w := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			s, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
			if err != nil {
				errs[w] = err
				return
			}
			defer s.Close()
			for i := w; i < len(specs) && errs[w] == nil; i += workers {
				errs[w] = convert(s, to, from, specs[i])
			}
		}()
	}
	all.Wait()
	return errors.Join(errs...)
}

func convert(s *cgotorch.Stream, to, from *prefetcher.Store, spec prefetcher.ModuleSpec) error {
	was, err := from.Spec(spec.Name)
	if err != nil {
		return err
	}
	return s.Do(func(x *cgotorch.Exec) error {
		for i, t := range spec.Tensors {
			data, err := from.Bytes(spec.Name, t.Name)
			if err != nil {
				return err
			}
			room, err := to.Bytes(spec.Name, t.Name)
			if err != nil {
				return err
			}
			copy(room, cgotorch.ToBytes(x, x.To(cgotorch.FromBytes(x, data, was.Tensors[i].DType, t.Shape), t.DType)))
		}
		return nil
	})
}
