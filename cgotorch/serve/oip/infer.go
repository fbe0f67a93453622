// Package oip answers the Open Inference Protocol, version 2, with the models of a
// [serve.Repository]. KServe, Triton and their clients speak it.
//
// [NewHandler] is the protocol over HTTP, with the binary tensor extension. [Infer] is the part
// that does not depend on the transport. examples/serve has both HTTP and gRPC.
//
// An input of images takes pixels, or encoded images as BYTES.
//
// Source: the Open Inference Protocol of KServe, and Triton's extensions for binary tensors,
// classification, model configuration, statistics and the model repository.
package oip

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/bodies"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// ErrInvalidArgument means that a request does not fit the protocol or the model.
var ErrInvalidArgument = cgotorch.ErrInvalidArgument

func refuse(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrInvalidArgument)
}

// Request is an inference request.
type Request struct {
	Model, Version, ID string
	Inputs             []Tensor
	Outputs            []Output      // empty means all
	Priority           int           // 0 is first, as in [serve.WithPriority] of its negative
	Timeout            time.Duration // 0 means none
}

// Output asks for an output.
type Output struct {
	Name    string
	Classes int // above 0: as many of the best classes, as BYTES "score:index:label"
}

// Response is the answer to a Request.
type Response struct {
	Model, Version, ID string
	Outputs            []Tensor
}

// Infer answers a request. It waits for the answer, without an OS thread. The data of the request
// may be changed after the return. It fails with [ErrInvalidArgument] for a request that does not
// fit, and as [serve.Repository.Predict] fails. The error for a panic of the model or of its load
// wraps the panic's value, and its text does not show it.
func Infer(ctx context.Context, models *serve.Repository, r Request) (*Response, error) {
	if r.Priority < 0 {
		return nil, refuse("the priority is %d; want 0 or more, and 0 is first", r.Priority)
	}
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	if r.Priority != 0 {
		ctx = serve.WithPriority(ctx, -r.Priority)
	}
	var answer *Response
	err := models.Use(ctx, r.Model, r.Version, func(m *serve.Model) (err error) {
		answer, err = answerOf(ctx, m, r)
		return err
	})
	return answer, err
}

// answerOf returns a model's answer to a request.
func answerOf(ctx context.Context, m *serve.Model, r Request) (*Response, error) {
	answer := &Response{Model: r.Model, Version: m.Version, ID: r.ID}
	inputs, err := arrays(m.Inputs(), r.Inputs)
	if err != nil {
		return nil, err
	}
	outputs := m.Outputs()
	wanted, err := chosen(outputs, r.Outputs)
	if err != nil {
		return nil, err
	}
	out, err := predict(ctx, m, inputs)
	if err != nil {
		return nil, err
	}
	for i, w := range wanted {
		t := TensorOf(outputs[w].Name, out[w])
		if len(r.Outputs) > 0 && r.Outputs[i].Classes > 0 {
			if t, err = best(t, r.Outputs[i].Classes, m.Labels); err != nil {
				return nil, err
			}
		}
		answer.Outputs = append(answer.Outputs, t)
	}
	return answer, nil
}

// predict returns a panic of the model as an error.
func predict(ctx context.Context, m *serve.Model, inputs []serve.Array) (out []serve.Array, err error) {
	defer func() {
		if v := recover(); v != nil {
			cause, isError := v.(error)
			if !isError {
				cause = fmt.Errorf("panic: %v", v)
			}
			err = &panics.Hidden{Text: fmt.Sprintf("oip: %s, version %s, has panicked", m.Name, m.Version), Cause: cause}
		}
	}()
	return m.Predict(ctx, inputs...)
}

