package nn_test

import (
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func twoLayers(x *cgotorch.Exec) *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(x, 2, 1, nn.LinearOptions{}), nn.NewBatchNorm2d(x, 1, nn.BatchNormOptions{}))
}

// stateFor returns tensors that fit the model of twoLayers. All their values are 5, and some
// tensors have other dtypes than the model.
func stateFor(x *cgotorch.Exec) map[string]*cgotorch.Tensor {
	return map[string]*cgotorch.Tensor{
		"0.weight": x.Full(cgotorch.Float64, 5, 1, 2), "0.bias": x.Full(cgotorch.BFloat16, 5, 1),
		"1.weight": x.Full(cgotorch.Float32, 5, 1), "1.bias": x.Full(cgotorch.Float32, 5, 1),
		"1.running_mean": x.Full(cgotorch.Float32, 5, 1), "1.running_var": x.Full(cgotorch.Float32, 5, 1),
		"1.num_batches_tracked": x.Full(cgotorch.Int64, 5),
	}
}

func TestLoad(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := twoLayers(x)
		defer nn.Close(m)
		must.Do(t, nn.Load(x, m, stateFor(x), nn.LoadOptions{}))
		for _, n := range nn.State(m) {
			for _, v := range values(x, x.To(x.Detach(n.Tensor), cgotorch.Float32)) {
				if v != 5 {
					t.Errorf("%s is %v, want 5", n.Name, v)
				}
			}
			if n.Tensor.RequiresGrad() == n.Buffer {
				t.Errorf("%s requires a gradient: %v", n.Name, n.Tensor.RequiresGrad())
			}
		}
	})
}

func TestLoad_NamesEverythingThatDoesNotFit(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := twoLayers(x)
		defer nn.Close(m)
		for name, c := range map[string]struct {
			change                         func(state map[string]*cgotorch.Tensor)
			options                        nn.LoadOptions
			missing, unexpected, misshapen []string
		}{
			"all at once": {func(state map[string]*cgotorch.Tensor) {
				delete(state, "0.bias")
				delete(state, "1.running_mean")
				state["head.b"], state["head.a"] = state["1.bias"], state["1.bias"]
				state["0.weight"] = x.Zeros(cgotorch.Float32, 2, 1)
				state["1.weight"] = x.Zeros(cgotorch.Float32)
			}, nn.LoadOptions{}, []string{"0.bias", "1.running_mean"}, []string{"head.a", "head.b"},
				[]string{"0.weight (float32[2 1], the model has float32[1 2])", "1.weight (float32[], the model has float32[1])"}},
			"allowed": {func(state map[string]*cgotorch.Tensor) {
				delete(state, "0.bias")
				state["head"] = state["1.bias"]
			}, nn.LoadOptions{AllowMissing: true, AllowUnexpected: true}, nil, nil, nil},
			"shapes are never allowed": {func(state map[string]*cgotorch.Tensor) {
				state["0.bias"] = x.Zeros(cgotorch.Float32, 2)
			}, nn.LoadOptions{AllowMissing: true, AllowUnexpected: true}, nil, nil, []string{"0.bias (float32[2], the model has float32[1])"}},
			"closed": {func(state map[string]*cgotorch.Tensor) { state["0.bias"].Close() }, nn.LoadOptions{}, nil, nil,
				[]string{"0.bias (closed, the model has float32[1])"}},
			"closed scalar": {func(state map[string]*cgotorch.Tensor) { state["1.num_batches_tracked"].Close() }, nn.LoadOptions{}, nil, nil,
				[]string{"1.num_batches_tracked (closed, the model has int64[])"}},
			"nil":                  {func(state map[string]*cgotorch.Tensor) { state["0.bias"] = nil }, nn.LoadOptions{}, []string{"0.bias"}, nil, nil},
			"before PyTorch 0.4.1": {func(state map[string]*cgotorch.Tensor) { delete(state, "1.num_batches_tracked") }, nn.LoadOptions{}, nil, nil, nil},
		} {
			before := values(x, x.Detach(nn.State(m)[0].Tensor))
			state := stateFor(x)
			c.change(state)
			err := nn.Load(x, m, state, c.options)
			if c.missing == nil && c.unexpected == nil && c.misshapen == nil {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				nn.Constant(x, nn.State(m)[0].Tensor, 1)
				continue
			}
			var failure *nn.LoadError
			if !errors.As(err, &failure) {
				t.Errorf("%s: got error %v, want a LoadError", name, err)
				continue
			}
			if !slices.Equal(failure.Missing, c.missing) || !slices.Equal(failure.Unexpected, c.unexpected) || !slices.Equal(failure.Misshapen, c.misshapen) {
				t.Errorf("%s: got %q", name, failure)
			}
			for _, part := range slices.Concat(c.missing, c.unexpected, c.misshapen, []string{"nn: Load: "}) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: got error %q, want %q in it", name, err, part)
				}
			}
			if got := values(x, x.Detach(nn.State(m)[0].Tensor)); !slices.Equal(got, before) {
				t.Errorf("%s: the failed Load changed the weight to %v", name, got)
			}
		}
	})
}

