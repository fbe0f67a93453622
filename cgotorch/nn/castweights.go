package nn

import (
	"reflect"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// CastWeights casts the weights of m once for a forward with autocast. m is a pointer to a module,
// or a list of modules. Without CastWeights each convolution and each linear layer casts its own
// weights, and backward casts each gradient back: two small kernels for each weight. CastWeights
// casts all of them by one operator, whose backward casts all gradients. The results and the
// gradients have the same bits as without CastWeights.
//
// [Sequential], [Residual], [Parallel] and the models of package vision call CastWeights in
// Forward. Call it in a Forward that you write:
//
//	func (n *Net) Forward(x *cgotorch.Exec, images *cgotorch.Tensor) *cgotorch.Tensor {
//		y, release := nn.CastWeights(x, n)
//		defer release()
//		...
//	}
//
// The layers of this package use the casts if they run with y. They also use the casts with the
// Exec that y.NoGrad or y.WithGrad returns, and with the Exec that y.Parallel gives to a branch. In
// the following cases a layer casts its own weight. Its result is right, but costs the two kernels:
//
//   - the weight has been written or replaced since CastWeights
//   - a layer has used the cast before, with gradients
//   - the layer runs without autocast, or with another dtype
//   - the layer runs on the stream of [cgotorch.Exec.On], or in the second call of a function given
//     to [cgotorch.Exec.Recompute]
//   - `release` has been called
//
// The function `release` frees the casts that backward does not need. CastWeights does not wait.
// It does nothing and returns x itself in three cases: x runs without autocast or without
// gradients, x has casts already, or m has no weights in float32 on x's device.
func CastWeights(x *cgotorch.Exec, m any) (y *cgotorch.Exec, release func()) {
	dtype := x.AutocastDType()
	if dtype == 0 || !x.GradEnabled() {
		return x, func() {}
	}
	if have := castsOf(x); have != nil && have.dtype == dtype && have.of != nil {
		return x, func() {}
	}
	c := weightCollector{device: x.Device(), seen: map[unsafe.Pointer]bool{}, lists: map[place]bool{}, casts: &casts{dtype, map[*cgotorch.Tensor]*cast{}}}
	v, err := rootOf(m)
	if err != nil {
		refuse(x, "nn.CastWeights", "%v", err)
	}
	c.value(v)
	if len(c.weights) == 0 {
		return x, func() {}
	}
	made := x.Call("streamtorch::cast_weights", c.weights, dtype)[0].([]*cgotorch.Tensor)
	for i, w := range c.weights {
		c.casts.of[w].tensor = made[i]
	}
	return inside.Core.With(x, inside.Core.Values(x).With(c.casts, seam.SameOrder)), func() {
		c.casts.of = nil
		for _, t := range made {
			t.Close()
		}
	}
}

// casts are the results of one CastWeights. Only the goroutine of the Do uses them.
type casts struct {
	dtype cgotorch.DType
	of    map[*cgotorch.Tensor]*cast // by weight; nil after release
}

// cast is a weight in another dtype.
type cast struct {
	tensor   *cgotorch.Tensor
	version  int  // of the weight, when it was cast
	trained  bool // whether the weight required a gradient then
	recorded bool // a layer has read the tensor, and backward gives it a gradient
}

func castsOf(x *cgotorch.Exec) *casts {
	c, _ := seam.Find[*casts](inside.Core.Values(x))
	return c
}

// castOf returns the tensor that a layer reads in place of its weight. This is a cast of the
// weight if x has one that fits. Otherwise it is the weight itself, which may be nil.
//
// With gradients, a cast is read only once. If it had two readers, autograd would add their
// gradients in the dtype of the cast, and not in float32.
func castOf(x *cgotorch.Exec, weight *cgotorch.Tensor) *cgotorch.Tensor {
	have := castsOf(x)
	if have == nil || have.dtype != x.AutocastDType() {
		return weight
	}
	c := have.of[weight]
	if c == nil || weight.Closed() || c.tensor.Closed() || c.version != inside.Core.Version(weight) {
		return weight
	}
	if x.GradEnabled() {
		if trained := weight.RequiresGrad(); trained != c.trained || trained && c.recorded {
			return weight
		}
		c.recorded = true
	}
	return c.tensor
}

// weightCollector finds the weights that the layers of a module read. It looks at the fields and
// elements that [State] looks at. A weight that it misses is cast by its layer. It runs in every
// eager forward, so unlike State it makes no names.
type weightCollector struct {
	device  cgotorch.Device
	seen    map[unsafe.Pointer]bool // the pointers that it has followed
	lists   map[place]bool          // the lists that it has looked into
	depth   int                     // of Containers
	weights []*cgotorch.Tensor
	casts   *casts
}

func (c *weightCollector) add(weights ...*cgotorch.Tensor) {
	for _, w := range weights {
		if w == nil || c.casts.of[w] != nil || w.Closed() || w.DType() != cgotorch.Float32 || w.Device() != c.device {
			continue
		}
		c.weights = append(c.weights, w)
		c.casts.of[w] = &cast{version: inside.Core.Version(w), trained: w.RequiresGrad()}
	}
}

func (c *weightCollector) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		c.value(v.Elem())
	case reflect.Pointer:
		if v.IsNil() || c.seen[v.UnsafePointer()] {
			return
		}
		c.seen[v.UnsafePointer()] = true
		c.value(v.Elem())
	case reflect.Slice, reflect.Array:
		if !mayHoldModules(v.Type()) || v.Kind() == reflect.Slice && !first(c.lists, v) {
			return
		}
		for i := range v.Len() {
			c.value(v.Index(i))
		}
	case reflect.Struct:
		if v.CanAddr() && v.CanInterface() && c.layer(v.Addr().Interface()) {
			return
		}
		p := pathsOf(v.Type())
		if p.container {
			if container, ok := containerOf(v); ok {
				c.children(container)
			}
			return
		}
		for _, i := range p.fields {
			c.value(v.Field(i))
		}
	}
}

