package docs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/vision"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"github.com/streamtorch/streamtorch/prefetcher"
)

type (
	tensor = cgotorch.Tensor
)

const (
	f32 = cgotorch.Float32
	i64 = cgotorch.Int64
	u8  = cgotorch.Uint8
)

// mistakes are calls inside a Do, by package and by the beginning of the text in the page.
var mistakes = map[string]map[string]func(x *cgotorch.Exec){
	"cgotorch": {
		"…expected scalar type Long": func(x *cgotorch.Exec) { x.CrossEntropy(x.Ones(f32, 2, 3), x.Ones(f32, 2)) },
		"…scalar types: Long, Int":   func(x *cgotorch.Exec) { x.Call("aten::embedding", x.Ones(f32, 4, 3), x.Ones(f32, 2)) },
		"…Expected dtype int32":      func(x *cgotorch.Exec) { x.IndexSelect(x.Ones(f32, 2), 0, x.Ones(f32, 2)) },
		"…expected scalar type…": func(x *cgotorch.Exec) {
			x.Conv2d(x.Zeros(u8, 1, 3, 8, 8), x.Ones(f32, 4, 3, 3, 3), nil, cgotorch.Conv2dOptions{})
		},
		"…to have the same dtype":   func(x *cgotorch.Exec) { x.MatMul(x.Ones(cgotorch.Float16, 2, 4), x.Ones(f32, 4, 2)) },
		"…must have the same dtype": func(x *cgotorch.Exec) { x.Linear(x.Ones(i64, 2, 4), x.Ones(f32, 2, 4), nil) },
		"…Trying to backward":       func(x *cgotorch.Exec) { l := x.Sum(x.Exp(leaf(x))); x.Backward(l); x.Backward(l) },
		"…does not require grad":    func(x *cgotorch.Exec) { x.Backward(x.Sum(x.Ones(f32, 2))) },
		"…grad can be implicitly":   func(x *cgotorch.Exec) { x.Backward(x.Exp(leaf(x))) },
		"…a leaf Variable":          func(x *cgotorch.Exec) { x.AddScalarInPlace(leaf(x), 1) },
		"…has been modified by": func(x *cgotorch.Exec) {
			e := x.Exp(leaf(x))
			x.AddScalarInPlace(e, 1)
			x.Backward(x.Sum(e))
		},
		"…Only Tensors of floating": func(x *cgotorch.Exec) { failWith(x, x.Ones(i64, 2).SetRequiresGrad(true)) },
		"…view size is not": func(x *cgotorch.Exec) {
			x.Call("aten::view", x.Transpose(x.Ones(f32, 2, 3), 0, 1), []int64{6})
		},
		"…could not infer":    func(x *cgotorch.Exec) { x.Mean(x.Ones(i64, 2)) },
		"…can't be cast":      func(x *cgotorch.Exec) { x.AddInPlace(x.Ones(i64, 2), x.Ones(f32, 2)) },
		"…\" not implemented": func(x *cgotorch.Exec) { x.UniformInPlace(x.Ones(i64, 2), 0, 1) },
		"…Target …":           func(x *cgotorch.Exec) { x.CrossEntropy(x.Ones(f32, 2, 3), cgotorch.FromSlice(x, []int64{0, 5})) },
		"…Class values":       func(x *cgotorch.Exec) { x.OneHot(cgotorch.FromSlice(x, []int64{1, 9}), 3) },
		"…index out of range": func(x *cgotorch.Exec) {
			x.Call("aten::embedding", x.Ones(f32, 4, 3), cgotorch.FromSlice(x, []int64{1, 9}))
		},
		"…The size of tensor a": func(x *cgotorch.Exec) { x.Add(x.Ones(f32, 2, 3), x.Ones(f32, 2, 4)) },
		"…mat1 and mat2 shapes": func(x *cgotorch.Exec) { x.MatMul(x.Ones(f32, 2, 3), x.Ones(f32, 2, 3)) },
		"…expected input[": func(x *cgotorch.Exec) {
			x.Conv2d(x.Ones(f32, 1, 8, 8, 3), x.Ones(f32, 4, 3, 3, 3), nil, cgotorch.Conv2dOptions{})
		},
		"…Kernel size can't": func(x *cgotorch.Exec) {
			x.Conv2d(x.Ones(f32, 1, 3, 2, 2), x.Ones(f32, 4, 3, 3, 3), nil, cgotorch.Conv2dOptions{})
		},
		"…Output size is": func(x *cgotorch.Exec) {
			x.MaxPool2d(x.Ones(f32, 1, 1, 2, 2), []int64{5, 5}, cgotorch.MaxPool2dOptions{})
		},
		"…Expected 3D": func(x *cgotorch.Exec) {
			x.Conv2d(x.Ones(f32, 8, 8), x.Ones(f32, 4, 3, 3, 3), nil, cgotorch.Conv2dOptions{})
		},
		"…running_mean should": func(x *cgotorch.Exec) {
			x.BatchNorm(x.Ones(f32, 2, 5, 3, 3), nil, nil, x.Zeros(f32, 4), x.Ones(f32, 4), cgotorch.BatchNormOptions{})
		},
		"…Given normalized_shape": func(x *cgotorch.Exec) {
			x.LayerNorm(x.Ones(f32, 2, 5), []int64{4}, nil, nil, cgotorch.LayerNormOptions{})
		},
		"…Dimension out of range": func(x *cgotorch.Exec) { x.Softmax(x.Ones(f32, 2, 3), 5) },
		"…Sizes of tensors":       func(x *cgotorch.Exec) { x.Cat([]*tensor{x.Ones(f32, 2, 3), x.Ones(f32, 3, 4)}, 0) },
		"…stack expects":          func(x *cgotorch.Exec) { x.Stack([]*tensor{x.Ones(f32, 2, 3), x.Ones(f32, 3, 4)}, 0) },
		"…' is invalid for":       func(x *cgotorch.Exec) { x.Reshape(x.Ones(f32, 2, 3), 4, 2) },
		"…Trying to create":       func(x *cgotorch.Exec) { x.Ones(f32, -2) },
		"…elements cannot be":     func(x *cgotorch.Exec) { x.Item(x.Ones(f32, 2)) },
		"…The expanded size":      func(x *cgotorch.Exec) { x.Expand(x.Ones(f32, 2), 3) },
		"…exceeds dimension":      func(x *cgotorch.Exec) { x.Narrow(x.Ones(f32, 2, 3), 0, 1, 5) },
		"…selected index k":       func(x *cgotorch.Exec) { x.TopK(x.Ones(f32, 2), 5, 0, cgotorch.TopKOptions{}) },
		"…all elements of":        func(x *cgotorch.Exec) { x.Call("aten::binary_cross_entropy", x.Full(f32, 3, 2), x.Ones(f32, 2)) },
		"…can't allocate memory":  func(x *cgotorch.Exec) { x.Ones(f32, 1<<46) },
		"label … of sample": func(x *cgotorch.Exec) {
			x.CTCLoss(x.Ones(f32, 5, 1, 3), cgotorch.FromSlice(x, []int64{9}), []int64{5}, []int64{1}, cgotorch.CTCLossOptions{})
		},
		"the step … is 0":     func(x *cgotorch.Exec) { x.Arange(i64, 0, 5, 0.5) },
		"the … … is no int64": func(x *cgotorch.Exec) { x.Arange(i64, 0, 1e300, nil) },
		"key has no heads": func(x *cgotorch.Exec) {
			q := x.Zeros(f32, 2, 0, 3, 4)
			x.ScaledDotProductAttention(q, q, q, cgotorch.ScaledDotProductAttentionOptions{})
		},
		"the pivots have":                             func(x *cgotorch.Exec) { x.LUUnpack(x.Ones(f32, 3, 3), x.Ones(cgotorch.Int32, 0)) },
		"a tensor of shape … has":                     func(x *cgotorch.Exec) { cgotorch.FromSlice(x, []float32{1, 2, 3}, 2, 2) },
		"row … has … elements":                        func(x *cgotorch.Exec) { cgotorch.FromRows(x, [][]float32{{1, 2}, {3}}) },
		"the elements are …, asked for as …: convert": func(x *cgotorch.Exec) { cgotorch.ToSlice[float64](x, x.Ones(f32, 2)) },
		"the tensor is …, want two dimensions":        func(x *cgotorch.Exec) { cgotorch.ToRows[float32](x, x.Ones(f32, 2)) },
		"autocast to …":                               func(x *cgotorch.Exec) { x.Autocast(i64) },
		"the tensor is nil":                           func(x *cgotorch.Exec) { x.Keep(nil) },
		"a tensor is closed":                          func(x *cgotorch.Exec) { t := x.Ones(f32, 2); t.Close(); x.Exp(t) },
		"the tensor is closed: it":                    func(x *cgotorch.Exec) { t := x.Ones(f32, 2); t.Close(); x.Keep(t) },
		"a number: use int":                           func(x *cgotorch.Exec) { x.AddScalar(x.Ones(f32, 2), "2") },
		"the tensor is closed":                        func(x *cgotorch.Exec) { t := x.Ones(f32, 2); t.Close(); failWith(x, t.SetRequiresGrad(true)) },
		"the tensor, or the":                          func(x *cgotorch.Exec) { t := x.Ones(f32, 2); t.Close(); failWith(x, t.SetGrad(nil)) },
		"a Do inside a Do":                            func(x *cgotorch.Exec) { failWith(x, x.Stream().Do(func(*cgotorch.Exec) error { return nil })) },
		"called inside a Do of this stream,":          func(x *cgotorch.Exec) { _, err := x.Stream().Record(); failWith(x, err) },
		"called inside a Do of this stream":           func(x *cgotorch.Exec) { failWith(x, x.Stream().Close()) },
		"the stream is nil":                           func(x *cgotorch.Exec) { x.On(nil) },
		"there must be a gradient": func(x *cgotorch.Exec) {
			x.BackwardWith(cgotorch.BackwardOptions{Grads: []*tensor{nil, nil}}, x.Sum(leaf(x)))
		},
		"want a dense tensor": func(x *cgotorch.Exec) { _, err := cgotorch.HostSlice[float64](x.Ones(f32, 2)); failWith(x, err) },
	},
	"cgotorch/nn": {
		"… is …, want at least":      func(x *cgotorch.Exec) { nn.NewLinear(x, 0, 2, nn.LinearOptions{}) },
		"PaddingMode is":             func(x *cgotorch.Exec) { nn.NewConv2d(x, 1, 1, nn.Square(3), nn.Conv2dOptions{PaddingMode: "mirror"}) },
		"… groups do not divide … i": func(x *cgotorch.Exec) { nn.NewConv2d(x, 4, 6, nn.Square(3), nn.Conv2dOptions{Groups: 4}) },
		"… groups do not divide … c": func(x *cgotorch.Exec) { nn.NewGroupNorm(x, 3, 4, nn.GroupNormOptions{}) },
		"shape is":                   func(x *cgotorch.Exec) { nn.NewLayerNorm(x, nil, nn.LayerNormOptions{}) },
		"PaddingIndex is":            func(x *cgotorch.Exec) { nn.NewEmbedding(x, 2, 2, nn.EmbeddingOptions{PaddingIndex: cgotorch.Set(2)}) },
		"labels are": func(x *cgotorch.Exec) {
			nn.CrossEntropy(x, x.Ones(f32, 2, 3), x.Ones(cgotorch.Int32, 2), nn.CrossEntropyOptions{})
		},
		"… and … are of different": func(x *cgotorch.Exec) { nn.MSE(x, x.Ones(f32, 2), x.Ones(f32, 3), nn.MSEOptions{}) },
		"there are lengths of": func(x *cgotorch.Exec) {
			nn.CTC(x, x.Ones(f32, 5, 1, 3), x.Ones(i64, 1), []int64{5}, nil, nn.CTCOptions{})
		},
		"there is no module":    func(x *cgotorch.Exec) { nn.Fuse(x, nil, nn.FuseOptions{}) },
		"… is in training mode": func(x *cgotorch.Exec) { nn.Fuse(x, nn.NewBatchNorm2d(x, 2, nn.BatchNorm2dOptions{}), nn.FuseOptions{}) },
		"there are no branches": func(x *cgotorch.Exec) { nn.NewParallel().Forward(x, x.Ones(f32, 1)) },
		"Recompute is":          func(x *cgotorch.Exec) { (&nn.Sequential{Recompute: -1}).Forward(x, x.Ones(f32, 1)) },
		"the child … is": func(x *cgotorch.Exec) {
			s := nn.NewSequential()
			s.Modules = []nn.Child{{Name: "a", Module: s}}
			s.Forward(x, x.Ones(f32, 1))
		},
		"nn: … holds itself": func(x *cgotorch.Exec) {
			s := nn.NewSequential()
			s.Modules = []nn.Child{{Name: "a", Module: s}}
			failWith(x, nn.Check(s))
		},
		"nn: …: …, … of type": func(x *cgotorch.Exec) { failWith(x, nn.Check(&struct{ w *tensor }{x.Ones(f32, 1)})) },
		"nn: Load: nothing": func(x *cgotorch.Exec) {
			failWith(x, load(x, nn.LoadOptions{AllowMissing: true, AllowUnexpected: true}))
		},
		"nn: Load: LoadOptions.Ren": func(x *cgotorch.Exec) {
			failWith(x, load(x, nn.LoadOptions{Rename: func(string) string { return "same" }}))
		},
		"the tensor is nil":                                func(x *cgotorch.Exec) { nn.Uniform(x, nil, 0, 1) },
		"the tensor is …, want a flo":                      func(x *cgotorch.Exec) { nn.Uniform(x, x.Ones(i64, 2), 0, 1) },
		"from is … and to is":                              func(x *cgotorch.Exec) { nn.Uniform(x, x.Ones(f32, 2), 1, 0) },
		"deviation is":                                     func(x *cgotorch.Exec) { nn.TruncatedNormal(x, x.Ones(f32, 2), 0, 0, -1, 1) },
		"the weight is …, want at least 2 dimensions, and": func(x *cgotorch.Exec) { nn.XavierNormal(x, x.Ones(f32, 2), nn.XavierOptions{}) },
		"the weight is …, want at least two":               func(x *cgotorch.Exec) { nn.KaimingNormal(x, x.Ones(f32, 2), nn.KaimingOptions{}) },
		"DType is":                                         func(x *cgotorch.Exec) { nn.To(x, nn.NewSequential(), nn.ToOptions{DType: i64}) },
		"width is …, heads is":                             func(x *cgotorch.Exec) { nn.NewMultiheadAttention(x, 6, 4, nn.AttentionOptions{}) },
	},
	"cgotorch/optim": {
		"there are no parameters: ":   func(x *cgotorch.Exec) { sgd(x, optim.SGDOptions{}) },
		"a learning rate of":          func(x *cgotorch.Exec) { sgd(x, optim.SGDOptions{LR: -1}, leaf(x)) },
		"a weight decay of":           func(x *cgotorch.Exec) { sgd(x, optim.SGDOptions{WeightDecay: math.NaN()}, leaf(x)) },
		"optim: sgd: a momentum":      func(x *cgotorch.Exec) { sgd(x, optim.SGDOptions{Momentum: -1}, leaf(x)) },
		"optim: sgd: a dampening":     func(x *cgotorch.Exec) { sgd(x, optim.SGDOptions{Dampening: math.NaN()}, leaf(x)) },
		"optim: sgd: Nesterov":        func(x *cgotorch.Exec) { sgd(x, optim.SGDOptions{Nesterov: true}, leaf(x)) },
		"group …: parameter … is …":   func(x *cgotorch.Exec) { sgd(x, optim.SGDOptions{}, nil) },
		"group …: parameter … is …: ": func(x *cgotorch.Exec) { sgd(x, optim.SGDOptions{}, x.Ones(i64, 2)) },
		"group …: parameter … (…) is in": func(x *cgotorch.Exec) {
			w := leaf(x)
			sgd(x, optim.SGDOptions{}, w, w)
		},
		"group …: parameter … (…) is the": func(x *cgotorch.Exec) { sgd(x, optim.SGDOptions{}, x.Exp(leaf(x))) },
		"… is …; it must be a number":     func(*cgotorch.Exec) { optim.StepDecay(0, 1) },
		"schedule … is nil":               func(*cgotorch.Exec) { optim.Product(nil) },
		"there are … milestones":          func(*cgotorch.Exec) { optim.Sequential([]int{3}, optim.Constant()) },
		"the milestones": func(*cgotorch.Exec) {
			optim.Sequential([]int{3, 1}, optim.Constant(), optim.Constant(), optim.Constant())
		},
		"Rise is": func(*cgotorch.Exec) { optim.OneCycle(9, optim.OneCycleOptions{Rise: 2}) },
	},
	"cgotorch/images": {
		"mean … and standard":    func(x *cgotorch.Exec) { images.NormalizationTable(x, []float64{0}, []float64{0}, f32) },
		"a standard deviation":   func(x *cgotorch.Exec) { images.NormalizationTable(x, []float64{0}, []float64{-1}, f32) },
		"both are in units":      func(x *cgotorch.Exec) { images.NormalizationTable(x, []float64{123}, []float64{58}, f32) },
		"… means and … standard": func(x *cgotorch.Exec) { images.NormalizationTable(x, nil, nil, f32) },
	},
	"cgotorch/vision": {
		"pixels must be":         func(x *cgotorch.Exec) { vision.Normalize(x, x.Ones(f32, 2), vision.ImageNetMean, vision.ImageNetStd) },
		"pixels are nil":         func(x *cgotorch.Exec) { vision.Normalize(x, nil, vision.ImageNetMean, vision.ImageNetStd) },
		"vision: no model is na": func(x *cgotorch.Exec) { _, err := vision.New(x, "resnet19", vision.Options{}); failWith(x, err) },
	},
}

