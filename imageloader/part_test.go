package imageloader

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// pairsOf returns the level and the label of each image that `of` selects from numbered(n).
func pairsOf(n int, of func(i int) (label int, is bool)) (pairs []string) {
	for i := range n {
		if l, is := of(i); is {
			pairs = append(pairs, fmt.Sprintf("%02d:%d", i, l))
		}
	}
	return pairs
}

// parts are options that select a part of numbered(20), with the images and labels of that part.
var parts20 = []struct {
	name    string
	only    []string
	limit   int
	classes string
	want    []string
}{
	{"Labels.Only", []string{"c", "a"}, 0, "[a c]", pairsOf(20, func(i int) (int, bool) { return label(i, 20) / 2, label(i, 20) != 1 })},
	{"one class", []string{"b"}, 0, "[b]", pairsOf(20, func(i int) (int, bool) { return 0, label(i, 20) == 1 })},
	{"Limit", nil, 9, "[a b c]", pairsOf(9, func(i int) (int, bool) { return label(i, 20), true })},
	{"Limit of two", nil, 2, "[a b c]", pairsOf(2, func(i int) (int, bool) { return 0, true })},
	{"Limit above all", nil, 100, "[a b c]", pairsOf(20, func(i int) (int, bool) { return label(i, 20), true })},
	{"both", []string{"b", "c"}, 10, "[b c]", pairsOf(17, func(i int) (int, bool) { return label(i, 20) - 1, label(i, 20) > 0 })},
}

// A part has the first images of its classes, with labels of these classes. It has the same
// batches with and without an index file, whatever Workers is. Ranks divide the part. A new loader
// that is restored to a state of any batch goes on with the same batches.
func TestOptions_Part(t *testing.T) {
	for _, s := range sources(t, numbered(20)) {
		for _, p := range parts20 {
			t.Run(s.name+"/"+p.name, func(t *testing.T) {
				o := options()
				s.change(&o)
				o.Labels.Only, o.Limit = p.only, p.limit
				l := open(t, s.path, o)
				if got := fmt.Sprint(l.Classes()); got != p.classes {
					t.Errorf("classes %s, want %s", got, p.classes)
				}
				for range 2 {
					if got := labelsOf(t, l); !slices.Equal(got, p.want) {
						t.Errorf("images and labels %v, want %v", got, p.want)
					}
					if l.Len() != len(p.want) || l.Batches() != (len(p.want)+3)/4 {
						t.Errorf("%d images in %d batches, want %d", l.Len(), l.Batches(), len(p.want))
					}
				}
				if s := l.Stats(); s.Samples != 2*len(p.want) {
					t.Errorf("Stats has %d images, want %d", s.Samples, 2*len(p.want))
				}

				train := trainOptions()
				train.Labels.Only, train.Limit = p.only, p.limit
				s.change(&train)
				all, states := readStates(t, open(t, s.path, train), 2)
				train.Workers = 1
				for i, state := range states {
					wantRest(t, fmt.Sprintf("after batch %d", i), s.path, train, state, 2, all[i+1:])
				}

				ranks, got := 3, map[string]bool{}
				for rank := range ranks {
					o.Ranks.World, o.Ranks.Rank = ranks, rank
					r := open(t, s.path, o)
					if want := (len(p.want) + ranks - 1) / ranks; r.Len() != want {
						t.Errorf("rank %d has %d images, want %d", rank, r.Len(), want)
					}
					for _, pair := range labelsOf(t, r) {
						got[pair] = true
					}
					r.Close()
				}
				if len(got) != len(p.want) {
					t.Errorf("the ranks have %d images, want %d", len(got), len(p.want))
				}
			})
		}
	}
}

// The batches of some classes are those of an archive that has only these classes.
func TestOptions_Only_AsAnArchive(t *testing.T) {
	members := numbered(20)
	few := slices.DeleteFunc(slices.Clone(members), func(m member) bool { return strings.HasPrefix(m.name, "train/b/") })
	o := trainOptions()
	want := read(t, open(t, write(t, "few.tgz", gzipOf(tarOf(few))), o))
	o.Labels.Only = []string{"a", "c"}
	wantLines(t, "some classes", read(t, open(t, write(t, "all.tgz", gzipOf(tarOf(members))), o)), want)
}

