package nn

import (
	"fmt"
	"reflect"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Fusing]
//
// Fuse is no method of Sequential. A type that embeds a Sequential and has a Forward of its own
// would inherit the method. For the same reason a type that embeds a Fusible is copied unfused.
//
// Everything that Fuse makes belongs to the Do until the model is whole. Then what State sees of
// the model is kept, so a failure leaves nothing. A tensor that is also the original's is
// refused. Merged 1x1 convolutions run before the fork. The branches read cuts of the result,
// which a following convolution copies once.

// FuseOptions choose what [Fuse] merges, and where it reports.
type FuseOptions struct {
	// Merge makes one convolution of the 1x1 convolutions with which branches of a [Parallel] begin.
	// The input is then read once. Each branch that goes on with a convolution pays for a copy, since
	// its channels of the merged result are strided. GoogLeNet and Inception-v3 became slower by it on
	// an H200, at batch 1 and 8, with branches serial and parallel.
	Merge bool
	Log   func(text string) // is told of modules that Fuse does not look into; nil for nobody
}

// Fuse returns a model for inference with fewer operators, whose results equal m's in evaluation
// mode up to rounding. It folds batch norms into the convolution before them. ReLUs and the sum of
// a [Residual] become part of the convolution's operator where cuDNN has it. Identities, dropouts
// and modules that only training runs, such as auxiliary heads, are left out. Weights are folded in
// float64 and rounded once to the convolution's dtype. Device and memory format stay.
//
// Fuse looks into Sequential, Parallel, Residual and every [Fusible], such as all models of package
// vision. Other modules are copied unchanged, and Log is told of those from other packages. A
// module without tensors and modes, such as a [Func], is shared. Batch norms that follow no
// convolution, or have no running statistics, are copied too.
//
// The result owns its tensors, under other names in [State] than m's; [Close] frees them. m is not
// changed, and may be closed or trained. Forward of the result runs as in [cgotorch.Exec.NoGrad].
// The result has no training mode.
//
// Fuse fails with [cgotorch.ErrInvalidArgument] where a module is in training mode, and with the
// error of [Check]. It also fails where unexported fields keep a module from being copied.
func Fuse(x *cgotorch.Exec, m Module, o FuseOptions) Module {
	const where = "nn.Fuse"
	if absent(m) {
		refuse(x, where, "there is no module")
	}
	if err := Check(m); err != nil {
		x.Fail(where, err)
	}
	original := map[*cgotorch.Tensor]bool{}
	walk(m, func(v reflect.Value, own []heldTensor) {
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

// fused is a whole fused model.
type fused struct{ Model Module }

// Children implements [Container].
func (m *fused) Children() []Child { return []Child{{Module: m.Model}} }

// Forward records nothing for backward, since a record of some parts alone would give wrong
// gradients.
func (m *fused) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.Model.Forward(x.NoGrad(), in)
}

// Fusible is implemented by modules that tell [Fuse] how to fuse them. Most compute one module
// after another, and list these:
//
//	func (n *Net) Fuse(x *cgotorch.Exec, f *nn.Fusion) nn.Module {
//		return f.Fuse(x, n.Conv1, n.BN1, &nn.ReLU{}, &nn.AdaptiveAvgPool2d{}, &nn.Flatten{}, n.FC)
//	}
//
// Others return a struct of their own, made of results of f.Fuse and f.Copy.
type Fusible interface {
	Module

	// Fuse returns a module with the results of this module in evaluation mode. It changes nothing, and
	// the result holds no tensor of this module. A module without tensors and modes may return itself.
	//
	// Fuse is not called on a type that embeds a Fusible. The method could be the embedded type's,
	// which does not know the outer Forward. Give that field a name.
	Fuse(x *cgotorch.Exec, f *Fusion) Module
}

// Fusion is a call of [Fuse] in progress, handed to every [Fusible].
type Fusion struct {
	o      FuseOptions
	copies map[*cgotorch.Tensor]*cgotorch.Tensor
	within map[Module]bool // modules whose Fuse is running
}

// Fuse returns the fused form of modules that run one after another. It passes over nil modules.
func (f *Fusion) Fuse(x *cgotorch.Exec, modules ...Module) Module {
	return sequence(f.chain(x, modules...))
}

// Copy returns the fused model's copy of t: for the same t the same copy. A nil t gives nil.
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

// sequence makes one module of modules that run one after another.
func sequence(modules []Module) Module {
	switch len(modules) {
	case 0:
		return &Identity{}
	case 1:
		return modules[0]
	}
	return NewSequential(modules...)
}

// unrolled appends m to a list of modules that run one after another. It appends the modules of a
// Sequential, and nothing for modules without effect in evaluation.
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

// chain returns the fused modules before Fuse joins them.
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

// append appends the fused form of m. An activation joins the convolution before it.
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

// with returns m with an activation, on the same tensors.
func (m *fusedConv2d) with(x *cgotorch.Exec, a activation) *fusedConv2d {
	c := &fusedConv2d{Conv2d: m.Conv2d, Activation: a}
	if a == activateReLU && c.Bias == nil { // the operator would otherwise make one each time
		c.Bias = x.To(x.Zeros(cgotorch.Float32, m.Weight.Shape()[0]), m.Weight.DType())
	}
	return c
}

// foldable reports whether norm has running statistics, and whether these fit the convolution.
func foldable(conv *Conv2d, norm *BatchNorm2d) bool {
	return norm.RunningMean != nil && norm.RunningVar != nil && norm.RunningMean.Numel() == conv.Weight.Shape()[0]
}

// conv folds norms, in their order, into a convolution.
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

// factor returns the factor of each channel in evaluation, in float64.
func (m *BatchNorm2d) factor(x *cgotorch.Exec) *cgotorch.Tensor {
	factor := x.Rsqrt(x.AddScalar(x.To(m.RunningVar, cgotorch.Float64), m.Eps.Or(1e-5)))
	if m.Weight != nil {
		factor = x.Mul(factor, x.To(m.Weight, cgotorch.Float64))
	}
	return factor
}

// module returns the fused form of a module that is no convolution.
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

// modeOf reports whether a module's struct has modes, and whether all of them are evaluation.
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