func leaf(x *cgotorch.Exec) *tensor {
	v := x.Ones(f32, 2, 2)
	failWith(x, v.SetRequiresGrad(true))
	return v
}

func failWith(x *cgotorch.Exec, err error) {
	if err != nil {
		x.Fail("test", err)
	}
}

func load(x *cgotorch.Exec, o nn.LoadOptions) error {
	return nn.Load(x, &nn.Linear{Weight: x.Ones(f32, 2, 2)}, map[string]*tensor{"a": x.Ones(f32, 2), "b": x.Ones(f32, 2)}, o)
}

func sgd(x *cgotorch.Exec, o optim.SGDOptions, params ...*tensor) {
	_, err := optim.NewSGD(o, optim.Group{Params: params})
	failWith(x, err)
}

// others are mistakes outside of a Do.
var others = map[string]map[string]func() error{
	"cgotorch": {
		"n is …; an operator": func() error { return cgotorch.SetThreads(1 << 40) },
		"the state is empty":  func() error { return cgotorch.SetGeneratorState(cgotorch.CPU, nil) },
		"… is no device":      func() error { _, err := cgotorch.ParseDevice("gpu"); return err },
		"fn is nil": func() error {
			_, err := cgotorch.NewInference(cgotorch.CPU, nil, cgotorch.InferenceOptions{})
			return err
		},
		"Streams is":   func() error { _, err := inference(cgotorch.InferenceOptions{Streams: 1 << 40}); return err },
		"BatchSizes …": func() error { _, err := inference(cgotorch.InferenceOptions{BatchSizes: []int{0}}); return err },
		"the stream is closed": func() error {
			s, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
			if err != nil {
				return err
			}
			s.Close()
			return s.Do(func(*cgotorch.Exec) error { return nil })
		},
		"it is closed": func() error {
			f, err := inference(cgotorch.InferenceOptions{Streams: 1})
			if err != nil {
				return err
			}
			f.Close()
			return f.Do(context.Background(), func(*cgotorch.Exec, func(*tensor) *tensor) error { return nil })
		},
		"called inside a Do, which would wait for itself: call `": func() error {
			f, err := inference(cgotorch.InferenceOptions{Streams: 1})
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Do(context.Background(), func(*cgotorch.Exec, func(*tensor) *tensor) error {
				return f.Do(context.Background(), func(*cgotorch.Exec, func(*tensor) *tensor) error { return nil })
			})
		},
	},
	"cgotorch/data": {
		"data: NewLoader: the":       func() error { return epoch(data.NewLoader(nil, data.Options{})) },
		"data: NewStreamLoader: the": func() error { return epoch(data.NewStreamLoader(nil, data.Options{})) },
		"data: … has no samples":     func() error { return epoch(csv("a\n", data.CSVOptions{}, data.Options{})) },
		"data: … has … samples, few": func() error { return epoch(loaderOf(data.Options{BatchSize: 9, DropLast: true})) },
		"data: … has fewer samples":  func() error { return epoch(loaderOf(data.Options{Ranks: 9, DropRest: true})) },
		"data: …: the first row":     func() error { return epoch(csv("1\n2\n", data.CSVOptions{}, data.Options{})) },
		"data: … has no column":      func() error { return epoch(csv("a\n2\n", data.CSVOptions{Fields: fields("x")}, data.Options{})) },
		"data: … has … columns":      func() error { return epoch(csv("a\n2\n", data.CSVOptions{Names: []string{"a", "b"}}, data.Options{})) },
		"data: CSVOptions.Comma":     func() error { return epoch(csv("a\n2\n", data.CSVOptions{Comma: '"'}, data.Options{})) },
		"data: CSVOptions.MaxRow":    func() error { return epoch(csv("a\n2\n", data.CSVOptions{MaxRow: -1}, data.Options{})) },
		"it has … columns, want":     func() error { return epoch(csv("a,b\n2\n", data.CSVOptions{}, data.Options{})) },
		"… is no …": func() error {
			return epoch(csv("x\nred\n", data.CSVOptions{Fields: fields("x")}, data.Options{}))
		},
		"data: Options.Workers":    func() error { return epoch(loaderOf(data.Options{Workers: 1025})) },
		"data: Options.… is":       func() error { return epoch(loaderOf(data.Options{BatchSize: -1})) },
		"data: Options.Rank is":    func() error { return epoch(loaderOf(data.Options{Rank: 3})) },
		"data: Options.Fields has": func() error { return epoch(loaderOf(data.Options{Fields: fields("z")})) },
		"data: Options.Pad names":  func() error { return epoch(loaderOf(data.Options{Pad: map[string]data.Pad{"x": {}}})) },
		"data: the sample has no": func() error {
			return epoch(loaderOf(data.Options{Map: func(data.Sample) (data.Sample, error) { return nil, nil }}))
		},
		"data: there are no fields": func() error { _, err := data.NewTable(); return err },
		"data: two fields have":     func() error { _, err := data.NewTable(data.Of("x", []int64{1}), data.Of("x", []int64{1})); return err },
		"data: column … has … sampl": func() error {
			_, err := data.NewTable(data.Of("x", []int64{1}), data.Of("y", []int64{1, 2}))
			return err
		},
		"a field needs a name":       func() error { _, err := data.NewTable(data.Of("", []int64{1})); return err },
		"data: …: the function `sam": func() error { _, err := data.NewSequence("made", fields("x"), nil); return err },
		"data: …: the function `ope": func() error { _, err := data.NewCSV("made", nil, data.CSVOptions{}); return err },
	},
	"prefetcher": {
		"prefetcher: New: the sou": func() error { _, err := prefetcher.New(nil, cgotorch.CPU, prefetcher.Options{}); return err },
		"prefetcher: NewTensors: t": func() error {
			_, err := prefetcher.NewTensors(nil, cgotorch.CPU, prefetcher.TensorOptions{})
			return err
		},
		"prefetcher: … is …; it mu": func() error { return ahead(prefetcher.Options{Depth: -1}) },
		"DType is":                  func() error { return ahead(prefetcher.Options{DType: i64}) },
		"Mean is … and Std":         func() error { return ahead(prefetcher.Options{Mean: []float64{120}}) },
		"prefetcher: Options.… has": func() error { return ahead(prefetcher.Options{Mean: []float64{0, 1}}) },
		"VerticalFlip is":           func() error { return ahead(prefetcher.Options{VerticalFlip: 2}) },
		"AutoAugment, RandAugment": func() error {
			return ahead(prefetcher.Options{AutoAugment: prefetcher.AutoAugmentCIFAR10, TrivialAugmentWide: true})
		},
		"ColorJitter is":            func() error { return ahead(prefetcher.Options{ColorJitter: prefetcher.ColorJitter{Hue: 1}}) },
		"MixUp.Alpha is":            func() error { return ahead(prefetcher.Options{MixUp: prefetcher.MixUp{Alpha: -1}}) },
		"Classes is":                func() error { return ahead(prefetcher.Options{MixUp: prefetcher.MixUp{Alpha: 1}}) },
		"prefetcher: the source, a": func() error { return ahead(prefetcher.Options{}) },
	},
}

