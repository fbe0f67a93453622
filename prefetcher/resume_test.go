package prefetcher

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// feed is a checkpoint's Loader. next yields the names of the batches of its next epoch.
type feed struct {
	loader any
	next   func() iter.Seq2[string, error]
}

// feeds returns functions that open each sort of loader anew.
func feeds(t *testing.T) map[string]func() feed {
	path, ctx := archive(t, 10, -1), context.Background()
	images := func() *imageloader.Loader {
		return open(t, path, imageloader.Options{BatchSize: 3, Train: true, Seed: 4})
	}
	o := data.Options{BatchSize: 3, Shuffle: true, Seed: 4}
	stream := must.Get(data.NewSequence("numbers", []data.Field{{Name: "id", DType: cgotorch.Int64}}, func(context.Context) iter.Seq2[data.Sample, error] {
		return func(yield func(data.Sample, error) bool) {
			for i := int64(0); i < 10 && yield(data.Sample{"id": i}, nil); i++ {
			}
		}
	}))(t)
	rows := func() *data.Loader {
		l := must.Get(data.NewStreamLoader(stream, o))(t)
		t.Cleanup(func() { l.Close() })
		return l
	}
	hostName := func(b *imageloader.HostBatch) string {
		defer b.Release()
		return fmt.Sprint(b.Epoch, b.Names)
	}
	rowName := func(b *data.Batch) string {
		defer b.Release()
		return fmt.Sprint(b.Epoch, data.Values[int64](b.Column("id")))
	}
	tensorName := func(b *TensorBatch) (name string) {
		torchtest.DoOn(t, cgotorch.DefaultStream(cgotorch.CPU), func(x *cgotorch.Exec) {
			name = fmt.Sprint(b.Epoch, cgotorch.ToSlice[int64](x, b.Use(x)["id"]))
		})
		return name
	}
	return map[string]func() feed{
		"imageloader.Loader": func() feed {
			l := images()
			return feed{l, func() iter.Seq2[string, error] { return named(l.Epoch(ctx), hostName) }}
		},
		"data.Loader": func() feed {
			l := tableLoader(t, 10, o)
			return feed{l, func() iter.Seq2[string, error] { return named(l.Epoch(ctx), rowName) }}
		},
		"data.Loader of a Stream": func() feed {
			l := rows()
			return feed{l, func() iter.Seq2[string, error] { return named(l.Epoch(ctx), rowName) }}
		},
		"Prefetcher": func() feed {
			p := start(t, images(), cgotorch.CPU, Options{})
			return feed{p, func() iter.Seq2[string, error] {
				return named(p.Epoch(ctx), func(b *Batch) string { return fmt.Sprint(b.Epoch, b.Names) })
			}}
		},
		"Tensors": func() feed {
			p := startTensors(t, tableLoader(t, 10, o), cgotorch.CPU, TensorOptions{})
			return feed{p, func() iter.Seq2[string, error] { return named(p.Epoch(ctx), tensorName) }}
		},
		"Tensors of a Stream": func() feed {
			p := startTensors(t, rows(), cgotorch.CPU, TensorOptions{})
			return feed{p, func() iter.Seq2[string, error] { return named(p.Epoch(ctx), tensorName) }}
		},
	}
}

func named[B any](epoch iter.Seq2[B, error], name func(B) string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for b, err := range epoch {
			if err != nil {
				yield("", err)
				return
			}
			if !yield(name(b), nil) {
				return
			}
		}
	}
}

// savePoint is where a run is saved and ends: in epoch 1, with a number of the epoch that is `more`
// than that of the loop.
type savePoint struct {
	batch int // in the body of this batch, from 0; 4 is after the loop
	more  int
}

var errEnds = errors.New("the process ends here")

// train runs the epochs from that of `run` to epoch 2, and returns the names of the batches.
func (f feed) train(run *checkpoint.Checkpoint, save func(batch int) error) (seen []string, err error) {
	for ; run.Epoch < 3; run.Epoch++ {
		batch := 0
		for name, err := range f.next() {
			if err != nil {
				return seen, err
			}
			seen = append(seen, name)
			if err := save(batch); err != nil {
				return seen, err
			}
			batch++
		}
		if err := save(4); err != nil {
			return seen, err
		}
	}
	return seen, nil
}

// A run that was saved anywhere continues with the batches that would have followed. A number of
// the epoch with which it would lose an epoch, or train one twice, is not saved.
func TestResume_Places(t *testing.T) {
	torchtest.CheckLeaks(t)
	for sort, open := range feeds(t) {
		t.Run(sort, func(t *testing.T) {
			whole, err := open().train(&checkpoint.Checkpoint{}, func(int) error { return nil })
			if err != nil || len(whole) != 12 {
				t.Fatal(whole, err)
			}
			for _, point := range []savePoint{{1, 0}, {3, 0}, {4, 1}, {1, 1}, {3, 1}, {4, 0}, {4, 2}} {
				path := filepath.Join(t.TempDir(), "run.safetensors")
				refused := (point.batch < 4) != (point.more == 0)
				if refused = refused || point.more == 2; refused {
					_, err := trainAndSave(t, open(), path, point)
					if point.more == 2 {
						torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "Epoch is 3, and the Loader's place is the start of epoch 2", "count epochs from 0")
					} else if point.batch == 4 {
						torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "Epoch is 1, and the Loader's place is the start of epoch 2", "save with Epoch 2")
					} else {
						torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, fmt.Sprintf("Epoch is 2, and the Loader's place is in epoch 1, after %d batches", point.batch+1), "save with Epoch 1")
					}
					continue
				}
				got, err := trainAndSave(t, open(), path, point)
				if !errors.Is(err, errEnds) {
					t.Fatalf("%+v: %v", point, err)
				}
				second := open()
				run := checkpoint.Checkpoint{Model: &nn.Linear{}, Loader: second.loader}
				withModel(t, &run, func(x *cgotorch.Exec) error { return checkpoint.Resume(x, path, &run) })
				rest, err := second.train(&run, func(int) error { return nil })
				if all := append(got, rest...); err != nil || !slices.Equal(all, whole) {
					t.Errorf("%+v: %v, %q, want %q", point, err, all, whole)
				}
			}
		})
	}
}

// trainAndSave trains to the point, saves the run there and returns errEnds.
func trainAndSave(t *testing.T, f feed, path string, point savePoint) ([]string, error) {
	run := checkpoint.Checkpoint{Loader: f.loader}
	return f.train(&run, func(batch int) (err error) {
		if run.Epoch != 1 || batch != point.batch {
			return nil
		}
		c := run
		c.Epoch += point.more
		withModel(t, &c, func(x *cgotorch.Exec) error {
			err = checkpoint.Save(x, path, c)
			return nil
		})
		return errors.Join(err, errEnds)
	})
}

// withModel runs fn while c has a model.
func withModel(t *testing.T, c *checkpoint.Checkpoint, fn func(x *cgotorch.Exec) error) {
	t.Helper()
	must.Do(t, cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		model := nn.NewLinear(x, 1, 1, nn.LinearOptions{})
		defer nn.Close(model)
		c.Model = model
		return fn(x)
	}))
}
