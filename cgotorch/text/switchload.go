package text

import (
	"fmt"
	"os"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// LoadSwitch makes a model from safetensors files. `paths` are one or more files, or one folder.
// The folder has a model.safetensors, or shards with their model.safetensors.index.json. Together
// the files must have all tensors of a model. The config.json is in the folder, or beside the first
// file. LoadSwitch converts dtypes. It waits for the device. The caller closes the model.
//
// Some embeddings may be missing in the files: tied embeddings, and embeddings that files of
// older transformers omit. In their place LoadSwitch reads an embedding of the files that equals
// them.
//
// LoadSwitch fails as [safetensors.Files] does, and for a damaged file. It fails with
// [cgotorch.ErrInvalidArgument] for an illegal value of the config, and for a DType that is neither
// Float32 nor BFloat16. It fails in the same way if a tensor is missing, unknown to the model, or
// in two files, and for a wrong shape or dtype. Errors name the file, and the field or tensor. It
// fails with [cgotorch.ErrOutOfMemory] if the host has too little memory for experts.
func LoadSwitch(x *cgotorch.Exec, o SwitchOptions, paths ...string) (*Switch, error) {
	if len(paths) == 0 {
		return nil, fmt.Errorf("text: LoadSwitch: there is no file to load: %w", cgotorch.ErrInvalidArgument)
	}
	config, err := configOf(paths[0])
	if err != nil {
		return nil, err
	}
	if o.RandomWeights != 0 {
		return drawn(x, config, o)
	}
	if info, err := os.Stat(paths[0]); len(paths) == 1 && err == nil && info.IsDir() {
		if paths, err = weightFiles(paths[0]); err != nil {
			return nil, err
		}
	}
	m := newSwitch(x, config, o)
	loaded := false
	defer func() {
		if !loaded {
			m.Close()
		}
	}()
	if err := m.load(x, paths...); err != nil {
		return nil, err
	}
	loaded = true
	return m, nil
}

// drawn makes a model of random weights.
func drawn(x *cgotorch.Exec, config SwitchConfig, o SwitchOptions) (m *Switch, err error) {
	err = withSeed(o.RandomWeights, func() { m = newSwitch(x, config, o) })
	return m, err
}

// load copies the tensors of safetensors files into m. An error that it finds before it reads a
// tensor leaves m unchanged.
func (m *Switch) load(x *cgotorch.Exec, paths ...string) error {
	w, err := openWeights(paths)
	defer w.close()
	if err != nil {
		return err
	}
	sources, err := w.match(m)
	if err != nil {
		return err
	}
	x = plain(x)
	for _, s := range sources {
		if err := s.convert(x); err != nil {
			return err
		}
	}
	return nil
}

var (
	// unread is a tensor in T5's first files. No model reads it.
	unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

	embeddings = []string{"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
)

const headName = "lm_head.weight"

// standIns returns the names that the tensor `name` may have in files. The best name comes first.
func (m *Switch) standIns(name string) []string {
	switch {
	case slices.Contains(embeddings, name) && m.Config.TieWordEmbeddings, name == headName && m.Config.TieWordEmbeddings:
		return append(slices.Clone(embeddings), headName)
	case slices.Contains(embeddings, name):
		return append([]string{name}, embeddings...)
	}
	return []string{name}
}

// match finds a source for each of m's tensors. It does not read the data of the tensors.
func (w weightSet) match(m *Switch) ([]source, error) {
	var sources []source
	var errs []error
	known := map[string]bool{unread: true, headName: m.Config.TieWordEmbeddings}
	done := map[*cgotorch.Tensor]bool{}
	for _, n := range nn.State(m) {
		known[n.Name] = true
		if done[n.Tensor] {
			continue
		}
		done[n.Tensor] = true
		names := m.standIns(n.Name)
		at := slices.IndexFunc(names, func(name string) bool { return w.of[name] != nil })
		if at < 0 {
			errs = append(errs, fmt.Errorf("text: %s: tensor %s is missing: %w", w.names(), n.Name, cgotorch.ErrInvalidArgument))
			continue
		}
		s := source{to: n.Tensor, shape: n.Tensor.Shape(), file: w.of[names[at]], name: names[at]}
		s.info, _ = s.file.Lookup(s.name)
		if err := s.check(); err != nil {
			errs = append(errs, err)
		}
		sources = append(sources, s)
	}
	for _, f := range w.files {
		for _, t := range f.Tensors() {
			if !known[t.Name] {
				errs = append(errs, fmt.Errorf("text: %s: tensor %s is not the model's: %w", f.Name(), t.Name, cgotorch.ErrInvalidArgument))
			}
		}
	}
	return sources, few(errs)
}
