package oip

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
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

// Ready returns nil if each model that is to be loaded has a version that is ready, and the reason
// otherwise.
func Ready(models *serve.Repository) error { return readiness(models, true) }

// readiness is Ready. Without `why` an error names the model alone, because the reason may hold
// paths of the server.
func readiness(models *serve.Repository, why bool) error {
	select {
	case <-models.Lost():
		return fmt.Errorf("a device is lost: %w", serve.ErrNotLoaded)
	default:
	}
	list := models.List()
	ready := map[string]bool{}
	for _, m := range list {
		if m.Ready {
			ready[m.Name] = true
		}
	}
	for _, m := range list {
		switch {
		case ready[m.Name]:
		case m.Err != nil && !why:
			return fmt.Errorf("%s, version %s: %w", m.Name, m.Version, serve.ErrNotLoaded)
		case m.Err != nil:
			return fmt.Errorf("%s, version %s: %w: %v", m.Name, m.Version, serve.ErrNotLoaded, m.Err)
		case m.Loading:
			return fmt.Errorf("%s, version %s, is being loaded: %w", m.Name, m.Version, serve.ErrNotLoaded)
		}
	}
	if len(ready) == 0 {
		return fmt.Errorf("no model is loaded: %w", serve.ErrNotLoaded)
	}
	return nil
}

// ServerMetadata describes a server.
type ServerMetadata struct {
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Extensions []string `json:"extensions"`
}

// ServerMetadataOf describes a server with these options.
func ServerMetadataOf(o Options) ServerMetadata {
	m := ServerMetadata{cmp.Or(o.Name, "streamtorch"), cmp.Or(o.Version, moduleVersion()),
		[]string{"binary_tensor_data", "classification", "model_configuration", "statistics"}}
	if o.Control {
		m.Extensions = append(m.Extensions, "model_repository")
	}
	return m
}

// moduleVersion returns the version of this module in the program, as the build information has it.
func moduleVersion() string {
	const module = "github.com/streamtorch/streamtorch"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == module && m.Version != "" {
				return m.Version
			}
		}
	}
	return "unknown"
}

// ModelIndex is a model in the list of Triton's model repository extension.
type ModelIndex struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	State   string `json:"state"` // LOADING, READY or UNAVAILABLE
	Reason  string `json:"reason"`
}

// IndexOf lists the known models.
func IndexOf(models *serve.Repository) []ModelIndex {
	list := []ModelIndex{}
	for _, m := range models.List() {
		e := ModelIndex{Name: m.Name, Version: m.Version, State: "UNAVAILABLE"}
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

// ModelConfig is Triton's model configuration, as far as its tools read it.
type ModelConfig struct {
	Name            string          `json:"name"`
	Platform        string          `json:"platform"`
	Backend         string          `json:"backend"`
	MaxBatchSize    int             `json:"max_batch_size"`
	Input           []TensorConfig  `json:"input"`
	Output          []TensorConfig  `json:"output"`
	DynamicBatching DynamicBatching `json:"dynamic_batching"`
}

// TensorConfig describes an input or an output of one entry.
type TensorConfig struct {
	Name     string  `json:"name"`
	DataType string  `json:"data_type"` // such as TYPE_FP32
	Dims     []int64 `json:"dims"`
}

// DynamicBatching has the sizes for which the model is prepared.
type DynamicBatching struct {
	PreferredBatchSize []int `json:"preferred_batch_size"`
}

// ConfigOf returns a model's configuration. A model that was unloaded for its memory is loaded
// first.
func ConfigOf(ctx context.Context, models *serve.Repository, name, version string) (*ModelConfig, error) {
	tensors := func(specs []serve.Spec) (list []TensorConfig) {
		for _, s := range specs {
			list = append(list, TensorConfig{s.Name, "TYPE_" + dataTypeOf(s.DType), append([]int64{}, s.Shape...)})
		}
		return list
	}
	var c *ModelConfig
	err := models.Use(ctx, name, version, func(m *serve.Model) error {
		c = &ModelConfig{Name: m.Name, Platform: "streamtorch", Backend: "streamtorch", MaxBatchSize: m.MaxEntries(),
			Input: tensors(m.Inputs()), Output: tensors(m.Outputs()), DynamicBatching: DynamicBatching{m.Stats().Sizes}}
		return nil
	})
	return c, err
}

// ModelStatistics are the counts and times of a model since its load, as Triton tells them.
type ModelStatistics struct {
	Name           string            `json:"name"`
	Version        string            `json:"version"`
	InferenceCount int64             `json:"inference_count"` // entries
	ExecutionCount int64             `json:"execution_count"` // batches
	InferenceStats InferStatistics   `json:"inference_stats"`
	BatchStats     []BatchStatistics `json:"batch_stats"`
}

// Statistic is a number of requests or batches, and the sum of their times.
type Statistic struct {
	Count int64 `json:"count"`
	NS    int64 `json:"ns"`
}

// InferStatistics are statistics of requests. The times of copies are part of ComputeInfer.
type InferStatistics struct {
	Success       Statistic `json:"success"`
	Fail          Statistic `json:"fail"`
	Queue         Statistic `json:"queue"`
	ComputeInput  Statistic `json:"compute_input"`
	ComputeInfer  Statistic `json:"compute_infer"`
	ComputeOutput Statistic `json:"compute_output"`
	Cancel        Statistic `json:"cancel"`
	Reject        Statistic `json:"reject"`
}

// BatchStatistics are statistics of the batches of one size.
type BatchStatistics struct {
	BatchSize    int       `json:"batch_size"`
	ComputeInfer Statistic `json:"compute_infer"`
}

// StatisticsOf returns the statistics of the loaded models. An empty name stands for all. It fails
// as [serve.Repository.Ready] does.
func StatisticsOf(models *serve.Repository, name, version string) ([]ModelStatistics, error) {
	if name != "" {
		if err := models.Ready(name, version); err != nil {
			return nil, err
		}
	}
	list := []ModelStatistics{}
	for _, info := range models.List() {
		if !info.Loaded || name != "" && info.Name != name || version != "" && info.Version != version {
			continue
		}
		s := info.Stats
		over := func(d time.Duration) Statistic { return Statistic{s.Requests, d.Nanoseconds()} }
		m := ModelStatistics{Name: info.Name, Version: info.Version, InferenceCount: s.Entries, BatchStats: []BatchStatistics{}, InferenceStats: InferStatistics{
			Success: over(s.Took), Queue: over(s.Queued), ComputeInput: over(0), ComputeInfer: over(s.Took - s.Queued), ComputeOutput: over(0),
			Fail: Statistic{Count: s.Failed}, Cancel: Statistic{Count: s.Dropped}, Reject: Statistic{Count: s.Refused},
		}}
		for size, count := range s.Batches {
			m.ExecutionCount += count
			m.BatchStats = append(m.BatchStats, BatchStatistics{size, Statistic{Count: count}})
		}
		slices.SortFunc(m.BatchStats, func(a, b BatchStatistics) int { return a.BatchSize - b.BatchSize })
		list = append(list, m)
	}
	return list, nil
}
