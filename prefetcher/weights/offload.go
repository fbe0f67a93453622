package weights

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// OffloadOptions are the options of [NewOffload].
type OffloadOptions struct {
	UnitBytes int64 // a unit takes parameters until their state has this many bytes; 0 means 64 MiB
	Slots     int   // slots on the device; 0 means 3: for a unit copied in, a unit stepped and a unit copied back
}

// Offload is an optimizer whose state lies in host memory. The state of some parameters is a
// unit. A step copies the state to the device unit by unit, and copies it back. While one unit is
// stepped, the next unit is copied. The parameters and their gradients stay on the device. One
// goroutine at a time may use an Offload.
//
// A checkpoint of the optimizer holds the state, until the Offload is closed. To resume, make the
// Offload first and then load the checkpoint into the optimizer. Step does not work with a Scaler.
type Offload struct {
	opt   *optim.Optimizer
	store *Store
	cache *Cache[*stateTensors]
	units []stateUnit
	rows  map[rowKey]row // where the tensors of the state lie
}

// rowKey is a tensor of the state: the index of its parameter, and its name.
type rowKey struct {
	param int
	name  string
}

// A row is the place of a tensor: its unit, and its index in the unit.
type row struct {
	unit  string
	index int
}

// stateTensors is the module of a slot. Its tensors hold the state of a unit's parameters, in the
// order of stateUnit.specs. Each tensor has one dimension.
type stateTensors struct {
	Row []*cgotorch.Tensor
}

// stateUnit is some consecutive parameters, whose state is one unit of the store.
type stateUnit struct {
	name   string
	params []int
	specs  []optim.RememberedTensor // in the order of the rows
}

