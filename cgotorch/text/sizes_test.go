package text_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A search finds what is fastest, also where each single step from the first start is slower.
func TestSearch(t *testing.T) {
	best := text.Sizes{"gate and up": {12, 6}, "down": {16, 4}, "head": {5, 2}, "queries, keys and values": {12, 4}, "output": {6, 2}}
	kinds := []string{"gate and up", "down", "head", "queries, keys and values", "output"}
	calls := 0
	measure := func(s text.Sizes) (float64, error) {
		calls++
		time := 10.0
		for kind, r := range s {
			if r == best[kind] {
				time -= 0.5
			}
		}
		if (s["down"] == text.Ring{} || s["gate and up"] == text.Ring{}) && len(s) > 0 {
			time += 1 // one alone is in the way of the other
		}
		return time, nil
	}
	found, before, after, err := text.Search(kinds, measure, time.Now().Add(time.Hour))
	if err != nil || !maps.Equal(found, best) || before != 10 || after != 7.5 {
		t.Errorf("got %v, %v and %v, %v, want %v", found, before, after, err, best)
	}
	calls = 0
	found, _, _, err = text.Search(kinds, measure, time.Now())
	if err != nil || calls != 6 || len(found) != 5 { // two starts, and twice the default and the better one
		t.Errorf("without time: %d measurements, %v, %v, want the better of two starts", calls, found, err)
	}
	found, _, _, err = text.Search(kinds, func(s text.Sizes) (float64, error) {
		time := 10.0
		if s["queries, keys and values"] == (text.Ring{5, 2}) {
			time--
			if s["down"] == (text.Ring{8, 3}) { // of use beside the small ring alone, which is found later
				time--
			}
		}
		return time, nil
	}, time.Now().Add(time.Hour))
	if err != nil || found["down"] != (text.Ring{8, 3}) {
		t.Errorf("two rings that belong together: %v, %v", found, err)
	}
	lucky := 0
	found, before, after, err = text.Search(kinds, func(s text.Sizes) (float64, error) {
		if lucky++; lucky == 20 {
			return 5, nil
		}
		return 10, nil
	}, time.Now().Add(time.Hour))
	if err != nil || len(found) != 0 || before != 10 || after != 10 {
		t.Errorf("after one lucky measurement: %v, %v and %v, %v, want the default", found, before, after, err)
	}
	if _, _, _, err := text.Search(kinds, func(text.Sizes) (float64, error) { return 0, cgotorch.ErrDeviceLost }, time.Now()); err != cgotorch.ErrDeviceLost {
		t.Errorf("got %v, want the error of the measurement", err)
	}
}

// Sizes that are stored are those of the same shapes, device and library. Damaged ones are passed
// over.
func TestSizes_Stored(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("STREAMTORCH_CACHE", cache)
	of := func(device string) *text.StoredSizes {
		s := &text.StoredSizes{}
		s.Model, s.Device, s.Library = "16 layers", device, "abc"
		return s
	}
	a := of("H100")
	if a.Read() {
		t.Error("there are sizes before any are stored")
	}
	a.Rings, a.Before, a.After = text.Sizes{"head": {8, 3}}, 2, 1
	a.Write()
	b := of("H100")
	if !b.Read() || !maps.Equal(b.Rings, a.Rings) || b.Before != 2 {
		t.Errorf("got %+v, want %+v", b, a)
	}
	if of("H200").Read() {
		t.Error("another card has these sizes")
	}
	whole := must.Get(os.ReadFile(a.File()))(t)
	must.Do(t, os.Rename(a.File(), of("H200").File()))
	if of("H200").Read() {
		t.Error("a file of another card is taken")
	}
	for _, damaged := range [][]byte{nil, whole[:len(whole)/2], slices.Replace(slices.Clone(whole), slices.Index(whole, '8'), slices.Index(whole, '8')+1, '0')} {
		must.Do(t, os.WriteFile(a.File(), damaged, 0o600))
		if of("H100").Read() {
			t.Errorf("%q is taken", damaged)
		}
	}
	must.Do(t, os.RemoveAll(filepath.Join(cache, "sizes")))
	must.Do(t, os.WriteFile(filepath.Join(cache, "sizes"), nil, 0o600)) // no folder can be made there
	a.Write()
	t.Setenv("STREAMTORCH_CACHE", "relative")
	if a.Write(); a.File() != "" || a.Read() {
		t.Errorf("without a cache folder the file is %q", a.File())
	}
}

// A token that is timed lies within the tables, however short they are.
func TestSizes_ShortContext(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, name := range []string{"llama", "windows"} {
		for _, context := range []int{1, 16, 17, 100, 113, 2048} {
			m := openRandom(t, configs[name], text.Options{Context: context})
			m.Edge("early")
			if err := m.Timed(); !errors.Is(err, text.ErrNoGraph) && !torchtest.Device().IsCUDA() {
				t.Errorf("%s, Context %d: got %v, want a token that ran and was not captured", name, context, err)
			}
			keys, values := m.TimedPages()
			if distance := int64(m.FreePages() + 1); slices.Max(keys) != 1 || slices.Min(keys) != 1 || slices.Max(values) != 1+distance || slices.Min(values) != 1+distance {
				t.Errorf("%s, Context %d: a timed token writes the pages %v and %v, want 1 and %d", name, context, keys, values, 1+distance)
			}
			if m.PagesWritten() {
				t.Errorf("%s, Context %d: page 0 has numbers", name, context)
			}
			m.Close()
		}
	}
}

// The first Open of a model searches, and the next one does not. Answers are the same.
func TestOpen_SearchesSizes(t *testing.T) {
	if !torchtest.Device().IsCUDA() {
		t.Skip("the kernels of a token need CUDA")
	}
	torchtest.CheckLeaks(t)
	const config = `{"model_type": "llama", "vocab_size": 16000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2,
		"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 512}`
	t.Setenv("STREAMTORCH_CACHE", t.TempDir())
	var answers [][]int64
	for i := range 3 {
		if i == 2 { // without a cache folder each Open searches
			t.Setenv("STREAMTORCH_CACHE", "relative")
		}
		m := openRandom(t, config, text.Options{Context: 128, DType: cgotorch.BFloat16})
		s := m.KernelStats()
		if (s.Search > 0) != (i != 1) || !s.Own {
			t.Errorf("Open %d: %+v", i, s)
		}
		t.Logf("Open %d searched for %v", i, s.Search)
		c := m.NewConversation()
		answer, _ := tokensOf(t, c, []int64{1, 2, 3}, text.GenerateOptions{MaxTokens: 20, Greedy: true, IgnoreEnd: true})
		answers = append(answers, answer)
		c.Close()
		m.Close()
	}
	if !slices.Equal(answers[0], answers[1]) || !slices.Equal(answers[0], answers[2]) {
		t.Errorf("the answers differ: %v", answers)
	}
}
