package text

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// encoderFolder has what the small files of an encoder's folder say.
type encoderFolder struct {
	path    string      // as it was given
	model   string      // the folder of the Transformer
	modules []hubModule // behind the Transformer
	hub     hubEncoder  // of the model's config.json

	limit      int // most tokens of a text, as the folder says; 0 if it does not
	prompts    map[string]string
	prompt     string  // the name of the default prompt, or ""
	activation *string // of a cross-encoder's score, or nil
}

// hubModule is an entry of modules.json.
type hubModule struct {
	Path string `json:"path"`
	Type string `json:"type"`
}

// kind returns the name of the module's class.
func (m hubModule) kind() string { return m.Type[strings.LastIndexByte(m.Type, '.')+1:] }

// readEncoderFolder reads the small files of a folder.
func readEncoderFolder(path string) (*encoderFolder, error) {
	path, err := folderOf(path)
	if err != nil {
		return nil, err
	}
	f := &encoderFolder{path: path, model: path}
	if err := f.readModules(); err != nil {
		return nil, err
	}
	config := filepath.Join(f.model, "config.json")
	if err := readJSON(config, &f.hub); err != nil {
		return nil, err
	}
	_, encodes := encoderFamilies[f.hub.ModelType]
	if _, decodes := families[f.hub.ModelType]; !encodes && !decodes {
		names := slices.Sorted(maps.Keys(encoderFamilies))
		return nil, fmt.Errorf("text: %s: %w", config, refused("model_type is %q (%s), and only the encoders %s and the decoders %s are known: export another model with torch.export, and run it by package pt2",
			f.hub.ModelType, strings.Join(f.hub.Architectures, ", "), strings.Join(names, ", "), strings.Join(familyNames(), ", ")))
	}
	if f.modules == nil && !f.hub.classifies() {
		return nil, fmt.Errorf("text: %s: modules.json has no Pooling, and the model has no head for a score: save the folder with sentence-transformers, which says how tokens become a vector: %w", path, cgotorch.ErrInvalidArgument)
	}
	return f, errors.Join(f.readLimit(), f.readPrompts())
}

// readModules reads modules.json, which a cross-encoder may lack.
func (f *encoderFolder) readModules() error {
	path := filepath.Join(f.path, "modules.json")
	var all []hubModule
	if err := readJSON(path, &all); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for i, m := range all {
		wanted := []string{"Pooling", "Normalize", "Dense"}
		switch i {
		case 0:
			wanted = []string{"Transformer"}
		case 1:
			wanted = []string{"Pooling"}
		default:
			wanted = wanted[1:]
		}
		switch {
		case !strings.HasPrefix(m.Type, "sentence_transformers.") || !slices.Contains(wanted, m.kind()):
			return fmt.Errorf("text: %s: %w", path, refused("the type of module %d is %q, want %s of sentence_transformers: known are a Transformer, then Pooling, then Normalize and Dense in any order", i, m.Type, strings.Join(wanted, " or ")))
		case m.Path != "" && !filepath.IsLocal(m.Path):
			return fmt.Errorf("text: %s: %w", path, refused("the path of module %d is %q, want one in this folder", i, m.Path))
		}
	}
	if len(all) > 0 {
		f.model, f.modules = filepath.Join(f.path, all[0].Path), all[1:]
	}
	if len(f.modules) == 0 {
		f.modules = nil
	}
	return nil
}