func inference(o cgotorch.InferenceOptions) (*cgotorch.Inference, error) {
	return cgotorch.NewInference(cgotorch.CPU, func(x *cgotorch.Exec, in *tensor) *tensor { return x.Alias(in) }, o)
}

func fields(name string) []data.Field { return []data.Field{{Name: name, DType: f32}} }

func loaderOf(o data.Options) (*data.Loader, error) {
	t, err := data.NewTable(data.Of("x", []int64{1, 2, 3}))
	if err != nil {
		return nil, err
	}
	return data.NewLoader(t, o)
}

func csv(text string, o data.CSVOptions, l data.Options) (*data.Loader, error) {
	c, err := data.NewCSV("t.csv", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }, o)
	if err != nil {
		return nil, err
	}
	return data.NewStreamLoader(c, l)
}

func epoch(l *data.Loader, err error) error {
	if err != nil {
		return err
	}
	defer l.Close()
	for b, err := range l.Epoch(context.Background()) {
		if err != nil {
			return err
		}
		b.Release()
	}
	return nil
}

// nilImages is a source that yields a nil batch.
type nilImages struct{}

func (nilImages) Shape() (batch, height, width, channels int) { return 1, 2, 2, 1 }
func (nilImages) Pin(imageloader.Pinner) error                { return nil }
func (nilImages) Epoch(context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(yield func(*imageloader.HostBatch, error) bool) { yield(nil, nil) }
}

