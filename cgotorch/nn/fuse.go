package nn

import (
	"fmt"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Fusing]
//
// Fuse is a function and not a method of Sequential. Otherwise a type that embeds a Sequential
// would inherit the method, even if the type has a Forward of its own. For the same reason a type
// that embeds a Fusible is copied and not fused.
//
// Everything that Fuse makes belongs to the Do until the fused model is finished. Then Fuse keeps
// the tensors that State sees in the fused model, so a failure leaves no tensor open. Fuse fails
// if the fused model holds a tensor of the original. In a Parallel, a merged 1x1 convolution runs
// before the branches fork. Each branch that took part in the merge reads a range of channels
// from the merged result. If the branch goes on with a convolution, that convolution copies the
// range once.

// FuseOptions choose what [Fuse] merges, and where Fuse reports.
type FuseOptions struct {
	// If several branches of a [Parallel] begin with 1x1 convolutions, Merge makes one convolution of
	// these. The merged convolution reads the input once. Each branch that continues with a
	// convolution needs a copy, because its channels of the merged result are strided. On an H200,
	// Merge made GoogLeNet and Inception-v3 slower. This was so at batch 1 and at batch 8, with
	// serial branches and with parallel branches.
	Merge bool
	Log   func(text string) // is called for modules that Fuse does not look into; nil means no calls
}

// Fuse returns a model for inference with fewer operators than m. Its results equal the results
// of m in evaluation mode, up to rounding. Fuse folds a batch norm into the convolution before
// it. A ReLU and the sum of a [Residual] become part of the convolution's operator, if cuDNN has
// an operator that does all of this. Identities and dropouts are left out, and so are modules
// that only training runs, such as auxiliary heads. Weights are folded in float64 and rounded
// once to the convolution's dtype. Device and memory format stay the same.
//
// Fuse looks into Sequential, Parallel, Residual and every [Fusible]. All models of package
// vision are Fusible. Fuse copies all other modules unchanged. It calls Log for a [Func], and for
// a module of a package other than nn. Fuse also copies batch norms that follow no convolution or
// have no running statistics. A module without tensors and without a field Eval, such as a Func,
// is not copied but shared.
//
// The result owns its tensors. [Close] frees them. Their names in [State] differ from those of m.
// m is not changed, and may be closed or trained. Forward of the result runs without recording,
// as with [cgotorch.Exec.NoGrad]. The result has no training mode.
//
// Fuse fails with [cgotorch.ErrInvalidArgument] if a module is in training mode, or if a module
// cannot be copied because of an unexported field. It fails with the error of [Check] for m and
// for the result.
func Fuse(x *cgotorch.Exec, m Module, o FuseOptions) Module {
	const where = "nn.Fuse"
	if absent(m) {
		refuse(x, where, "there is no module")
	}
	if err := Check(m); err != nil {
		x.Fail(where, err)
	}
	original := map[*cgotorch.Tensor]bool{}
	_ = walk(m, func(v reflect.Value, own []heldTensor) { // Check has told its error
		if eval, ok := modeOf(v); ok && !eval {
			refuse(x, where, "%v is in training mode: call nn.SetTraining(m, false) first", v.Type())
		}
		for _, s := range own {
			original[s.Tensor] = true
		}
	})
	x = x.NoGrad().NoAutocast()
	f := &Fusion{o: o, copies: map[*cgotorch.Tensor]*cgotorch.Tensor{}, within: map[Module]bool{}}
	out := &fused{f.Fuse(x, m)}
	if err := Check(out.Model); err != nil {
		x.Fail(where, err)
	}
	state := State(out)
	for _, n := range state {
		if original[n.Tensor] {
			refuse(x, where, "%s of the fused model is a tensor of the original's: the Fuse of what holds it is to use Fusion's Fuse and Copy", n.Name)
		}
	}
	for _, n := range state {
		x.Keep(n.Tensor)
	}
	return out
}

// fused is a complete fused model.
type fused struct{ Model Module }

// Children returns the model, without a name. It implements [Container].
func (m *fused) Children() []Child { return []Child{{Module: m.Model}} }

// Forward records nothing for backward, because only some parts of a fused model could record.
// Backward through these parts alone would give wrong gradients.
func (m *fused) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.Model.Forward(x.NoGrad(), in)
}