// arrays returns the inputs in the model's order.
func arrays(specs []serve.Spec, inputs []Tensor) ([]serve.Array, error) {
	list := make([]serve.Array, len(specs))
	for i, s := range specs {
		at := slices.IndexFunc(inputs, func(t Tensor) bool { return t.Name == s.Name })
		if at < 0 || len(inputs) != len(specs) {
			return nil, refuse("the request has the inputs %q, want %q", names(inputs), specNames(specs))
		}
		var err error
		if list[i], err = inputs[at].Array(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// chosen returns the places of the outputs that a request asks for.
func chosen(specs []serve.Spec, outputs []Output) (places []int, err error) {
	if len(outputs) == 0 {
		for i := range specs {
			places = append(places, i)
		}
	}
	for _, o := range outputs {
		at := slices.IndexFunc(specs, func(s serve.Spec) bool { return s.Name == o.Name })
		if at < 0 {
			return nil, refuse("the request asks for the output %q, and the model has %q", o.Name, specNames(specs))
		}
		if slices.Contains(places, at) {
			return nil, refuse("the request asks twice for the output %q", o.Name)
		}
		places = append(places, at)
	}
	return places, nil
}

func names(list []Tensor) (names []string) {
	for _, t := range list {
		names = append(names, t.Name)
	}
	return names
}

func specNames(list []serve.Spec) (names []string) {
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names
}

// best returns the n best classes of each row of scores.
func best(scores Tensor, n int, labels []string) (Tensor, error) {
	t := Tensor{Name: scores.Name, DataType: bytesType}
	for row := 0; row == 0 || row < int(scores.Shape[0]); row++ {
		order, values, err := ranking(scores, row)
		if err != nil {
			return t, err
		}
		n = min(n, len(order))
		for _, i := range order[:n] {
			text := fmt.Sprintf("%f:%d", values[i], i)
			if i < len(labels) {
				text += ":" + labels[i]
			}
			t.Bytes = append(t.Bytes, []byte(text))
		}
	}
	t.Shape = []int64{scores.Shape[0], int64(n)}
	return t, nil
}

// ranking returns the classes of one row of scores, the best one first, and their scores.
func ranking(scores Tensor, row int) (order []int, values []float64, err error) {
	size := map[string]int{"FP32": 4, "FP64": 8}[scores.DataType]
	if len(scores.Shape) != 2 || size == 0 {
		return nil, nil, refuse("output %q is %s of shape %v; classes are of FP32 or FP64 scores [n classes]", scores.Name, scores.DataType, scores.Shape)
	}
	classes := int(scores.Shape[1])
	order, values = make([]int, classes), make([]float64, classes)
	for i := range classes {
		at := scores.Data[(row*classes+i)*size:]
		if order[i] = i; size == 4 {
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
		} else {
			values[i] = math.Float64frombits(binary.LittleEndian.Uint64(at))
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
	return order, values, nil
}

// StatusOf returns the HTTP status of an error of Infer. `ctx` is the request's.
//
// 400 means that the request does not fit, 404 an unknown model, 429 a full queue, 499 that the
// client has gone, 503 a model that is not loaded, is closed, or has no memory or no device, 504
// that the time was over, and 500 that the model failed. 500 also means that an answer in JSON
// would need a NaN or an infinity.
func StatusOf(ctx context.Context, err error) int {
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
	}
	switch {
	case err == nil:
		return http.StatusOK
	case is(context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case is(context.Canceled):
		return 499
	case is(serve.ErrNotFound):
		return http.StatusNotFound
	case is(serve.ErrQueueFull, bodies.ErrBusy):
		return http.StatusTooManyRequests
	case is(serve.ErrNotLoaded, cgotorch.ErrClosed, cgotorch.ErrOutOfMemory, cgotorch.ErrDeviceLost):
		return http.StatusServiceUnavailable
	case is(bodies.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case is(serve.ErrModel) || errors.As(err, new(*panics.Hidden)): // whatever is wrong inside
		return http.StatusInternalServerError
	case is(ErrInvalidArgument, serve.ErrNotDecoded):
		return http.StatusBadRequest
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case context.Cause(ctx) != nil:
		return 499
	}
	return http.StatusInternalServerError
}