func ahead(o prefetcher.Options) error {
	p, err := prefetcher.New(nilImages{}, cgotorch.CPU, o)
	if err != nil {
		return err
	}
	defer p.Close()
	for _, err := range p.Epoch(context.Background()) {
		return err
	}
	return nil
}

// pattern matches the errors that a text of the page stands for.
func pattern(text string) *regexp.Regexp {
	parts := strings.Split(text, "…")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(regexp.QuoteMeta(p), " ", `\s+`)
	}
	return regexp.MustCompile("(?s)" + strings.Join(parts, ".*"))
}

// Each mistake ends in an error with the text of the page, or of LibTorch with the page's cure. It
// has at most 400 characters besides the place and the shapes.
func TestMistakes(t *testing.T) {
	torchtest.CheckLeaks(t)
	rows, count := rowsOf(t), 0
	check := func(dir, begins string, err error) {
		count++
		var e *cgotorch.Error
		switch text := fmt.Sprint(err); {
		case err == nil:
			t.Errorf("%s: %q: no error", dir, begins)
			return
		case errors.As(err, &e) && len(e.Message) > 400 || e == nil && len(text) > 400:
			t.Errorf("%s: %q: %d characters: %v", dir, begins, len(text), err)
		}
		known := false
		for _, r := range rows[dir] {
			if !strings.HasPrefix(r.text, begins) {
				continue
			}
			known = true
			if strings.HasPrefix(r.text, "…") && r.cause == "LibTorch refuses the arguments" {
				if strings.Contains(err.Error(), r.cure) {
					return
				}
			} else if pattern(r.text).MatchString(err.Error()) {
				return
			}
		}
		t.Errorf("%s: %q is in the page: %v; the error is %v", dir, begins, known, err)
	}
	inDo, outside := maps.Clone(mistakes), maps.Clone(others)
	maps.Copy(inDo, modelMistakes)
	maps.Copy(outside, fileMistakes)
	for dir, calls := range inDo {
		for begins, call := range calls {
			s, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
			if err != nil {
				t.Fatal(err)
			}
			err = func() (err error) {
				defer func() {
					if v := recover(); v != nil {
						err, _ = v.(error)
					}
				}()
				return s.Do(func(x *cgotorch.Exec) error { call(x); return nil })
			}()
			check(dir, begins, err)
			s.Close()
		}
	}
	for dir, calls := range outside {
		for begins, call := range calls {
			check(dir, begins, call())
		}
	}
	if count < 380 {
		t.Errorf("only %d mistakes", count)
	}
}