// Load ignores skipped names. Their tensors may have other shapes, be missing or be unexpected.
func TestLoad_Skip(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := twoLayers(x)
		defer nn.Close(m)
		state := stateFor(x)
		state["0.weight"] = x.Zeros(cgotorch.Float32, 1000, 2) // a different number of classes than the model's
		delete(state, "0.bias")
		state["0.extra"] = state["1.bias"]
		weight := values(x, x.Detach(nn.State(m)[0].Tensor))
		skip := func(name string) bool { return strings.HasPrefix(name, "0.") }
		must.Do(t, nn.Load(x, m, state, nn.LoadOptions{Skip: skip}))
		if got := values(x, x.Detach(nn.State(m)[0].Tensor)); !slices.Equal(got, weight) {
			t.Errorf("the skipped weight was %v and is %v", weight, got)
		}
		if got := values(x, x.Detach(nn.State(m)[2].Tensor)); got[0] != 5 {
			t.Errorf("1.weight is %v, want 5", got)
		}
		state["head"] = state["1.bias"]
		delete(state, "1.bias")
		err := nn.Load(x, m, state, nn.LoadOptions{Skip: skip})
		var failure *nn.LoadError
		if !errors.As(err, &failure) || !slices.Equal(failure.Missing, []string{"1.bias"}) || !slices.Equal(failure.Unexpected, []string{"head"}) || failure.Misshapen != nil {
			t.Errorf("got error %v, want 1.bias missing and head unexpected", err)
		}
		nn.State(m)[0].Tensor.Close()
		delete(state, "head")
		state["1.bias"] = x.Zeros(cgotorch.Float32, 1)
		if err := nn.Load(x, m, state, nn.LoadOptions{Skip: skip}); err != nil {
			t.Errorf("a skipped tensor is closed: %v", err)
		}
		torchtest.WantError(t, nn.Load(x, m, stateFor(x), nn.LoadOptions{}), cgotorch.ErrClosed, "0.weight")
	})
}

// The last layer of a model keeps its values if the tensors are of another number of classes. No
// other layer does.
func TestLoad_OtherClasses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := twoLayers(x)
		defer nn.Close(m)
		state := stateFor(x)
		last := nn.State(m)[2].Tensor
		before := values(x, x.Detach(last))
		state["1.weight"], state["1.bias"] = x.Zeros(cgotorch.Float32, 1000, 3), x.Zeros(cgotorch.Float32, 1000)
		if err := nn.Load(x, m, state, nn.LoadOptions{}); err == nil || !strings.Contains(err.Error(), "AllowOtherClasses") {
			t.Errorf("other classes: %v", err)
		}
		if err := nn.Load(x, m, state, nn.LoadOptions{AllowOtherClasses: true}); err != nil {
			t.Fatal(err)
		}
		if got, first := values(x, x.Detach(last)), values(x, x.Detach(nn.State(m)[0].Tensor)); !slices.Equal(got, before) || first[0] != 5 {
			t.Errorf("the last layer is %v, want %v; the first is %v", got, before, first)
		}
		state["0.weight"] = x.Zeros(cgotorch.Float32, 1000, 2)
		var failure *nn.LoadError
		if err := nn.Load(x, m, state, nn.LoadOptions{AllowOtherClasses: true}); !errors.As(err, &failure) || len(failure.Misshapen) != 1 {
			t.Errorf("another first layer: %v", err)
		}
	})
}

