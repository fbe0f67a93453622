package text

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// adapterConfig has the fields of PEFT's adapter_config.json that change the merged weights.
type adapterConfig struct {
	Type         string             `json:"peft_type"`
	Base         string             `json:"base_model_name_or_path"`
	Rank         int                `json:"r"`
	Alpha        float64            `json:"lora_alpha"`
	RankStable   bool               `json:"use_rslora"`
	DoRA         bool               `json:"use_dora"`
	Bias         string             `json:"bias"`
	Transposed   bool               `json:"fan_in_fan_out"`
	Saved        []string           `json:"modules_to_save"`
	RankPattern  map[string]int     `json:"rank_pattern"`
	AlphaPattern map[string]float64 `json:"alpha_pattern"`
	Invocation   []int64            `json:"alora_invocation_tokens"`
	Replication  [][]int            `json:"layer_replication"`
	QALoRA       bool               `json:"use_qalora"`
	BDLoRA       json.RawMessage    `json:"use_bdlora"`
	Init         any                `json:"init_lora_weights"`
	KaSA         json.RawMessage    `json:"kasa_config"`
	MonteCLoRA   json.RawMessage    `json:"monteclora_config"`
	Arrow        json.RawMessage    `json:"arrow_config"`
}

const adapterFile = "adapter_config.json"

func readAdapterConfig(folder string) (a adapterConfig, err error) {
	path := filepath.Join(folder, adapterFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return a, fmt.Errorf("text: %w", err)
	}
	a.Rank, a.Alpha = 8, 8 // of PEFT
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("text: %s: %w: %w", path, err, cgotorch.ErrInvalidArgument)
	}
	refuse := ""
	switch {
	case a.Type != "LORA":
		refuse = fmt.Sprintf("peft_type is %q, and only LORA is merged", a.Type)
	case a.DoRA:
		refuse = "use_dora is true, and DoRA is not merged"
	case a.Bias != "" && a.Bias != "none":
		refuse = fmt.Sprintf("bias is %q, and only none is merged", a.Bias)
	case a.Transposed:
		refuse = "fan_in_fan_out is true, and no model here has such layers"
	case len(a.Saved) > 0:
		refuse = fmt.Sprintf("modules_to_save is %v, and only LoRA's matrices are merged", a.Saved)
	case len(a.RankPattern)+len(a.AlphaPattern) > 0:
		refuse = "rank_pattern or alpha_pattern is set, and one rank for all layers is merged"
	case len(a.Invocation) > 0:
		refuse = "alora_invocation_tokens is set, and an adapter works on all tokens"
	case len(a.Replication) > 0:
		refuse = "layer_replication is set, and layers are not repeated"
	case a.QALoRA || !isNull(a.BDLoRA) || !isNull(a.KaSA) || !isNull(a.MonteCLoRA) || !isNull(a.Arrow):
		refuse = "use_qalora, use_bdlora, kasa_config, monteclora_config or arrow_config is set, and only plain LoRA is merged"
	case a.changesBase():
		refuse = fmt.Sprintf("init_lora_weights is %q, and such an adapter belongs to other weights than the model's own", a.Init)
	case a.Rank < 1:
		refuse = fmt.Sprintf("r is %d, want at least 1", a.Rank)
	}
	if refuse != "" {
		return a, fmt.Errorf("text: %s: %s: merge it with PEFT's merge_and_unload, and save the result: %w", path, refuse, cgotorch.ErrInvalidArgument)
	}
	return a, nil
}

// changesBase reports whether PEFT changes the model's own weights before it adds the matrices.
func (a adapterConfig) changesBase() bool {
	how, _ := a.Init.(string)
	return slices.ContainsFunc([]string{"pissa", "corda", "olora", "loftq", "lora_ga"}, func(kind string) bool { return strings.HasPrefix(strings.ToLower(how), kind) })
}

// scale is the factor of the product of both matrices.
func (a adapterConfig) scale() float64 {
	if a.RankStable {
		return a.Alpha / math.Sqrt(float64(a.Rank))
	}
	return a.Alpha / float64(a.Rank)
}

// adapter is a folder of matrices that are merged into the weights.
type adapter struct {
	config adapterConfig
	of     weightSet
	left   map[string]bool // the matrices that are not merged yet
}