// layer reports whether m is a module of this package that it knows. If so, it adds the weights of
// m.
func (c *weightCollector) layer(m any) bool {
	switch m := m.(type) {
	case *Conv1d:
		c.add(m.Weight, m.Bias)
	case *Conv2d:
		c.add(m.Weight, m.Bias)
	case *Conv3d:
		c.add(m.Weight, m.Bias)
	case *ConvTranspose1d:
		c.add(m.Weight, m.Bias)
	case *ConvTranspose2d:
		c.add(m.Weight, m.Bias)
	case *ConvTranspose3d:
		c.add(m.Weight, m.Bias)
	case *Linear:
		c.add(m.Weight, m.Bias)
	case *MultiheadAttention:
		c.add(m.InProjWeight, m.QProjWeight, m.KProjWeight, m.VProjWeight, m.InProjBias)
		c.value(reflect.ValueOf(m.OutProj))
	case *Sequential:
		c.children(m)
	case *Parallel:
		c.children(m)
	default:
		return false
	}
	return true
}

func (c *weightCollector) children(of Container) {
	if c.depth++; c.depth > mostDepth {
		return // Check tells of it
	}
	defer func() { c.depth-- }()
	for _, child := range of.Children() {
		c.value(reflect.ValueOf(child.Module))
	}
}

// paths says where the modules inside a struct are.
type paths struct {
	container bool  // in the children of a Container
	fields    []int // otherwise in these fields
}

// knownPaths holds the paths of each type of struct, because reflection is slow.
var knownPaths sync.Map // reflect.Type -> paths

func pathsOf(t reflect.Type) paths {
	if p, ok := knownPaths.Load(t); ok {
		return p.(paths)
	}
	var p paths
	_, p.container = containerOf(reflect.New(t).Elem())
	for i := range t.NumField() {
		f := t.Field(i)
		if stateTag(f) != "-" && (f.Anonymous || f.IsExported()) && mayHoldModules(f.Type) {
			p.fields = append(p.fields, i)
		}
	}
	knownPaths.Store(t, p)
	return p
}

// mayHoldModules reports whether a value of type t may be a module, or have modules as elements.
func mayHoldModules(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Interface, reflect.Struct:
		return true
	case reflect.Pointer:
		return t != tensorType && mayHoldModules(t.Elem())
	case reflect.Slice, reflect.Array:
		return mayHoldModules(t.Elem())
	}
	return false
}