// A second loader with the classes of the first gives the same labels, also where labels are
// numbers. Its other images need no name.
func TestOptions_Only_SecondLoader(t *testing.T) {
	number := func(label int) string { return fmt.Sprint(3 * label) } // 0, 3, 6
	want := pairsOf(24, func(i int) (int, bool) { return label(i, 24) - 1, label(i, 24) > 0 })
	for name, members := range map[string][]member{"directories": numbered(24), "numbers": samplesOf(24, "cls", number)} {
		only := []string{"b", "c"}
		if name == "numbers" {
			only = []string{"6", "3"}
		}
		o := options()
		o.Labels.Only = only
		path := write(t, "a.tar", tarOf(members))
		l := open(t, path, o)
		if got := labelsOf(t, l); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		o.Labels.Classes, o.Labels.Only = l.Classes(), l.Classes()
		if got := labelsOf(t, open(t, path, o)); !slices.Equal(got, want) {
			t.Errorf("%s, second loader: %v, want %v", name, got, want)
		}
	}
}

// With given classes Open reads no further than the last image of the part: damage behind it does
// not matter.
func TestOptions_Limit_ReadsNoFurther(t *testing.T) {
	packed := tarOf(numbered(20))
	for name, data := range map[string][]byte{"a.tgz": gzipOf(packed), "a.tar": packed} {
		path := write(t, name, data[:len(data)*3/4])
		for _, buffer := range []int{0, 600} { // a .tgz is kept in memory, as far as it is read
			o := options()
			o.Labels.Classes, o.Limit, o.Reading.ShuffleBuffer, o.Index.NoFile = []string{"a", "b", "c"}, 2, buffer, true
			l := open(t, path, o)
			if got, want := labelsOf(t, l), []string{"00:0", "01:0"}; !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
			o.Limit = 20
			if _, err := Open(path, o); err == nil {
				t.Errorf("%s: the whole of a damaged archive was read without an error", name)
			}
		}
	}
}

func TestOptions_Part_Mistakes(t *testing.T) {
	checkLeaks(t)
	path := write(t, "a.tar", tarOf(numbered(20)))
	many := make([]string, 50)
	for i := range many {
		many[i] = fmt.Sprintf("class %03d", i)
	}
	for name, test := range map[string]struct {
		o    Options
		kind error
		want []string
	}{
		"unknown":       {Options{Labels: Labels{Only: []string{"a", "B"}}}, ErrInvalidOptions, []string{path, `Options.Labels.Only has "B"`, "there are b, a, c"}},
		"unknown alone": {Options{Labels: Labels{Only: []string{"x"}}}, ErrInvalidOptions, []string{`has "x", and there is no such class; there are a, b, c`}},
		"not in Classes": {Options{Labels: Labels{Only: []string{"clas 023"}, Classes: many}}, ErrInvalidOptions,
			[]string{"Options.Labels.Classes: ", "there are class 023, class 003, class 013 and 47 more"}},
		"twice":      {Options{Labels: Labels{Only: []string{"a", "a"}}}, ErrInvalidOptions, []string{`Labels.Only has "a" as name 1`}},
		"empty name": {Options{Labels: Labels{Only: []string{""}}}, ErrInvalidOptions, []string{`Labels.Only has "" as name 0`}},
		"Limit":      {Options{Limit: -1}, ErrInvalidOptions, []string{"Limit is -1"}},
		"none in the archive": {Options{Labels: Labels{Classes: []string{"a", "b", "c", "z"}, Only: []string{"z"}}}, ErrNoImages,
			[]string{"no images of Options.Labels.Only (z)"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(path, test.o)
			wantError(t, err, test.kind, test.want...)
			if len(err.Error()) > 400+len(os.TempDir()) {
				t.Errorf("%d characters: %v", len(err.Error()), err)
			}
		})
	}
}

// A state of another part is refused, also if both parts have the same number of images. The start
// of an epoch fits every part.
func TestLoader_Restore_OtherPart(t *testing.T) {
	path := write(t, "a.tar", tarOf(numbered(18)))
	parts := []Options{{}, {Limit: 6}, {Labels: Labels{Only: []string{"a"}}}, {Labels: Labels{Only: []string{"b"}}}, {Labels: Labels{Only: []string{"b"}}, Limit: 6}}
	loaders := make([]*Loader, len(parts))
	states := make([]State, len(parts))
	for i, p := range parts {
		o := options()
		o.Labels.Only, o.Limit = p.Labels.Only, p.Limit
		loaders[i] = open(t, path, o)
		for batch, err := range loaders[i].Epoch(context.Background()) {
			must.Do(t, err)
			states[i] = batch.State
			batch.Release()
			break
		}
	}
	for i, l := range loaders {
		for j, s := range states {
			if err := l.Restore(s); i == j && err != nil {
				t.Error(err)
			} else if i != j {
				wantError(t, err, ErrInvalidState, "Labels.Only")
			}
			must.Check(t, l.Restore(State{Seed: 4, Epoch: 2}))
		}
	}
}
