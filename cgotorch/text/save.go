package text

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/replace"
)

// besides are the files that Save copies from the model's folder.
var besides = []string{
	"generation_config.json", "tokenizer.json", "tekken.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "tokenizer.model",
}

// Save writes the model into a folder that transformers and [Open] read, and makes the folder if it
// is not there. The weights go into one model.safetensors, in the model's dtype, also if they came
// quantised: the saved model has the values that their codes tell. Save fails for a model that was
// opened with Options.Quantize. The other files are those of the folder that the model came from. A
// file that is there is replaced when the new one is whole. Save waits for the device. Errors name
// the file.
func (m *Model) Save(x *cgotorch.Exec, folder string) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return fmt.Errorf("text: %w", err)
	}
	if m.quantize != "" {
		return fmt.Errorf("text: Save: the weights became %s when the model was opened: open it without Options.Quantize, and save that: %w", m.quantize, cgotorch.ErrInvalidArgument)
	}
	x = plain(x)
	var tensors []safetensors.Tensor
	for _, n := range m.Weights {
		t := n.Tensor
		dtype := m.d.dtype
		tensors = append(tensors, safetensors.Tensor{Name: n.Name, DType: fileDTypes[dtype], Shape: t.Shape(), Read: func() (data []byte, err error) {
			x.Tidy(func() *cgotorch.Tensor {
				data = cgotorch.ToBytes(x, m.d.as(x, x.Detach(t), dtype))
				return nil
			})
			return data, nil
		}})
	}
	if err := safetensors.WriteFile(filepath.Join(folder, "model.safetensors"), tensors, map[string]string{"format": "pt"}); err != nil {
		return fmt.Errorf("text: %w", err)
	}
	config, err := m.savedConfig()
	if err == nil {
		err = replace.Write(filepath.Join(folder, "config.json"), config)
	}
	for _, name := range besides {
		if err == nil {
			from := m.tokensFolder
			if name == "generation_config.json" {
				from = m.folder
			}
			err = copyFile(filepath.Join(folder, name), filepath.Join(from, name))
		}
	}
	if err == nil {
		err = copyTemplates(filepath.Join(folder, moreTemplates), filepath.Join(m.tokensFolder, moreTemplates))
	}
	if err != nil {
		return fmt.Errorf("text: %w", err)
	}
	return nil
}

// moreTemplates is the folder of named chat templates beside a tokenizer.
const moreTemplates = "additional_chat_templates"

// copyTemplates copies the chat templates of a folder, if it is there.
func copyTemplates(to, from string) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.MkdirAll(to, 0o777)
	}
	for _, e := range entries {
		if err == nil && filepath.Ext(e.Name()) == ".jinja" {
			err = copyFile(filepath.Join(to, e.Name()), filepath.Join(from, e.Name()))
		}
	}
	return err
}

var fileDTypes = map[cgotorch.DType]string{cgotorch.Float64: "F64", cgotorch.Float32: "F32", cgotorch.Float16: "F16", cgotorch.BFloat16: "BF16"}

// savedConfig returns the folder's config.json with the dtype of the model. Of a model that also
// sees images it returns the part of the text model.
func (m *Model) savedConfig() ([]byte, error) {
	path := filepath.Join(m.folder, "config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config map[string]any
	numbers := json.NewDecoder(bytes.NewReader(data))
	numbers.UseNumber() // keeps them as they are written
	if err := numbers.Decode(&config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if inner, ok := config["text_config"].(map[string]any); ok {
		for _, field := range []string{"tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id"} {
			if value, there := config[field]; there && inner[field] == nil {
				inner[field] = value
			}
		}
		config = inner
		config["model_type"], config["architectures"] = m.d.c.vision.textType, []string{m.d.c.vision.text}
	}
	delete(config, "torch_dtype")
	delete(config, "quantization_config") // the weights are written in the model's dtype
	config["dtype"] = m.d.dtype.String()
	return json.MarshalIndent(config, "", "  ")
}

// copyFile copies a file, if it is there, and unless both paths lead to the same file.
func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	a, _ := os.Stat(from)
	if b, err := os.Stat(to); err == nil && os.SameFile(a, b) {
		return nil
	}
	return replace.Write(to, data)
}
