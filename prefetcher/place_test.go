package prefetcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A prefetcher that goes on from any place, also before, between and after epochs, gives the
// batches that would have followed. Its loader, which is ahead, does not tell a place meanwhile.
func TestPrefetcher_JSON(t *testing.T) {
	torchtest.CheckLeaks(t)
	path := archive(t, 10, -1)
	make := func() (*imageloader.Loader, *Prefetcher) {
		loader := open(t, path, imageloader.Options{BatchSize: 2, Train: true})
		return loader, start(t, loader, cgotorch.CPU, Options{Depth: 3})
	}
	take := func(p *Prefetcher, most int, body func(b *Batch)) (seen []string) {
		for len(seen) < most {
			before := len(seen)
			for b, err := range p.Epoch(context.Background()) {
				must.Do(t, err)
				seen = append(seen, fmt.Sprint(b.Epoch, b.Index, b.Names))
				body(b)
				if len(seen) == most {
					break
				}
			}
			if len(seen) == before {
				continue // an epoch that was resumed at its end
			}
		}
		return seen
	}
	_, whole := make()
	want := take(whole, 15, func(*Batch) {})
	for n := range 12 {
		loader, first := make()
		var text []byte
		save := func() {
			var err error
			if text, err = json.Marshal(first); err != nil {
				t.Fatal(err)
			}
		}
		save()
		take(first, n, func(b *Batch) {
			save()
			var s imageloader.State
			if err := json.Unmarshal(text, &s); err != nil || s != b.State {
				t.Errorf("%v: the place is %s, want %+v", b, text, b.State)
			}
			if _, err := json.Marshal(loader); !errors.Is(err, imageloader.ErrBusy) {
				t.Errorf("%v: the loader's own place: %v", b, err)
			}
		})
		_, second := make()
		must.Do(t, json.Unmarshal(text, second))
		if got := take(second, 15-n, func(*Batch) {}); !slices.Equal(got, want[n:]) {
			t.Errorf("after %d batches: %v, want %v", n, got, want[n:])
		}
	}
	_, p := make()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	after := func(ctx context.Context, want string) {
		for range p.Epoch(ctx) {
		}
		text, err := json.Marshal(p)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s, %v, want %s", text, err, want)
		}
	}
	after(ended, `"epoch":0,"batch":0`)
	after(context.Background(), `"epoch":1,"batch":0`)
	_, p = make()
	must.Do(t, json.Unmarshal([]byte(`{"batch":5,"position":10,"samples":10}`), p)) // the end of epoch 0
	after(ended, `"epoch":0,"batch":5`)
	_, p = make()
	must.Do(t, json.Unmarshal([]byte(`{"batch":5,"position":10,"samples":10}`), p))
	after(context.Background(), `"epoch":1,"batch":0`) // after an epoch without batches
	after(ended, `"epoch":1,"batch":0`)
	after(context.Background(), `"epoch":2,"batch":0`)
	if err := json.Unmarshal([]byte(`{"samples":3}`), p); !errors.Is(err, imageloader.ErrInvalidState) {
		t.Errorf("a place in other data: %v", err)
	}
}

// A source that tells no State has no place, and no wrong one is saved.
func TestPrefetcher_JSON_NoPlace(t *testing.T) {
	p := start(t, newCounted(t, 3, nil), cgotorch.CPU, Options{})
	tells := func() {
		t.Helper()
		if text, err := json.Marshal(p); err == nil || !strings.Contains(err.Error(), "save the State of a batch") {
			t.Errorf("the place is %s, %v", text, err)
		}
	}
	for _, err := range p.Epoch(context.Background()) {
		must.Do(t, err)
		tells()
	}
	tells()
}

func TestTensors_JSON(t *testing.T) {
	torchtest.CheckLeaks(t)
	table := must.Get(data.NewTable(data.Of("id", []int{0, 1, 2, 3, 4, 5})))(t)
	var text []byte
	var got []int64
	for round := range 2 {
		loader := must.Get(data.NewLoader(table, data.Options{BatchSize: 2, Shuffle: true}))(t)
		defer loader.Close()
		p := must.Get(NewTensors(loader, cgotorch.CPU, TensorOptions{}))(t)
		defer p.Close()
		if round == 1 {
			must.Do(t, json.Unmarshal(text, p))
		}
		for batch, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			torchtest.DoOn(t, cgotorch.DefaultStream(cgotorch.CPU), func(x *cgotorch.Exec) {
				got = append(got, cgotorch.ToSlice[int64](x, batch.Use(x)["id"])...)
			})
			if _, err := json.Marshal(loader); !errors.Is(err, data.ErrBusy) {
				t.Errorf("the loader's own place: %v", err)
			}
			if text, err = json.Marshal(p); err != nil {
				t.Fatal(err)
			}
			if round == 0 {
				break
			}
		}
	}
	if slices.Sort(got); !slices.Equal(got, []int64{0, 1, 2, 3, 4, 5}) {
		t.Errorf("both halves have %v", got)
	}
}