// The text of an error stays short, and names a prefix that all names have.
func TestLoadError_Short(t *testing.T) {
	e := &nn.LoadError{}
	for i := range 200 {
		name := fmt.Sprintf("layer%d.conv.weight", i)
		e.Missing, e.Unexpected = append(e.Missing, name), append(e.Unexpected, "module."+name)
	}
	text := e.Error()
	for _, part := range []string{"200 missing: layer0.conv.weight, layer1", "200 unexpected: module.layer0", `"module." in front: set LoadOptions.Prefix`} {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not have %q", text, part)
		}
	}
	if len(text) > 400 {
		t.Errorf("the text has %d characters: %q", len(text), text)
	}
}

func TestLoad_Rename(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := twoLayers(x)
		defer nn.Close(m)
		state := map[string]*cgotorch.Tensor{"epoch": x.Ones(cgotorch.Int64)}
		for name, v := range stateFor(x) {
			state["module."+name] = v
		}
		rename := func(name string) string {
			rest, ok := strings.CutPrefix(name, "module.")
			if !ok {
				return ""
			}
			return rest
		}
		must.Do(t, nn.Load(x, m, state, nn.LoadOptions{Rename: rename}))
		for _, n := range nn.State(m) {
			if v := values(x, x.To(x.Detach(n.Tensor), cgotorch.Float32)); v[0] != 5 {
				t.Errorf("%s is %v, want 5", n.Name, v)
			}
		}
		same := func(string) string { return "0.bias" }
		torchtest.WantError(t, nn.Load(x, m, state, nn.LoadOptions{Rename: same}), nil, "Rename gives 0.bias to both")
	})
}

// A checkpoint with a model and its averages has each name twice. The error names both prefixes,
// and with one of them the model loads.
func TestLoad_Prefix(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := twoLayers(x)
		defer nn.Close(m)
		state := map[string]*cgotorch.Tensor{"epoch": x.Ones(cgotorch.Int64), "optimizer.exp_avg.0.bias": x.Ones(cgotorch.Float32)}
		for name, v := range stateFor(x) {
			state["model."+name], state["ema.module."+name] = x.MulScalar(v, 2), v
		}
		torchtest.WantError(t, nn.Load(x, m, state, nn.LoadOptions{}), nil, `with "ema.module." or "model." in front: set LoadOptions.Prefix`)
		for prefix, want := range map[string]float64{"ema.module.": 5, "model.": 10} {
			must.Do(t, nn.Load(x, m, state, nn.LoadOptions{Prefix: prefix}))
			for _, n := range nn.State(m) {
				if v := values(x, x.To(x.Detach(n.Tensor), cgotorch.Float32)); float64(v[0]) != want {
					t.Errorf("%s: %s is %v, want %v", prefix, n.Name, v, want)
				}
			}
		}
	})
}

// tiedNet holds one tensor under three names, and one buffer under two.
type tiedNet struct {
	Aux, Embed, Head, Own *cgotorch.Tensor
	Mean                  *cgotorch.Tensor `state:",buffer"`
	Again                 *cgotorch.Tensor `state:",buffer"`
	View                  *cgotorch.Tensor // shares memory with Own, and is no tie
}

func newTiedNet(x *cgotorch.Exec, dtype cgotorch.DType) *tiedNet {
	shared, mean, own := x.Zeros(dtype, 2, 3), x.Zeros(dtype, 2), x.Zeros(dtype, 3)
	return &tiedNet{Aux: shared, Embed: shared, Head: shared, Own: own, Mean: mean, Again: mean, View: x.Narrow(own, 0, 0, 2)}
}

