package oip

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// Metadata describes a model.
type Metadata struct {
	Name     string           `json:"name"`
	Versions []string         `json:"versions"`
	Platform string           `json:"platform"`
	Inputs   []TensorMetadata `json:"inputs"`
	Outputs  []TensorMetadata `json:"outputs"`
}

// TensorMetadata describes an input or an output. A size of -1 may vary: the first one is the
// number of entries.
type TensorMetadata struct {
	Name     string  `json:"name"`
	DataType string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

// MetadataOf describes a model. A model that was unloaded for its memory is loaded first.
func MetadataOf(ctx context.Context, models *serve.Repository, name, version string) (*Metadata, error) {
	m := &Metadata{Name: name, Platform: "streamtorch"}
	err := models.Use(ctx, name, version, func(model *serve.Model) error {
		m.Inputs, m.Outputs = describe(model.Inputs()), describe(model.Outputs())
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, info := range models.List() {
		if info.Name == name && info.Ready {
			m.Versions = append(m.Versions, info.Version)
		}
	}
	return m, nil
}

func describe(specs []serve.Spec) (list []TensorMetadata) {
	for _, s := range specs {
		list = append(list, TensorMetadata{s.Name, dataTypeOf(s.DType), append([]int64{-1}, s.Shape...)})
	}
	return list
}

// Ready returns nil if each model that is to be loaded is ready, and the reason otherwise.
func Ready(models *serve.Repository) error {
	select {
	case <-models.Lost():
		return fmt.Errorf("a device is lost: %w", serve.ErrNotLoaded)
	default:
	}
	ready := 0
	for _, m := range models.List() {
		switch {
		case m.Err != nil:
			return fmt.Errorf("%s, version %s: %w: %v", m.Name, m.Version, serve.ErrNotLoaded, m.Err)
		case m.Loading && !m.Ready:
			return fmt.Errorf("%s, version %s, is being loaded: %w", m.Name, m.Version, serve.ErrNotLoaded)
		case m.Ready:
			ready++
		}
	}
	if ready == 0 {
		return fmt.Errorf("no model is loaded: %w", serve.ErrNotLoaded)
	}
	return nil
}

// find returns what is known of a model that is ready. Without a version it is the last one.
func find(models *serve.Repository, name, version string) (found serve.ModelInfo, err error) {
	err = serve.ErrNotFound
	for _, m := range slices.Backward(models.List()) {
		if m.Name == name && (version == "" || m.Version == version) {
			if m.Ready {
				return m, nil
			}
			found, err = m, serve.ErrNotLoaded
		}
	}
	return found, fmt.Errorf("%q, version %q: %w", name, version, err)
}

// indexEntry is a model in the list of Triton's model repository extension.
type indexEntry struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	State   string `json:"state"`
	Reason  string `json:"reason"`
}

func index(models *serve.Repository) []indexEntry {
	list := []indexEntry{}
	for _, m := range models.List() {
		e := indexEntry{Name: m.Name, Version: m.Version, State: "UNAVAILABLE"}
		switch {
		case m.Loading:
			e.State = "LOADING"
		case m.Ready:
			e.State = "READY"
		}
		if m.Err != nil {
			e.Reason = m.Err.Error()
		}
		list = append(list, e)
	}
	return list
}

// config answers Triton's model configuration extension, as far as its tools read it.
func (h *handler) config(r *http.Request) (any, error) {
	type io struct {
		Name     string  `json:"name"`
		DataType string  `json:"data_type"`
		Dims     []int64 `json:"dims"`
	}
	ios := func(specs []serve.Spec) (list []io) {
		for _, s := range specs {
			list = append(list, io{s.Name, "TYPE_" + dataTypeOf(s.DType), append([]int64{}, s.Shape...)})
		}
		return list
	}
	var config map[string]any
	err := h.models.Use(r.Context(), r.PathValue("model"), r.PathValue("version"), func(m *serve.Model) error {
		config = map[string]any{
			"name": m.Name, "platform": "streamtorch", "backend": "streamtorch", "max_batch_size": m.MaxEntries(),
			"input": ios(m.Inputs()), "output": ios(m.Outputs()),
			"dynamic_batching": map[string]any{"preferred_batch_size": m.Stats().Sizes},
		}
		return nil
	})
	return config, err
}

// stats answers Triton's statistics extension, for one model or for all.
func (h *handler) stats(r *http.Request) (any, error) {
	type times struct {
		Count int64 `json:"count"`
		NS    int64 `json:"ns"`
	}
	type batch struct {
		Size    int   `json:"batch_size"`
		Compute times `json:"compute_infer"`
	}
	type model struct {
		Name       string           `json:"name"`
		Version    string           `json:"version"`
		Inferences int64            `json:"inference_count"`
		Executions int64            `json:"execution_count"`
		Stats      map[string]times `json:"inference_stats"`
		Batches    []batch          `json:"batch_stats"`
	}
	list := []model{}
	name, version := r.PathValue("model"), r.PathValue("version")
	if name != "" {
		if _, err := find(h.models, name, version); err != nil {
			return nil, err
		}
	}
	for _, info := range h.models.List() {
		if !info.Loaded || name != "" && info.Name != name || version != "" && info.Version != version {
			continue
		}
		s := info.Stats
		ns := func(d time.Duration) times { return times{s.Requests, d.Nanoseconds()} }
		m := model{Name: info.Name, Version: info.Version, Inferences: s.Entries, Stats: map[string]times{
			"success": ns(s.Took), "queue": ns(s.Queued), "compute_infer": ns(s.Took - s.Queued),
			"fail": {Count: s.Failed}, "cancel": {Count: s.Dropped}, "reject": {Count: s.Refused},
			"compute_input": {Count: s.Requests}, "compute_output": {Count: s.Requests},
		}}
		for size, count := range s.Batches {
			m.Executions += count
			m.Batches = append(m.Batches, batch{size, times{Count: count}})
		}
		slices.SortFunc(m.Batches, func(a, b batch) int { return a.Size - b.Size })
		list = append(list, m)
	}
	return map[string]any{"model_stats": list}, nil
}