// readLimit reads how many tokens a text may have.
func (f *encoderFolder) readLimit() error {
	var of struct {
		Limit     *int   `json:"max_seq_length"`
		LowerCase bool   `json:"do_lower_case"`
		Task      string `json:"transformer_task"`
	}
	for _, kind := range []string{"bert", "roberta", "xlm-roberta", "distilbert", "camembert"} {
		path := filepath.Join(f.model, "sentence_"+kind+"_config.json")
		err := readJSON(path, &of)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		task := "feature-extraction"
		if f.modules == nil {
			task = "sequence-classification"
		}
		switch {
		case err != nil:
			return err
		case of.LowerCase:
			err = refused("do_lower_case is true: add {\"type\": \"Lowercase\"} to the normalizer of tokenizer.json, unless it has lowercase already, and set the field to false")
		case of.Task != "" && of.Task != task:
			err = refused("transformer_task is %q, want %s", of.Task, task)
		case of.Limit != nil && *of.Limit < 1:
			err = refused("max_seq_length is %d, want at least 1", *of.Limit)
		}
		if err != nil {
			return fmt.Errorf("text: %s: %w", path, err)
		}
		if f.limit = or(of.Limit, 0); f.limit > 0 {
			return nil
		}
		break
	}
	var tokens struct {
		Limit *float64 `json:"model_max_length"`
	}
	err := readJSON(filepath.Join(f.model, "tokenizer_config.json"), &tokens)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if limit := or(tokens.Limit, 0); limit >= 1 && limit < 1<<30 { // transformers writes 1e30 for none
		f.limit = int(limit)
	}
	return nil
}

// readPrompts reads config_sentence_transformers.json.
func (f *encoderFolder) readPrompts() error {
	var of struct {
		Prompts    map[string]*string `json:"prompts"`
		Default    *string            `json:"default_prompt_name"`
		Activation *string            `json:"activation_fn"`
	}
	path := filepath.Join(f.path, "config_sentence_transformers.json")
	if err := readJSON(path, &of); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	f.prompts, f.prompt, f.activation = map[string]string{}, or(of.Default, ""), of.Activation
	for name, text := range of.Prompts {
		f.prompts[name] = or(text, "")
	}
	if _, ok := f.prompts[f.prompt]; !ok && f.prompt != "" {
		return fmt.Errorf("text: %s: %w", path, refused("default_prompt_name is %q, and prompts does not have it", f.prompt))
	}
	return nil
}

// promptOf returns the text of a prompt. The name "" is the default one.
func (f *encoderFolder) promptOf(name string) (string, error) {
	if name == "" {
		name = f.prompt
	}
	text, ok := f.prompts[name]
	if !ok && name != "" {
		names := slices.Sorted(maps.Keys(f.prompts))
		return "", fmt.Errorf("text: %s: there is no prompt %q, and prompts has %q: %w", filepath.Join(f.path, "config_sentence_transformers.json"), name, names, cgotorch.ErrInvalidArgument)
	}
	return text, nil
}

// head lists the tensors of the modules behind the Transformer.
func (f *encoderFolder) head(w *encoderWeights, width int) (*encoderHead, error) {
	h := &encoderHead{}
	for _, m := range f.modules {
		folder := filepath.Join(f.path, m.Path)
		var err error
		switch m.kind() {
		case "Pooling":
			width, err = f.pooling(h, folder, width)
		case "Dense":
			width, err = h.dense(w, folder, width)
		case "Normalize":
			h.stages = append(h.stages, normalize)
		}
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

// pooling reads the config.json of Pooling. It returns the width behind it.
func (f *encoderFolder) pooling(h *encoderHead, folder string, width int) (int, error) {
	path := filepath.Join(folder, "config.json")
	var p hubPooling
	if err := readJSON(path, &p); err != nil {
		return 0, err
	}
	var err error
	if h.pools, err = p.pools(); err != nil {
		return 0, fmt.Errorf("text: %s: %w", path, err)
	}
	if given := max(p.Width, p.OldWidth); given != width {
		return 0, fmt.Errorf("text: %s: %w", path, refused("embedding_dimension or word_embedding_dimension is %d, and the model gives %d numbers", given, width))
	}
	if !or(p.IncludePrompt, true) && slices.ContainsFunc(slices.Collect(maps.Values(f.prompts)), func(text string) bool { return text != "" }) {
		return 0, fmt.Errorf("text: %s: %w", path, refused("include_prompt is false, and config_sentence_transformers.json has prompts: set it to true if the model may pool them, or remove the prompts"))
	}
	return width * len(h.pools), nil
}