// A tensor that is found under one of its names is not missing. Values that contradict each other
// are an error, and nothing is loaded.
func TestLoad_Tied(t *testing.T) {
	type stored map[string]float64
	without := func(names ...string) stored {
		s := stored{"aux": 5, "embed": 5, "head": 5, "own": 3, "mean": 2, "again": 2, "view": 3}
		for _, n := range names {
			delete(s, n)
		}
		return s
	}
	with := func(s stored, name string, value float64) stored { s[name] = value; return s }
	skip := func(names ...string) nn.LoadOptions {
		return nn.LoadOptions{Skip: func(name string) bool { return slices.Contains(names, name) }}
	}
	for name, c := range map[string]struct {
		stored stored
		o      nn.LoadOptions
		dtype  cgotorch.DType // of the stored head
		want   string
	}{
		"all names":                  {stored: without()},
		"the first name alone":       {stored: without("embed", "head", "again")},
		"the last name alone":        {stored: without("embed", "aux", "mean")},
		"a name between alone":       {stored: without("aux", "head", "mean")},
		"two of three names":         {stored: without("aux")},
		"no name":                    {stored: without("aux", "embed", "head"), want: "3 missing: aux, embed, head"},
		"no name of a buffer":        {stored: without("mean", "again"), want: "2 missing: mean, again"},
		"no view":                    {stored: without("view"), want: "1 missing: view"},
		"not strict":                 {stored: without("embed", "head", "view"), o: nn.LoadOptions{AllowMissing: true}},
		"two values":                 {stored: with(without(), "head", 6), want: "one tensor for aux and head, and their stored values differ"},
		"two values, not strict":     {stored: with(without("aux"), "head", 6), o: nn.LoadOptions{AllowMissing: true, AllowUnexpected: true}, want: "one tensor for embed and head"},
		"two values of a buffer":     {stored: with(without(), "again", 6), want: "one tensor for mean and again"},
		"two values, one is skipped": {stored: with(without(), "head", 6), o: skip("head")},
		"one name is skipped":        {stored: without("aux", "embed"), o: skip("embed")},
		"the found name is skipped":  {stored: without("aux", "embed"), o: skip("head"), want: "2 missing: aux, embed"},
		"another dtype":              {stored: without(), dtype: cgotorch.Float16},
		"another dtype's rounding":   {stored: with(with(with(without(), "head", 0.1), "aux", 0.1), "embed", 0.1), dtype: cgotorch.Float16, want: "one tensor for aux and head"},
		"a prefix":                   {stored: stored{"m.embed": 5, "m.own": 3, "m.mean": 2, "m.view": 3}, o: nn.LoadOptions{Prefix: "m."}},
		"a prefix that is not told":  {stored: stored{"m.head": 5, "m.own": 3, "m.again": 2, "m.view": 3}, want: `set LoadOptions.Prefix to it`},
		"other names": {stored: stored{"wte": 5, "own": 3, "mean": 2, "view": 3}, o: nn.LoadOptions{Rename: func(name string) string {
			return strings.Replace(name, "wte", "head", 1)
		}}},
		"another name, two values": {stored: with(without("head"), "wte", 6), o: nn.LoadOptions{Rename: func(name string) string {
			return strings.Replace(name, "wte", "head", 1)
		}}, want: "one tensor for aux and wte"},
	} {
		torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
			m := newTiedNet(x, cgotorch.Float32)
			tensors := map[string]*cgotorch.Tensor{}
			for name, value := range c.stored {
				shape := []int64{2, 3}
				switch name[strings.LastIndex(name, ".")+1:] {
				case "own":
					shape = []int64{3}
				case "mean", "again", "view":
					shape = []int64{2}
				}
				dtype := cgotorch.Float32
				if name == "head" && c.dtype != 0 {
					dtype = c.dtype
				}
				tensors[name] = x.Full(dtype, value, shape...)
			}
			err := nn.Load(x, m, tensors, c.o)
			if c.want != "" {
				torchtest.WantError(t, err, nil, c.want)
				if sum := x.Item(x.Sum(m.Embed)) + x.Item(x.Sum(m.Own)); sum != 0 {
					t.Errorf("%s: it failed and has loaded something", name)
				}
				return
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if got := values(x, m.Head); got[0] != 5 || got[5] != 5 || values(x, m.Again)[1] != 2 {
				t.Errorf("%s: the weight is %v, want 5", name, got)
			}
		})
	}
}