func openAdapter(folder string) (*adapter, error) {
	config, err := readAdapterConfig(folder)
	if err != nil {
		return nil, err
	}
	w, err := openWeights([]string{filepath.Join(folder, "adapter_model.safetensors")})
	if err != nil {
		w.close()
		return nil, err
	}
	a := &adapter{config, w, map[string]bool{}}
	for _, t := range w.files[0].Tensors() {
		a.left[t.Name] = true
	}
	return a, nil
}

// merge adds the matrices that belong to some weights, in float32.
func (a *adapter) merge(x *cgotorch.Exec, d *decoder, named []nn.Named) error {
	for _, n := range named {
		for _, name := range d.c.names.inFiles(n.Name) {
			name = "base_model.model." + strings.TrimSuffix(name, ".weight")
			down, up := name+".lora_A.weight", name+".lora_B.weight"
			if !a.left[down] && !a.left[up] {
				continue
			}
			if err := d.mergeOne(x, a.config, a.of.files[0], n, down, up); err != nil {
				return err
			}
			delete(a.left, down)
			delete(a.left, up)
		}
	}
	return nil
}

// rest fails if a matrix is left.
func (a *adapter) rest() error {
	f := a.of.files[0]
	for _, t := range f.Tensors() {
		if a.left[t.Name] {
			return fmt.Errorf("text: %s: tensor %s belongs to no matrix of the model: %w", f.Name(), t.Name, cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}

// mergeOne adds the product of two matrices, [rank, in] and [out, rank], to a weight [out, in].
func (d *decoder) mergeOne(x *cgotorch.Exec, a adapterConfig, f *safetensors.File, n nn.Named, down, up string) (err error) {
	shape, rank := n.Tensor.Shape(), int64(a.Rank)
	if len(shape) != 2 {
		return fmt.Errorf("text: %s: tensor %s is for %s, which is no matrix: %w", f.Name(), down, n.Name, cgotorch.ErrInvalidArgument)
	}
	read := func(name string, want ...int64) *cgotorch.Tensor {
		info, _ := f.Lookup(name)
		if err == nil && (!slices.Equal(info.Shape, want) || dtypes[info.DType] == 0) {
			err = fmt.Errorf("text: %s: tensor %s is %s%v, want the shape %v: %w", f.Name(), name, info.DType, info.Shape, want, cgotorch.ErrInvalidArgument)
		}
		if err != nil {
			return nil
		}
		data, failed := f.Read(name)
		if err = failed; err != nil {
			return nil
		}
		return d.as(x, cgotorch.FromBytes(x, data, dtypes[info.DType], info.Shape), d.wide)
	}
	x.Tidy(func() *cgotorch.Tensor {
		first, second := read(down, rank, shape[1]), read(up, shape[0], rank)
		if err == nil {
			product := x.MulScalar(x.MatMul(second, first), a.scale())
			nn.Copy(x, n.Tensor, d.as(x, x.Add(d.as(x, n.Tensor, d.wide), product), n.Tensor.DType()))
		}
		return nil
	})
	return err
}

// find returns the folder of the model, and finds that of the adapter.
func (o *Options) find(folder string) (string, error) {
	folder, err := folderOf(folder)
	if err == nil && o.Adapter != "" {
		o.Adapter, err = folderOf(o.Adapter)
	}
	if err != nil || !exists(filepath.Join(folder, adapterFile)) {
		return folder, err
	}
	if exists(filepath.Join(folder, "config.json")) {
		if o.Adapter == "" {
			return "", fmt.Errorf("text: %s has both config.json and %s: give the adapter's folder in Options.Adapter too, or a folder without %s: %w",
				folder, adapterFile, adapterFile, cgotorch.ErrInvalidArgument)
		}
		return folder, nil
	}
	if o.Adapter != "" {
		return "", fmt.Errorf("text: %s is an adapter, and Options.Adapter names another one: give the model's own folder: %w", folder, cgotorch.ErrInvalidArgument)
	}
	o.Adapter = folder
	a, err := readAdapterConfig(folder)
	if err != nil {
		return "", err
	}
	if a.Base == "" {
		return "", fmt.Errorf("text: %s names no model in base_model_name_or_path: give the model's own folder, and this one in Options.Adapter: %w",
			filepath.Join(o.Adapter, adapterFile), cgotorch.ErrInvalidArgument)
	}
	if folder, err = folderOf(a.Base); err != nil {
		return "", fmt.Errorf("text: %s names the model %q: %w", filepath.Join(o.Adapter, adapterFile), a.Base, err)
	}
	return folder, nil
}