// Fusible is implemented by modules that tell [Fuse] how to fuse them. Most modules run a list of
// modules one after another, and give this list to f.Fuse:
//
//	func (n *Net) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
//		return f.Fuse(x, n.Conv1, n.BN1, &nn.ReLU{}, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, n.FC)
//	}
//
// Other modules return a new struct that consists of results of f.Fuse and f.Copy.
type Fusible interface {
	Module

	// Fuse returns a module with the results of this module in evaluation mode. It changes nothing.
	// The returned module holds no tensor of this module. A module without tensors and without a
	// field Eval may return itself.
	//
	// Fuse is not called on a type that embeds a Fusible. That type might have the method Fuse only
	// from the embedded field, and the embedded field does not know the Forward of the outer type. Do
	// not embed the Fusible: give its field a name.
	Fuse(x *cgotorch.Exec, f *Fusion) Module
}

// Fusion is the state of one call of [Fuse]. Every [Fusible] gets it.
type Fusion struct {
	o      FuseOptions
	copies map[*cgotorch.Tensor]*cgotorch.Tensor
	within map[Module]bool // modules whose method Fuse is running
}

// Fuse returns the fused form of modules that run one after another. It skips nil modules.
func (f *Fusion) Fuse(x *cgotorch.Exec, modules ...Module) Module {
	return sequence(f.chain(x, modules...))
}

// Copy returns the fused model's copy of t. Each call with the same t returns the same copy. For
// a nil t it returns nil.
func (f *Fusion) Copy(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	if t == nil {
		return nil
	}
	c, ok := f.copies[t]
	if !ok {
		c = x.NoGrad().Clone(t)
		f.copies[t] = c
	}
	return c
}

// sequence returns one module that runs modules one after another.
func sequence(modules []Module) Module {
	switch len(modules) {
	case 0:
		return &Identity{}
	case 1:
		return modules[0]
	}
	return NewSequential(modules...)
}

// unrolled appends m to a list of modules that run one after another. For a Sequential it appends
// the modules inside. For a module without effect in evaluation it appends nothing.
func unrolled(list []Module, m Module) []Module {
	if absent(m) {
		return list
	}
	switch m := m.(type) {
	case *Identity, *Dropout, *Dropout1d, *Dropout2d, *Dropout3d, *AlphaDropout, *FeatureAlphaDropout:
		return list
	case *Sequential:
		for _, c := range m.Modules {
			list = unrolled(list, c.Module)
		}
		return list
	case *fused:
		return unrolled(list, m.Model)
	}
	return append(list, m)
}

// chain returns the fused forms of modules that run one after another, as a list.
func (f *Fusion) chain(x *cgotorch.Exec, modules ...Module) []Module {
	var list, out []Module
	for _, m := range modules {
		list = unrolled(list, m)
	}
	for i := 0; i < len(list); i++ {
		conv, ok := list[i].(*Conv2d)
		if !ok {
			out = f.append(x, out, list[i])
			continue
		}
		var norms []*BatchNorm2d
		for ; i+1 < len(list); i++ {
			norm, ok := list[i+1].(*BatchNorm2d)
			if !ok || !foldable(conv, norm) {
				break
			}
			norms = append(norms, norm)
		}
		out = append(out, f.conv(x, conv, norms))
	}
	return out
}

// append appends the fused form of m to `out`. If m is an activation and `out` ends in a
// convolution without activation, the two become one module.
func (f *Fusion) append(x *cgotorch.Exec, out []Module, m Module) []Module {
	if a := activationOf(m); a != noActivation && len(out) > 0 {
		if conv, ok := out[len(out)-1].(*fusedConv2d); ok && conv.Activation == noActivation {
			out[len(out)-1] = conv.with(x, a)
			return out
		}
	}
	return unrolled(out, f.module(x, m))
}

func activationOf(m Module) activation {
	switch m.(type) {
	case *ReLU:
		return activateReLU
	case *ReLU6:
		return activateReLU6
	}
	return noActivation
}

// with returns a convolution that has the tensors of m and the activation a.
func (m *fusedConv2d) with(x *cgotorch.Exec, a activation) *fusedConv2d {
	c := &fusedConv2d{Conv2d: m.Conv2d, Activation: a}
	if a == activateReLU && c.Bias == nil { // without a bias, the operator would make one in each call
		c.Bias = x.To(x.Zeros(cgotorch.Float32, m.Weight.Shape()[0]), m.Weight.DType())
	}
	return c
}

// foldable reports whether the batch norm has running statistics, with one value for each output
// channel of the convolution.
func foldable(conv *Conv2d, norm *BatchNorm2d) bool {
	return norm.RunningMean != nil && norm.RunningVar != nil && norm.RunningMean.Numel() == conv.Weight.Shape()[0]
}

