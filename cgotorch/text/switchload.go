package text

import (
	"fmt"
	"os"
	"regexp"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// LoadOptions choose the config and the options of the model that [LoadSwitch] makes.
type LoadOptions struct {
	SwitchOptions
	Config *SwitchConfig // nil means the config.json in the given folder, or beside the first file
}

// LoadSwitch makes a model from safetensors files. `paths` are one or more files, or one folder.
// The folder has a model.safetensors, or shards with their model.safetensors.index.json. Together
// the files must have all tensors of a model. LoadSwitch converts dtypes. It waits for the device.
// The caller frees the model with [nn.Close].
//
// Some embeddings may be missing in the files: tied embeddings, and embeddings that files of
// older transformers omit. In their place LoadSwitch reads an embedding of the files that equals
// them. It ignores the tensors of experts with [SwitchOptions].NoExperts.
//
// LoadSwitch fails as [ReadSwitchConfig] and [safetensors.Files] do, and for a damaged file. It
// fails with [cgotorch.ErrInvalidArgument] if a tensor is missing, unknown to the model, or in two
// files, and for a wrong shape or dtype. These errors name the file and the tensor.
func LoadSwitch(x *cgotorch.Exec, o LoadOptions, paths ...string) (*Switch, error) {
	if len(paths) == 0 {
		return nil, fmt.Errorf("text: LoadSwitch: there is no file to load: %w", cgotorch.ErrInvalidArgument)
	}
	var config SwitchConfig
	if o.Config != nil {
		config = *o.Config
	} else {
		var err error
		if config, err = configOf(paths[0]); err != nil {
			return nil, err
		}
	}
	if info, err := os.Stat(paths[0]); len(paths) == 1 && err == nil && info.IsDir() {
		if paths, err = weightFiles(paths[0]); err != nil {
			return nil, err
		}
	}
	m := newSwitch(x, "text.LoadSwitch", config, o.SwitchOptions, false)
	loaded := false
	defer func() {
		if !loaded {
			nn.Close(m)
		}
	}()
	if err := m.load(x, paths...); err != nil {
		return nil, err
	}
	loaded = true
	return m, nil
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
	expertName = regexp.MustCompile(`^(encoder|decoder)\.block\.\d+\.layer\.\d+\.mlp\.experts\.expert_\d+\.w[io]\.weight$`)

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
func (w weights) match(m *Switch) ([]source, error) {
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
		s := source{to: n.Tensor, file: w.of[names[at]], name: names[at]}
		s.info, _ = s.file.Lookup(s.name)
		if err := s.check(); err != nil {
			errs = append(errs, err)
		}
		sources = append(sources, s)
	}
	for _, f := range w.files {
		for _, t := range f.Tensors() {
			if !known[t.Name] && !(expertName.MatchString(t.Name) && m.withoutExperts()) {
				errs = append(errs, fmt.Errorf("text: %s: tensor %s is not the model's: %w", f.Name(), t.Name, cgotorch.ErrInvalidArgument))
			}
		}
	}
	return sources, few(errs)
}

// withoutExperts reports whether m has no resident experts: it was made with NoExperts.
func (m *Switch) withoutExperts() bool {
	for _, ff := range m.feedForwards() {
		if ff.Sparse != nil && ff.Sparse.Experts != nil {
			return false
		}
	}
	return true
}

func (m *Switch) feedForwards() []*FeedForward {
	var all []*FeedForward
	for _, b := range m.Encoder.Block {
		all = append(all, b.FF)
	}
	for _, b := range m.Decoder.Block {
		all = append(all, b.FF)
	}
	return all
}
