package text

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// dtype returns the dtype of the first tensor, or float32.
func (w weights) dtype() cgotorch.DType {
	for _, f := range w.files {
		for _, t := range f.Tensors() {
			if dtype := dtypes[t.DType]; dtype != 0 {
				return dtype
			}
		}
	}
	return cgotorch.Float32
}

// load copies the tensors of the files into the decoder, each once. An error that it finds before
// it reads a tensor leaves the decoder unchanged.
func (d *decoder) load(x *cgotorch.Exec, w weights) error {
	sources, err := d.match(w)
	if err != nil {
		return err
	}
	for _, s := range sources {
		data, err := s.file.Read(s.name)
		if err != nil {
			return fmt.Errorf("text: %w", err)
		}
		x.Tidy(func() *cgotorch.Tensor {
			nn.Copy(x, s.to, cgotorch.FromBytes(x, data, dtypes[s.info.DType], s.info.Shape))
			return nil
		})
	}
	return nil
}

// match finds a source for each tensor of the decoder.
func (d *decoder) match(w weights) ([]source, error) {
	prefix := d.c.names.prefix
	names := func(name string) (all []string) {
		rest, ok := strings.CutPrefix(name, prefix[0])
		if !ok {
			return append(all, name, "language_model."+name)
		}
		for _, p := range prefix {
			all = append(all, p+rest)
		}
		return all
	}
	var sources []source
	var errs []error
	known := map[string]bool{}
	for _, n := range d.Weights {
		s := source{to: n.Tensor}
		for _, name := range names(n.Name) {
			if f := w.of[name]; f != nil && s.file == nil {
				s.file, s.name = f, name
				s.info, _ = f.Lookup(name)
			}
		}
		if s.file == nil {
			errs = append(errs, fmt.Errorf("text: %s: tensor %s is missing: %w", w.names(), n.Name, cgotorch.ErrInvalidArgument))
			continue
		}
		known[s.name] = true
		if err := s.check(); err != nil {
			errs = append(errs, err)
		}
		sources = append(sources, s)
	}
	if err := d.tie(w, sources); err != nil {
		errs = append(errs, err)
	}
	for _, f := range w.files {
		for _, t := range f.Tensors() {
			if !known[t.Name] && !d.c.passesOver(t.Name) {
				errs = append(errs, fmt.Errorf("text: %s: tensor %s is not the model's: %w", f.Name(), t.Name, cgotorch.ErrInvalidArgument))
			}
		}
	}
	return sources, few(errs)
}

// tie refuses files that have a head of their own although config.json says that it is the
// embedding.
func (d *decoder) tie(w weights, sources []source) error {
	f := w.of[headName]
	if !d.c.tied || f == nil || len(sources) == 0 || sources[0].to != d.embed {
		return nil
	}
	head, err := f.Read(headName)
	if err != nil {
		return fmt.Errorf("text: %w", err)
	}
	embedding, err := sources[0].file.Read(sources[0].name)
	if err != nil {
		return fmt.Errorf("text: %w", err)
	}
	if !bytes.Equal(head, embedding) {
		return fmt.Errorf("text: %s: tensor %s differs from %s, and tie_word_embeddings of config.json says that they are one: set it to false: %w",
			f.Name(), headName, sources[0].name, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// passesOver reports whether files may have a tensor that the decoder does not read: the head of a
// model whose head is its embedding, frequencies of old files, and what sees images.
func (c *decoderConfig) passesOver(name string) bool {
	switch {
	case strings.HasSuffix(name, headName):
		return c.tied
	case strings.HasSuffix(name, ".rotary_emb.inv_freq"):
		return true
	case c.family == "gemma3":
		for _, part := range []string{"vision_tower.", "multi_modal_projector."} {
			if strings.HasPrefix(name, part) || strings.HasPrefix(name, "model."+part) {
				return true
			}
		}
	}
	return false
}