// conv folds the batch norms `norms` into the convolution, in the order of `norms`.
func (f *Fusion) conv(x *cgotorch.Exec, conv *Conv2d, norms []*BatchNorm2d) *fusedConv2d {
	out := &fusedConv2d{Conv2d: Conv2d{Conv2dOptions: conv.Conv2dOptions}}
	if len(norms) == 0 {
		out.Weight, out.Bias = f.Copy(x, conv.Weight), f.Copy(x, conv.Bias)
		return out
	}
	dtype := conv.Weight.DType()
	out.NoBias = false
	out.Weight = x.Tidy(func() *cgotorch.Tensor {
		weight := x.To(conv.Weight, cgotorch.Float64)
		for _, n := range norms {
			weight = x.Mul(weight, x.Reshape(n.factor(x), -1, 1, 1, 1))
		}
		return x.To(weight, dtype)
	})
	out.Bias = x.Tidy(func() *cgotorch.Tensor {
		bias := x.Zeros(cgotorch.Float64, conv.Weight.Shape()[0])
		if conv.Bias != nil {
			bias = x.To(conv.Bias, cgotorch.Float64)
		}
		for _, n := range norms {
			bias = x.Mul(x.Sub(bias, x.To(n.RunningMean, cgotorch.Float64)), n.factor(x))
			if n.Bias != nil {
				bias = x.Add(bias, x.To(n.Bias, cgotorch.Float64))
			}
		}
		return x.To(bias, dtype)
	})
	return out
}

// factor returns the factor by which evaluation multiplies each channel, in float64.
func (m *BatchNorm2d) factor(x *cgotorch.Exec) *cgotorch.Tensor {
	factor := x.Rsqrt(x.AddScalar(x.To(m.RunningVar, cgotorch.Float64), m.Eps.Or(1e-5)))
	if m.Weight != nil {
		factor = x.Mul(factor, x.To(m.Weight, cgotorch.Float64))
	}
	return factor
}

// module returns the fused form of a module that is not a convolution.
func (f *Fusion) module(x *cgotorch.Exec, m Module) Module {
	switch m := m.(type) {
	case *Parallel:
		return f.parallel(x, m)
	case *Residual:
		return f.residual(x, m)
	case Fusible:
		if embedsFusible(m) {
			f.tell("%T embeds a nn.Fusible, and its own Forward may do more: it is copied as it is", m)
			return f.duplicate(x, m)
		}
		return f.ask(x, m)
	}
	if t := reflect.TypeOf(m); packageOf(t, "") != packageOf(moduleType, "") || t.Kind() == reflect.Func {
		f.tell("%T is no nn.Fusible: it stays as it is", m)
	}
	return f.duplicate(x, m)
}

func (f *Fusion) tell(format string, args ...any) {
	if f.o.Log != nil {
		f.o.Log(fmt.Sprintf("nn.Fuse: "+format, args...))
	}
}

func (f *Fusion) ask(x *cgotorch.Exec, m Fusible) Module {
	if reflect.TypeOf(m).Kind() == reflect.Pointer {
		if f.within[m] {
			refuse(x, "nn.Fuse", "the Fuse of %T asks for its own result: fuse its parts", m)
		}
		f.within[m] = true
		defer delete(f.within, m)
	}
	out := m.Fuse(x, f)
	if absent(out) {
		refuse(x, "nn.Fuse", "the Fuse of %T returned nothing", m)
	}
	return out
}

var fusibleType = reflect.TypeFor[Fusible]()

// embedsFusible reports whether m may have its methods from an embedded field.
func embedsFusible(m Module) bool {
	v, ok := structUnder(reflect.ValueOf(m))
	if !ok {
		return false
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous && (f.Type.Implements(fusibleType) || reflect.PointerTo(f.Type).Implements(fusibleType)) {
			return true
		}
	}
	return false
}

// absent reports whether m is nil or a nil pointer.
func absent(m Module) bool {
	v := reflect.ValueOf(m)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// modeOf reports whether a struct, or a struct that it embeds, has a bool field Eval. The result
// `eval` is true if all these fields are true.
func modeOf(v reflect.Value) (eval, ok bool) {
	if v.Kind() != reflect.Struct {
		return false, false
	}
	eval = true
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch value := v.Field(i); {
		case f.Anonymous:
			if embedded, isStruct := structUnder(value); isStruct {
				if e, has := modeOf(embedded); has {
					eval, ok = eval && e, true
				}
			}
		case f.Name == "Eval" && value.Kind() == reflect.Bool:
			eval, ok = eval && value.Bool(), true
		}
	}
	return eval, ok
}