// NewOffload makes host memory for the state of opt, page-locked for a CUDA device. All
// parameters must lie on the device, and opt must not have stepped yet. opt stays the caller's.
// The caller calls Step of the Offload in place of opt's, and closes the Offload before opt.
//
// NewOffload fails with [ErrInvalidOptions] for options that are not valid, and with
// [cgotorch.ErrOutOfMemory] if memory is short. It fails with [cgotorch.ErrInvalidArgument] if a
// parameter does not lie on `device`, or has gaps between its elements. It fails with the same
// error for an optimizer without state.
func NewOffload(opt *optim.Optimizer, device cgotorch.Device, o OffloadOptions) (*Offload, error) {
	if o.UnitBytes < 0 || o.Slots < 0 {
		return nil, fmt.Errorf("weights: OffloadOptions: UnitBytes is %d and Slots %d; they must not be negative: %w", o.UnitBytes, o.Slots, ErrInvalidOptions)
	}
	if o.UnitBytes == 0 {
		o.UnitBytes = 64 << 20
	}
	if o.Slots == 0 {
		o.Slots = 3
	}
	f := &Offload{opt: opt, rows: map[rowKey]row{}}
	specs, err := f.cut(device, o.UnitBytes)
	if err != nil {
		return nil, err
	}
	if f.store, err = NewStore(specs); err != nil {
		return nil, err
	}
	build := func(x *cgotorch.Exec, name string) (*stateTensors, error) {
		unit, err := f.store.lookup(name)
		if err != nil {
			return nil, err
		}
		m := &stateTensors{}
		for _, t := range unit.layout.tensors {
			m.Row = append(m.Row, x.Keep(x.Empty(t.DType, t.Shape...)))
		}
		return m, nil
	}
	f.cache, err = NewCache(f.store, device, build, CacheOptions{Policy: NextLayer, Slots: min(o.Slots, len(f.units))})
	if err == nil {
		err = f.cache.Check()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	opt.SetLender(f.lend)
	return f, nil
}

// cut divides the parameters among units, notes the units in f.units, and returns their specs.
func (f *Offload) cut(device cgotorch.Device, most int64) ([]UnitSpec, error) {
	params := f.opt.Params()
	var units []UnitSpec
	var bytes int64
	last := -1
	for _, s := range f.opt.Remembers() {
		p := params[s.Param]
		if p.Device() != device {
			return nil, fmt.Errorf("weights: Offload: parameter %d lies on %v, and the device is %v: %w", s.Param, p.Device(), device, cgotorch.ErrInvalidArgument)
		}
		if p.Numel() == 0 {
			continue
		}
		if !dense(p.Shape(), p.Strides()) {
			return nil, fmt.Errorf("weights: Offload: parameter %d has gaps between its elements (strides %v of %v): make it contiguous: %w", s.Param, p.Strides(), p.Shape(), cgotorch.ErrInvalidArgument)
		}
		if s.Param != last && (len(units) == 0 || bytes >= most) {
			name := fmt.Sprintf("state %d", len(units))
			units = append(units, UnitSpec{Name: name})
			f.units = append(f.units, stateUnit{name: name})
			bytes = 0
		}
		unit, spec := &f.units[len(f.units)-1], &units[len(units)-1]
		if s.Param != last {
			unit.params = append(unit.params, s.Param)
			last = s.Param
		}
		spec.Tensors = append(spec.Tensors, TensorSpec{Name: fmt.Sprintf("row.%d", len(unit.specs)), DType: s.DType, Shape: []int64{p.Numel()}})
		f.rows[rowKey{s.Param, s.Name}] = row{unit.name, len(unit.specs)}
		unit.specs = append(unit.specs, s)
		bytes += p.Numel() * int64(s.DType.Size())
	}
	if len(units) == 0 {
		return nil, fmt.Errorf("weights: Offload: the optimizer remembers nothing between steps: %w", cgotorch.ErrInvalidArgument)
	}
	return units, nil
}

// Step makes one step of the optimizer, unit by unit. The results equal those of
// [optim.Optimizer.Step]. Step does not wait for the device. It fails with the errors of
// Optimizer.Step and of [Cache.Use]. The units before a failure have been stepped.
func (f *Offload) Step(x *cgotorch.Exec) {
	x = x.NoGrad().NoAutocast()
	params := f.opt.Params()
	for _, unit := range f.units {
		u := f.cache.useToChange(x, unit.name)
		x.Tidy(func() *cgotorch.Tensor {
			f.opt.StepParams(x, unit.params, func(of optim.RememberedTensor) *cgotorch.Tensor {
				return like(x, u.Module.Row[f.rows[rowKey{of.Param, of.Name}].index], params[of.Param])
			})
			return nil
		})
		u.releaseChanged(x)
	}
}

// lend is the [optim.Lender] of the optimizer.
func (f *Offload) lend(x *cgotorch.Exec, of optim.RememberedTensor, write bool, use func(t *cgotorch.Tensor)) {
	at, ok := f.rows[rowKey{of.Param, of.Name}]
	if !ok {
		x.Fail("weights.Offload", fmt.Errorf("weights: Offload: parameter %d has no %s: %w", of.Param, of.Name, cgotorch.ErrInvalidArgument))
	}
	x = x.NoGrad().NoAutocast()
	take, release := f.cache.Use, (*Use[*stateTensors]).Release
	if write {
		take, release = f.cache.useToChange, (*Use[*stateTensors]).releaseChanged
	}
	u := take(x, at.unit)
	t := like(x, u.Module.Row[at.index], f.opt.Params()[of.Param])
	use(t)
	t.Close()
	release(u, x)
}

// like returns a view of a row with the shape and the strides of a parameter.
func like(x *cgotorch.Exec, row, p *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::as_strided", row, p.Shape(), p.Strides(), nil)
}

// Stats returns the counts of the copies so far.
func (f *Offload) Stats() CacheStats { return f.cache.Stats() }

// Close waits for the copies that still run. It then frees the host memory, and the state with
// it. The optimizer stays the caller's. A second Close does nothing.
func (f *Offload) Close() error {
	if f == nil {
		return nil
	}
	var errs []error
	f.opt.SetLender(nil)
	if f.cache != nil {
		errs = append(errs, f.cache.Close())
	}
	return errors.Join(append(errs, f.store.Close())...)
}

// dense reports whether a tensor's elements lie without gaps, for some order of its dimensions.
func dense(shape, strides []int64) bool {
	dims := make([]int, 0, len(shape))
	for i, n := range shape {
		if n != 1 {
			dims = append(dims, i)
		}
	}
	slices.SortFunc(dims, func(a, b int) int { return cmp.Compare(strides[a], strides[b]) })
	next := int64(1)
	for _, i := range dims {
		if strides[i] != next {
			return false
		}
		next *= shape[i]
	}
	return true
}
