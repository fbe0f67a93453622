package prefetcher

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// madeImages is a source of images 2 x 2 of one channel. made yields batch i, or false at the end.
type madeImages func(i int) (*imageloader.HostBatch, bool)

func (m madeImages) Shape() (batch, height, width, channels int) { return 1, 2, 2, 1 }
func (m madeImages) Pin(imageloader.Pinner) error                { return nil }
func (m madeImages) Epoch(context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(yield func(*imageloader.HostBatch, error) bool) {
		for i := 0; ; i++ {
			if b, ok := m(i); !ok || !yield(b, nil) {
				return
			}
		}
	}
}

// madeTensors is a source of one number a sample.
type madeTensors func(i int) (*data.Batch, bool)

func (m madeTensors) Fields() []data.Field  { return []data.Field{{Name: "x", DType: cgotorch.Float32}} }
func (m madeTensors) BatchSize() int        { return 1 }
func (m madeTensors) Pin(data.Pinner) error { return nil }
func (m madeTensors) Epoch(context.Context) iter.Seq2[*data.Batch, error] {
	return func(yield func(*data.Batch, error) bool) {
		for i := 0; ; i++ {
			if b, ok := m(i); !ok || !yield(b, nil) {
				return
			}
		}
	}
}

// loops runs an epoch over images and one over tensors. The function `at` is called for batch i of
// a source, and `released` in the Release of batch i. The sources have n batches. If `at` returns
// true, the batch is nil.
func loops(t *testing.T, n int, at func(i int) bool, released func(i int)) (errs []error, raised []any) {
	t.Helper()
	images := must.Get(New(madeImages(func(i int) (*imageloader.HostBatch, bool) {
		if at(i) {
			return nil, true
		}
		return &imageloader.HostBatch{N: 1, Height: 2, Width: 2, Channels: 1, Images: make([]byte, 4), Labels: make([]int64, 1), Index: i, OnRelease: func() { released(i) }}, i < n
	}), cgotorch.CPU, Options{}))(t)
	defer images.Close()
	tensors := must.Get(NewTensors(madeTensors(func(i int) (*data.Batch, bool) {
		if at(i) {
			return nil, true
		}
		return &data.Batch{N: 1, Columns: []data.Column{data.Of("x", []float32{1})}, Index: i, OnRelease: func() { released(i) }}, i < n
	}), cgotorch.CPU, TensorOptions{}))(t)
	defer tensors.Close()
	for _, loop := range []func() error{
		func() error { return drain(images.Epoch(t.Context())) },
		func() error { return drain(tensors.Epoch(t.Context())) },
	} {
		func() {
			defer func() { raised = append(raised, recover()) }()
			errs = append(errs, nil)
			errs[len(errs)-1] = loop()
		}()
	}
	return errs, raised
}

func drain[B any](epoch iter.Seq2[B, error]) error {
	for _, err := range epoch {
		if err != nil {
			return err
		}
	}
	return nil
}

// A panic of the source, or of a Release, comes out of the consumer's loop with its stack. Goexit
// and a nil batch give errors. Slots and goroutines come back.
func TestEpoch_SourceMisbehaves(t *testing.T) {
	torchtest.CheckLeaks(t)
	none := func(int) {}
	for name, test := range map[string]struct {
		at       func(i int) bool
		released func(i int)
		raised   string // part of the panic
		err      string // part of the error
	}{
		"panic":             {func(i int) bool { return i == 3 && mine() }, none, "mine", ""},
		"Goexit":            {func(i int) bool { return i == 3 && exit() }, none, "", "runtime.Goexit"},
		"nil batch":         {func(i int) bool { return i == 3 }, none, "", "yields a nil batch"},
		"Release panics":    {func(int) bool { return false }, func(i int) { _ = i == 3 && mine() }, "mine", ""},
		"last of them does": {func(int) bool { return false }, func(i int) { _ = i == 7 && mine() }, "mine", ""},
		"each of them does": {func(int) bool { return false }, func(int) { mine() }, "mine", ""},
	} {
		errs, raised := loops(t, 8, test.at, test.released)
		for k := range errs {
			text := fmt.Sprint(raised[k])
			if test.raised != "" && (!strings.HasPrefix(text, test.raised) || !strings.Contains(text, "mistakes_test.go:")) || test.raised == "" && raised[k] != nil {
				t.Errorf("%s, %d: raised %.200s, want %q", name, k, text, test.raised)
			}
			if got := errs[k]; test.err != "" && (got == nil || !strings.Contains(got.Error(), test.err)) || test.err == "" && got != nil {
				t.Errorf("%s, %d: error %v, want %q", name, k, got, test.err)
			}
		}
	}
}

func mine() bool { panic("mine") }
func exit() bool { runtime.Goexit(); return false }

// A Goexit in a Release does not end the releasing of later batches.
func TestEpoch_ReleaseExits(t *testing.T) {
	torchtest.CheckLeaks(t)
	if errs, raised := loops(t, 50, func(int) bool { return false }, func(int) { runtime.Goexit() }); raised[0] != nil || raised[1] != nil || errs[0] == nil || errs[1] == nil {
		t.Errorf("errors %v, raised %v", errs, raised)
	}
}

func TestNew_RefusesNumbers(t *testing.T) {
	torchtest.CheckLeaks(t)
	images := madeImages(func(int) (*imageloader.HostBatch, bool) { return nil, false })
	tensors := madeTensors(func(int) (*data.Batch, bool) { return nil, false })
	var noLoader *imageloader.Loader
	for want, build := range map[string]func() (interface{ Close() error }, error){
		"Options.Depth is 1073741824; it must be 0 to 1024": func() (interface{ Close() error }, error) { return New(images, cgotorch.CPU, Options{Depth: 1 << 30}) },
		"TensorOptions.Depth is 1025; it must be 0 to 1024": func() (interface{ Close() error }, error) {
			return NewTensors(tensors, cgotorch.CPU, TensorOptions{Depth: 1025})
		},
		"New: the source is nil; look at the error":            func() (interface{ Close() error }, error) { return New(nil, cgotorch.CPU, Options{}) },
		"the source is nil; look at the error of the function": func() (interface{ Close() error }, error) { return New(noLoader, cgotorch.CPU, Options{}) },
		"NewTensors: the source is nil":                        func() (interface{ Close() error }, error) { return NewTensors(nil, cgotorch.CPU, TensorOptions{}) },
		"divide numbers for pixels of 0 to 255 by 255": func() (interface{ Close() error }, error) {
			return New(images, cgotorch.CPU, Options{Mean: []float64{123.7}, Std: []float64{58.4}})
		},
		"Std is [58.4]: both are": func() (interface{ Close() error }, error) {
			return New(images, cgotorch.CPU, Options{Std: []float64{58.4}})
		},
		"Mean is [NaN]": func() (interface{ Close() error }, error) {
			return New(images, cgotorch.CPU, Options{Mean: []float64{math.NaN()}})
		},
		"Std is [0]: a standard": func() (interface{ Close() error }, error) {
			return New(images, cgotorch.CPU, Options{Std: []float64{0}})
		},
	} {
		if _, err := build(); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), want) || len(err.Error()) > 400 {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
