package nn

import (
	"fmt"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// FuseOptions are the options of [Fuse].
type FuseOptions struct {
	// Merge makes one of the 1x1 convolutions with which several branches of a [Parallel] begin. That saves reading their input again, and
	// costs a copy for each branch that goes on with a convolution, which its part of the result lies scattered for: GoogLeNet and Inception-v3 lost
	// by it on an H200, at batch 1 and 8, on one stream and side by side.
	Merge bool
	Log   func(text string) // is told of modules that Fuse does not look into; nil for nobody
}

// Fuse returns a model for inference that computes what m, in evaluation mode, does, but for rounding, in fewer operators: batch norms are
// part of the convolution before them, ReLUs and the sum of a [Residual] of the one operator (see [FusedConv2d]). Identities and dropouts are left out, and so is what only training runs, such as
// auxiliary heads. Weights are folded in float64 and rounded once, to the convolution's dtype; device and memory format stay.
//
// The result has tensors of its own, which [Close] frees, under other names in [State] than m's; m stays as it is, and may be closed or
// trained on. Its Forward runs as in [cgotorch.Exec.NoGrad]. It has nothing to switch to training.
//
// Fuse looks into Sequential, Parallel, Residual and every [Fusible], which all models of package vision are. Other modules are copied as they
// are, and Log is told so unless they are this package's; one without tensors and modes, such as a [Func], is shared. Batch norms that follow no
// convolution, or have no running statistics, are copied too.
//
// It fails with [cgotorch.ErrInvalidArgument] where a module is in training mode, with the error of [Check], and for a module that cannot be
// copied because of what it holds in unexported fields.
func Fuse(x *cgotorch.Exec, m Module, o FuseOptions) Module {
	const where = "nn.Fuse"
	if absent(m) {
		refuse(x, where, "there is no module")
	}
	if err := Check(m); err != nil {
		x.Fail(where, err)
	}
	original := map[*cgotorch.Tensor]bool{}
	walk(m, func(v reflect.Value, own []slot) {
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

// fused is a fused model as a whole.
type fused struct{ Model Module }

// Children implements [Container].
func (m *fused) Children() []Child { return []Child{{Module: m.Model}} }

// Forward is the model's, and records nothing for backward: parts of it could, which would give wrong gradients.
func (m *fused) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.Model.Forward(x.NoGrad(), in)
}

// Fusible is implemented by modules that say how [Fuse] fuses them. Most compute one module after another, and say so:
//
//	func (n *Net) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
//		return f.Fuse(x, n.Conv1, n.BN1, &nn.ReLU{}, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, n.FC)
//	}
//
// Others return a struct of their own, of parts that f.Fuse and f.Copy made.
type Fusible interface {
	Module

	// Fuse returns a module that computes what this one, in evaluation mode, does. It changes nothing, and what it returns holds none of the
	// module's tensors. A module that has no tensors and no mode may return itself.
	//
	// A type that embeds a Fusible is not asked, since Fuse may be the embedded one's and not know what the outer Forward adds: give that
	// field a name.
	Fuse(x *cgotorch.Exec, f *Fusion) Module
}

// Fusion is one call of [Fuse], for the modules that it asks.
type Fusion struct {
	o      FuseOptions
	copies map[*cgotorch.Tensor]*cgotorch.Tensor
	within map[Module]bool // is being asked
}

// Fuse returns the fused form of modules that run one after another, passing over those without a value.
func (f *Fusion) Fuse(x *cgotorch.Exec, modules ...Module) Module {
	return sequence(f.chain(x, modules...))
}

// Copy returns a copy of t for the fused model, and the same one each time. nil is nil.
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

// sequence is modules one after another as one.
func sequence(modules []Module) Module {
	switch len(modules) {
	case 0:
		return &Identity{}
	case 1:
		return modules[0]
	}
	return NewSequential(modules...)
}

// unrolled appends m to a list of modules that run one after another: of a Sequential its modules, of what evaluation passes over nothing.
func unrolled(list []Module, m Module) []Module {
	if absent(m) {
		return list
	}
	switch m := m.(type) {
	case *Identity, *Dropout:
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

// chain is Fuse before it is one module.
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

// append appends the fused form of m, an activation to the convolution before it.
func (f *Fusion) append(x *cgotorch.Exec, out []Module, m Module) []Module {
	if a := activationOf(m); a != NoActivation && len(out) > 0 {
		if conv, ok := out[len(out)-1].(*FusedConv2d); ok && conv.Activation == NoActivation {
			out[len(out)-1] = conv.with(x, a)
			return out
		}
	}
	return unrolled(out, f.module(x, m))
}

func activationOf(m Module) Activation {
	switch m.(type) {
	case *ReLU:
		return ActivateReLU
	case *ReLU6:
		return ActivateReLU6
	}
	return NoActivation
}

// with is m, on the same tensors, with an activation.
func (m *FusedConv2d) with(x *cgotorch.Exec, a Activation) *FusedConv2d {
	c := &FusedConv2d{Conv2d: m.Conv2d, Activation: a}
	if a == ActivateReLU && c.Bias == nil { // which the operator would make anew each time
		c.Bias = x.To(x.Zeros(cgotorch.Float32, m.Weight.Shape()[0]), m.Weight.DType())
	}
	return c
}

// foldable reports whether norm's statistics are part of the model and fit the convolution.
func foldable(conv *Conv2d, norm *BatchNorm2d) bool {
	return norm.RunningMean != nil && norm.RunningVar != nil && norm.RunningMean.Numel() == conv.Weight.Shape()[0]
}

// conv folds norms, in their order, into a convolution.
func (f *Fusion) conv(x *cgotorch.Exec, conv *Conv2d, norms []*BatchNorm2d) *FusedConv2d {
	out := &FusedConv2d{Conv2d: Conv2d{Conv2dOptions: conv.Conv2dOptions}}
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

// factor is what evaluation multiplies each channel with, in float64.
func (m *BatchNorm2d) factor(x *cgotorch.Exec) *cgotorch.Tensor {
	factor := x.Rsqrt(x.AddScalar(x.To(m.RunningVar, cgotorch.Float64), m.Eps.Or(1e-5)))
	if m.Weight != nil {
		factor = x.Mul(factor, x.To(m.Weight, cgotorch.Float64))
	}
	return factor
}

// module is the fused form of one module that is no convolution.
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

// embedsFusible reports whether the methods of m may be those of a field.
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

// absent reports whether m is nil, or a nil pointer.
func absent(m Module) bool {
	v := reflect.ValueOf(m)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// modeOf reports whether the module of a struct has modes, and whether it is in evaluation in all of them.
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
