package distributed

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Broadcast gives all ranks the parameters and buffers of rank 0. It first compares their names,
// dtypes and shapes, and waits for the other ranks for that. Then it enqueues the broadcast on x's
// stream. If the model has counters on the host, as batch norms have, it waits for the device. It
// fails x's Do with [cgotorch.ErrInvalidArgument] if the models of two ranks differ, and names the
// first difference. It fails with the same error for a model without tensors, as an optimizer is:
// all ranks load the state of an optimizer from a checkpoint.
func Broadcast(x *cgotorch.Exec, g *Group, model any) {
	g.check(x, "distributed.Broadcast")
	state := nn.State(model)
	err := g.compare(state)
	if len(state) == 0 {
		err = noTensors(model, "tensors")
	}
	if err != nil {
		x.Fail("distributed.Broadcast", err)
	}
	g.broadcast(x, state)
}

// broadcast is Broadcast of a state that the ranks have compared.
func (g *Group) broadcast(x *cgotorch.Exec, state []nn.Named) {
	if g.alone {
		return
	}
	var tensors []*cgotorch.Tensor
	for _, n := range state {
		tensors = append(tensors, n.Tensor)
	}
	var counters []*cgotorch.Tensor // which batch norms keep on the host
	tensors = slices.DeleteFunc(tensors, func(t *cgotorch.Tensor) bool {
		if t.Device() == g.device {
			return false
		}
		counters = append(counters, t)
		return true
	})
	g.broadcastList(x.NoGrad(), tensors, 0)
	if len(counters) > 0 {
		g.broadcastCounters(x, counters)
	}
}

// broadcastCounters gives all ranks the numbers of rank 0 that lie on the host. It waits for the
// device.
func (g *Group) broadcastCounters(x *cgotorch.Exec, counters []*cgotorch.Tensor) {
	const op = "distributed.Broadcast"
	var all []int64
	for _, t := range counters {
		values, err := cgotorch.HostSlice[int64](t)
		if err != nil {
			x.Fail(op, fmt.Errorf("a tensor of the model is not on %v: %w", g.device, err))
		}
		all = append(all, values...)
	}
	x.Tidy(func() *cgotorch.Tensor {
		on := cgotorch.FromSlice(x, all)
		g.Broadcast(x, on, 0)
		all = cgotorch.ToSlice[int64](x, on)
		return nil
	})
	for _, t := range counters {
		values, err := cgotorch.HostSlice[int64](t)
		if err != nil {
			x.Fail(op, err)
		}
		all = all[copy(values, all):]
	}
}

// compare fails unless the models of all ranks have the same tensors, and the same options, if
// there are any. It waits for the other ranks.
func (g *Group) compare(state []nn.Named, options ...string) error {
	var all []string
	for _, n := range state {
		all = append(all, fmt.Sprintf("%s %v%v, strides %v", n.Name, n.Tensor.DType(), n.Tensor.Shape(), n.Tensor.Strides()))
	}
	all = append(all, options...)
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	texts, err := g.exchange("comparison of models", string(text))
	if err != nil {
		return err
	}
	var first []string
	if texts[0] == "" { // rank 0 is a process with torch.distributed
		return nil
	}
	if err := json.Unmarshal([]byte(texts[0]), &first); err != nil {
		return err
	}
	if err := differ(first, all, g.rank, len(options)); err != nil {
		return err
	}
	for i, other := range texts {
		if other != "" && other != texts[0] {
			return fmt.Errorf("%s has another model than rank 0, or other options: see its error: %w", g.names[i], cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}

// differ returns the first difference between the tensors of rank 0 and those of another rank, or
// nil. The last texts are options.
func differ(first, own []string, rank, options int) error {
	for i := range max(len(first), len(own)) {
		a, b := "nothing more", "nothing more"
		if i < len(first) {
			a = first[i]
		}
		if i < len(own) {
			b = own[i]
		}
		if a != b && len(first) == len(own) && i >= len(own)-options {
			return fmt.Errorf("rank 0 has %s and rank %d has %s: give all ranks the same: %w", a, rank, b, cgotorch.ErrInvalidArgument)
		}
		if a != b {
			return fmt.Errorf("rank 0 and rank %d have different models: tensor %d is %s there and %s here: %w", rank, i, a, b, cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}
