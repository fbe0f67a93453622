package imageloader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// stage is what some ranks do to an epoch, until their number changes.
type stage struct {
	ranks   int
	sharing sharing
	batch   int // BatchSize
	batches int // after this many batches the ranks stop. -1: at the end of the epoch
}

// deliver runs the stages one after another, and counts how often each image came. `from` is where
// the first stage begins.
func deliver(t *testing.T, path string, o Options, from State, stages []stage) (times map[string]int) {
	t.Helper()
	times = map[string]int{}
	for _, st := range stages {
		states := make([]State, st.ranks)
		counts := make([]int, st.ranks)
		for rank := range st.ranks {
			o.Ranks.World, o.Ranks.Rank, o.BatchSize = st.ranks, rank, st.batch
			o.Ranks.DropRest, o.Ranks.EachOnce = st.sharing == dropRest, st.sharing == eachOnce
			l, err := Open(path, o)
			if err != nil {
				t.Fatalf("%+v: %v", st, err)
			}
			if err := l.Restore(from); err != nil {
				t.Fatalf("%+v: %v", st, err)
			}
			states[rank] = from
			if st.batches != 0 {
				for batch, err := range l.Epoch(context.Background()) {
					if err != nil {
						t.Fatalf("%+v from %+v: %v", st, from, err)
					}
					for _, name := range batch.Names {
						times[filepath.Base(name)]++
					}
					states[rank] = batch.State
					counts[rank] += batch.N
					batch.Release()
					if batch.Index+1 == from.Batch+st.batches {
						break
					}
				}
			}
			closeWhole(t, l)
		}
		if st.sharing != eachOnce && slices.Max(counts) != slices.Min(counts) {
			t.Fatalf("%+v from %+v: the ranks delivered %v images", st, from, counts)
		}
		state := states[0]
		if o.Reading.MaxSkipRate > 0 {
			var err error
			if state, err = JoinStates(states); err != nil {
				t.Fatalf("%+v: %v", states, err)
			}
		}
		text := must.Get(json.Marshal(state))(t)
		from = State{}
		if err := json.Unmarshal(text, &from); err != nil || from != state {
			t.Fatalf("%s became %+v: %v", text, from, err)
		}
	}
	return times
}

// When the number of ranks changes in the middle of an epoch, each usable image comes once. A few
// come again, to make the ranks equal, or are left out with DropRest.
func TestState_OtherRanks(t *testing.T) {
	checkLeaks(t)
	random := rand.New(rand.NewPCG(24, 4))
	sharings := []sharing{evenly, evenly, dropRest, eachOnce}
	for trial := range 20 {
		n := 2 + random.IntN(40)
		var bad []int
		rate := 0.0
		if trial%2 == 1 {
			rate = 0.99
			n += 15 // a rank whose images are all unusable is an error in an epoch's first division
			for i := range n {
				if random.IntN(6) == 0 && len(bad) < n-1 {
					bad = append(bad, i)
				}
			}
		}
		members := damaged(numbered(n), bad...)
		all := sources(t, members)
		samples := samplesOf(n, "cls", func(l int) string { return fmt.Sprint(l) })
		for _, i := range bad {
			samples[3*i+1].body = []byte("no picture")
		}
		folder := t.TempDir()
		for i, part := range [][]member{samples[:3*(n/2)], samples[3*(n/2):]} {
			must.Do(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("w-%d.tar", i)), tarOf(part), 0o644))
			must.Do(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("z-%d.tgz", i)), gzipOf(tarOf(part)), 0o644))
		}
		all = append(all,
			source{"WebDataset", folder + "/w-*.tar", "", func(*Options) {}},
			source{"WebDataset in blocks", folder + "/z-*.tgz", "", func(o *Options) { o.Reading.ShuffleBuffer = 300 }},
			source{"WebDataset streamed", folder + "/z-*.tgz", "", func(o *Options) { o.Reading.ShuffleBuffer, o.Labels.Classes = 300, []string{"0", "1", "2"} }},
		)
		var stages []stage
		most := n // fill: images that may come again, or be left out
		fill, drops := 0, false
		for range 1 + random.IntN(4) {
			st := stage{ranks: 1 + random.IntN(6), sharing: sharings[random.IntN(len(sharings))], batch: 1 + random.IntN(3), batches: random.IntN(4)}
			if st.ranks == 1 || st.sharing == dropRest && st.ranks > n {
				st.sharing = evenly
			}
			stages = append(stages, st)
		}
		stages[len(stages)-1].batches = -1
		if last := &stages[len(stages)-1]; last.sharing == dropRest {
			drops = true
		}
		for _, st := range stages {
			fill += st.ranks - 1
		}
		for _, s := range all {
			o := trainOptions()
			o.Reading.MaxSkipRate, o.Train = rate, random.IntN(3) != 0
			s.change(&o)
			epoch := random.IntN(2)
			t.Run(fmt.Sprintf("%d/%s", trial, s.name), func(t *testing.T) {
				times := deliver(t, s.path, o, State{Seed: 7, Epoch: epoch}, stages)
				total := 0
				for i, m := range members {
					name := filepath.Base(m.name)
					if !strings.Contains(s.name, "WebDataset") {
						total += times[name]
					} else {
						name = fmt.Sprintf("%05d.png", i)
						total += times[name]
					}
					switch isBad := slices.Contains(bad, i); {
					case isBad && times[name] > 0:
						t.Errorf("the unusable image %d came", i)
					case !isBad && times[name] == 0 && !drops:
						t.Errorf("image %d of %d did not come; unusable %v, %+v", i, n, bad, stages)
					}
				}
				if total > most+fill {
					t.Errorf("%d deliveries of %d images, and only %d are to fill the ranks; %+v", total, n, fill, stages)
				}
				if drops && total < most-len(bad)-fill {
					t.Errorf("%d deliveries of %d images, and only %d are to be left out; %+v", total, n, fill, stages)
				}
				if once := !slices.ContainsFunc(stages, func(st stage) bool { return st.ranks > 1 && st.sharing == evenly || st.sharing == dropRest && rate > 0 }); once && total > len(times) {
					t.Errorf("%d deliveries of %d images; %+v", total, len(times), stages)
				}
			})
		}
	}
}

// A state of 8 ranks goes on with 6, then with 4, in an archive of many blocks.
func TestState_OtherRanks_Blocks(t *testing.T) {
	if testing.Short() {
		t.Skip("many cases of numbers")
	}
	checkLeaks(t)
	const n = 200
	path := write(t, "noisy.tgz", gzipOf(tarOf(noisy(n))))
	for _, classes := range [][]string{nil, {"a", "b", "c"}} {
		for _, stages := range [][]stage{
			{{8, evenly, 3, 4}, {6, evenly, 4, 2}, {4, evenly, 6, -1}},
			{{1, evenly, 20, 3}, {3, evenly, 7, 2}, {1, evenly, 20, -1}},
		} {
			o := blockOptions()
			o.Labels.Classes = classes
			times := deliver(t, path, o, State{}, stages)
			total := 0
			for _, n := range times {
				total += n
			}
			if len(times) != n || total > n+5 {
				t.Errorf("%+v: %d images came in %d deliveries", stages, len(times), total)
			}
		}
	}
}

// Whatever the ranks do, each place of an epoch is over after one delivery. No place comes again
// before all places of the last division came.
func TestShare_EachPlaceOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("many cases of numbers")
	}
	random := rand.New(rand.NewPCG(5, 24))
	for range 3000 {
		n := 1 + random.IntN(300)
		over := make([]bool, n)
		state, ranks := State{Epoch: 1}, 0
		for at := random.IntN(5); ; at-- {
			ranks = (ranks+random.IntN(39))%40 + 1 // another number
			o := Options{Ranks: Ranks{World: ranks}, Reading: Reading{MaxSkipRate: float64(random.IntN(2))}}
			sharing := []sharing{evenly, dropRest, eachOnce}[random.IntN(3)]
			o.Ranks.DropRest, o.Ranks.EachOnce = sharing == dropRest, sharing == eachOnce
			left := 0
			for _, is := range over {
				if !is {
					left++
				}
			}
			begun := left < n
			now := make([]bool, n)
			states := make([]State, o.Ranks.World)
			delivered := 0
			if sharing == dropRest {
				delivered = random.IntN(left/o.Ranks.World + 1)
			} else {
				delivered = random.IntN((left+o.Ranks.World-1)/o.Ranks.World + 1)
			}
			if at == 0 {
				delivered = n
			}
			came := 0
			for o.Ranks.Rank = range o.Ranks.World {
				start := must.Get(state.startFor(o, n))(t)
				sh := start.share(o)
				if sh.own != places(sh.part) || sh.own > (left+o.Ranks.World-1)/o.Ranks.World {
					t.Fatalf("%+v: %+v, and %d are left", start, sh, left)
				}
				skips := 0
				if o.Reading.MaxSkipRate > 0 {
					skips = random.IntN(2)
				}
				position := min(delivered+skips, max(sh.own, delivered))
				if sharing == eachOnce || o.Ranks.World == 1 {
					position = min(position, sh.own)
				}
				for k, count := 0, 0; k < min(position, sh.own); k += count {
					spans := sh.spans(k, min(position, sh.own)-k)
					count = places(spans)
					for _, s := range spans {
						for place := s.from; place < s.to; place++ {
							if over[place] || now[place] && (begun || sharing != evenly || o.Ranks.World == 1) {
								t.Fatalf("place %d of %d comes again; %+v", place, n, start)
							}
							now[place] = true
						}
					}
				}
				came += sh.own
				states[o.Ranks.Rank] = start
				states[o.Ranks.Rank].Position, states[o.Ranks.Rank].Skipped = position, max(position-delivered, 0)
			}
			if wraps := !begun && sharing == evenly; came < left && sharing != dropRest || came > left && !wraps || left-came >= o.Ranks.World {
				t.Fatalf("%d places for %d left; %+v", came, left, states[0])
			}
			if at == 0 {
				break
			}
			for i, is := range now {
				over[i] = over[i] || is
			}
			var err error
			if state, err = JoinStates(states); err != nil {
				t.Fatalf("%v: %+v", err, states)
			}
		}
	}
}

// After the number of ranks has changed, a state of any batch gives the same batches again.
func TestState_OtherRanks_Resume(t *testing.T) {
	if testing.Short() {
		t.Skip("many cases of numbers")
	}
	checkLeaks(t)
	for _, s := range sources(t, damaged(numbered(40), 1, 2, 17, 30)) {
		o := trainOptions()
		o.BatchSize, o.Reading.MaxSkipRate = 2, 0.3
		s.change(&o)
		for _, path := range [][2]int{{4, 3}, {1, 3}, {3, 1}} {
			o.Ranks.World = path[0]
			states := make([]State, o.Ranks.World)
			for o.Ranks.Rank = range o.Ranks.World {
				l := open(t, s.path, o)
				for batch, err := range l.Epoch(context.Background()) {
					must.Do(t, err)
					states[o.Ranks.Rank] = batch.State
					batch.Release()
					if batch.Index == 1 {
						break
					}
				}
			}
			joined, err := JoinStates(states)
			must.Do(t, err)
			o.Ranks.World = path[1]
			latest := make([]State, o.Ranks.World) // after the third batch of the new ranks
			lines := make([][]string, o.Ranks.World)
			for o.Ranks.Rank = range o.Ranks.World {
				l := open(t, s.path, o)
				must.Do(t, l.Restore(joined))
				var all []State
				lines[o.Ranks.Rank], all = readStates(t, l, 2)
				latest[o.Ranks.Rank] = all[2]
				for i, state := range all {
					what := fmt.Sprintf("%s, ranks %v, rank %d, after batch %d, %+v", s.name, path, o.Ranks.Rank, i, state)
					wantRest(t, what, s.path, o, state, 2, lines[o.Ranks.Rank][i+1:])
				}
			}
			if joined, err = JoinStates(latest); err != nil {
				t.Fatal(err)
			}
			for o.Ranks.Rank = range o.Ranks.World { // all ranks restore one state
				wantRest(t, fmt.Sprintf("%s, ranks %v, rank %d, joined", s.name, path, o.Ranks.Rank), s.path, o, joined, 2, lines[o.Ranks.Rank][3:])
			}
		}
	}
}

// The order of several ranks must not change, because later versions continue from saved states.
// Version 0.1.0 without divisions gave these images, and wrote these states.
func TestState_EarlierVersion(t *testing.T) {
	path := write(t, "a.tar", tarOf(damaged(numbered(22), 3, 9)))
	for _, test := range []struct {
		rank, ranks int
		drop        bool
		from        State
		want        string
	}{
		{0, 1, false, State{Seed: 5, Batch: 3, Position: 10, Skipped: 1, Samples: 22}, "[4 12 1 14 19 8 17 16 0 6 15]"},
		{0, 3, false, State{Seed: 5, Batch: 1, Position: 4, Skipped: 1, Samples: 8}, "[13 7 18 11 2]"},
		{2, 3, false, State{Seed: 5, Batch: 2, Position: 7, Skipped: 1, Samples: 8}, "[17 16]"},
		{3, 4, false, State{Seed: 5, Batch: 1, Position: 3, Skipped: 0, Samples: 6}, "[15 2 16]"},
		{3, 4, true, State{Seed: 5, Batch: 1, Position: 4, Skipped: 1, Samples: 5}, "[0 8]"},
		{1, 5, true, State{Seed: 5, Batch: 1, Position: 3, Skipped: 0, Samples: 4}, "[11]"},
	} {
		o := trainOptions()
		o.Reading.MaxSkipRate, o.Ranks.World, o.Ranks.Rank, o.Ranks.DropRest = 0.5, test.ranks, test.rank, test.drop
		l := open(t, path, o)
		must.Do(t, l.Restore(test.from))
		if got := fmt.Sprint(order(t, l)); got != test.want {
			t.Errorf("%+v: got %s, want %s", test.from, got, test.want)
		}
	}

	// A state of one rank, and the start of an epoch, fit any number of ranks.
	old := State{Seed: 5, Batch: 2, Position: 6, Samples: 22}
	times := deliver(t, path, withSkips(trainOptions(), 0.5), old, []stage{{3, eachOnce, 2, -1}})
	if len(times) > 16 || len(times) < 14 {
		t.Errorf("%d images after 6 of 22", len(times))
	}
	deliver(t, path, withSkips(trainOptions(), 0.5), State{Seed: 5, Epoch: 2, Samples: 22}, []stage{{5, evenly, 2, 1}, {2, evenly, 2, -1}})
	_, err := tryRestore(t, path, func(o *Options) { o.Ranks.World = 4 }, State{Position: 3, Samples: 11})
	wantError(t, err, ErrInvalidState, "saved from an epoch of 11 images, and this one has 22")
}

func withSkips(o Options, rate float64) Options {
	o.Reading.MaxSkipRate = rate
	return o
}

// tryRestore restores a state in a new loader and reads to the end of the epoch.
func tryRestore(t *testing.T, path string, change func(*Options), s State) (lines []string, err error) {
	t.Helper()
	o := options()
	change(&o)
	l := open(t, path, o)
	if err := l.Restore(s); err != nil {
		return nil, err
	}
	return tryRead(l)
}

// A state that no loader writes is refused, and the error says what to do.
func TestLoader_Restore_WrongRanks(t *testing.T) {
	path := write(t, "a.tar", tarOf(numbered(20)))
	huge := fmt.Sprint(math.MaxInt)
	for _, test := range []struct {
		s    State
		want string
	}{
		{State{Samples: 20, Position: -1, Ranks: "4"}, "out of range; give the State of a batch"},
		{State{Samples: 20, Position: 2, Skipped: 3, Ranks: "4"}, "out of range"},
		{State{Samples: math.MaxInt, Position: 2, Ranks: "4"}, "out of range"},
		{State{Samples: 19, Position: 2, Ranks: "4"}, "from an epoch of 19 images, and this one has 20; take the archive"},
		{State{Samples: 20, Position: 6, Ranks: "4"}, "its position is 6, in an epoch of 5 images"},
		{State{Samples: 20, Position: 2, Ranks: "0"}, `its Ranks is "0", which no loader writes; give the State of a batch`},
		{State{Samples: 20, Position: 2, Ranks: "-4"}, `its Ranks is "-4"`},
		{State{Samples: 20, Position: 2, Ranks: "+4"}, `its Ranks is "+4"`},
		{State{Samples: 20, Position: 2, Ranks: "04"}, `its Ranks is "04"`},
		{State{Samples: 20, Position: 2, Ranks: "4 "}, `its Ranks is "4 "`},
		{State{Samples: 20, Position: 2, Ranks: "4 2"}, `its Ranks is "4 2"`},
		{State{Samples: 20, Position: 2, Ranks: "4@"}, `its Ranks is "4@"`},
		{State{Samples: 20, Position: 2, Ranks: "4@1,2"}, `its Ranks is "4@1,2"`},
		{State{Samples: 20, Position: 2, Ranks: "4@-1"}, `its Ranks is "4@-1"`},
		{State{Samples: 20, Position: 2, Ranks: "4@1+2"}, `its Ranks is "4@1+2"`},
		{State{Samples: 20, Position: 2, Ranks: "4xd@1"}, `its Ranks is "4xd@1"`},
		{State{Samples: 20, Position: 2, Ranks: "4@1\n"}, `its Ranks is "4@1\n"`},
		{State{Samples: 20, Position: 2, Ranks: "65537"}, `its Ranks is "65537"`},
		{State{Samples: 20, Position: 2, Ranks: huge + "0"}, "which no loader writes"},
		{State{Samples: 20, Position: 2, Ranks: "4@6 3"}, "4 ranks at image 6 of 5 images; give the State of a batch"},
		{State{Samples: 20, Position: 2, Ranks: "4@" + huge + " 3"}, "of 5 images; give the State"},
		{State{Samples: 20, Position: 5, Ranks: "4@2 3"}, "its position is 5, in an epoch of 4 images"},
		{State{Samples: 20, Position: 2, Ranks: "4@5 3"}, "its position is 2, in an epoch of 0 images"},
		{State{Samples: 20, Position: 2, Ranks: "4@5 3@1 2"}, "3 ranks at image 1 of 0 images"},
		{State{Samples: 20, Ranks: strings.Repeat("4@0 ", 300) + "4"}, "changed too often in its epoch; begin its NextEpoch"},
		{State{Samples: 20, Ranks: strings.Repeat("65536@1 ", 16) + "4"}, "changed too often in its epoch; begin its NextEpoch"},
		{State{Samples: 20, Ranks: strings.Repeat("4@0 ", 255) + "4@1"}, "changed too often in its epoch; begin its NextEpoch"},
		{State{Samples: 20, Position: 2, Ranks: "4?"}, "one of 4 ranks, which may have skipped images; restore what JoinStates makes of the states of all 4"},
		{State{Samples: 20, Position: 2, Skipped: 1, Ranks: "4"}, "restore what JoinStates makes"},
	} {
		_, err := tryRestore(t, path, func(o *Options) { o.Ranks.World, o.Ranks.Rank = 2, 1 }, test.s)
		if err == nil {
			t.Errorf("%+v was accepted", test.s)
			continue
		}
		wantError(t, err, ErrInvalidState, test.want)
		if len(err.Error()) > 500 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}

	// A loader that does not know the number of images learns it later.
	tgz := write(t, "a.tgz", gzipOf(tarOf(numbered(20))))
	unknown := func(o *Options) {
		o.Reading.ShuffleBuffer, o.Labels.Classes, o.Index.NoFile, o.Train = 500, []string{"a", "b", "c"}, true, true
	}
	for _, s := range []State{{Samples: 24, Ranks: "4@2 1"}, {Samples: 24, Position: 2, Ranks: "4"}, {Samples: 24, Ranks: "1@2 3@1 1"}, {Samples: 16, Ranks: "1@2 3@1 1"}} {
		_, err := tryRestore(t, tgz, unknown, s)
		wantError(t, err, ErrInvalidState, "cannot continue from the restored state: it was saved from an epoch of", "take the archive and the options of the checkpoint")
	}
	_, err := tryRestore(t, tgz, unknown, State{Position: 2, Ranks: "4"})
	wantError(t, err, ErrInvalidState, `its Samples is 0, and its Ranks is "4"`)
}

// If ranks are at different places, their states say so, also when no more images may be skipped.
func TestState_OtherRanks_Apart(t *testing.T) {
	joined := State{Samples: 30, Position: 7, Ranks: "3@7,8+1,7"}
	start, err := joined.startFor(Options{Ranks: Ranks{World: 3, Rank: 1}}, 30)
	if want := (State{Samples: 30, Position: 8, Skipped: 1, Ranks: "3?"}); err != nil || start != want {
		t.Errorf("got %+v, %v", start, err)
	}
}

// Several ranks that begin an epoch do not stream it, also if the classes are given.
func TestEpoch_Ranks_NotStreamed(t *testing.T) {
	for _, s := range sources(t, numbered(40)) {
		for rank := range 2 {
			o := trainOptions()
			s.change(&o)
			o.Ranks.World, o.Ranks.Rank, o.Labels.Classes = 2, rank, nil
			want := read(t, open(t, s.path, o))
			o.Labels.Classes = []string{"a", "b", "c"}
			wantLines(t, s.name, read(t, open(t, s.path, o)), want)
		}
	}
}

// No text in a state makes a loader panic or hang. Each text is refused, or gives an epoch.
func TestLoader_Restore_AnyRanks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	path := write(t, "a.tar", tarOf(numbered(20)))
	accepted := 0
	for range 3000 {
		text := []byte{"123468"[random.IntN(6)]}
		for range random.IntN(12) {
			text = append(text, "0123489@@@,+ ?dx  "[random.IntN(18)])
		}
		s := State{Samples: 20, Position: random.IntN(7), Skipped: random.IntN(2), Ranks: string(text)}
		for _, ranks := range []int{1, 3} {
			o := options()
			o.Ranks.World, o.Ranks.Rank, o.Reading.MaxSkipRate = ranks, random.IntN(ranks), 0.5
			full := must.Get(o.complete())(t)
			start, err := s.startFor(full, 20)
			if err != nil {
				continue
			}
			start.share(full)
			if again, err := start.startFor(full, 20); err != nil || again != start {
				t.Fatalf("%+v became %+v, %v", start, again, err)
			}
			if accepted++; accepted%10 == 0 {
				if _, err := tryRestore(t, path, func(o *Options) { *o = full }, s); err != nil {
					t.Errorf("%+v: %v", s, err)
				}
			}
		}
	}
	if accepted < 100 {
		t.Errorf("only %d states were accepted", accepted)
	}
}

func TestJoinStates_Mistakes(t *testing.T) {
	at := func(position, skipped int, ranks string) State {
		return State{Seed: 1, Epoch: 2, Batch: 1, Position: position, Skipped: skipped, Samples: 20, Ranks: ranks}
	}
	other := at(4, 0, "2?")
	other.Epoch = 3
	for _, test := range []struct {
		states []State
		want   string
	}{
		{nil, "there are none; give the State of each rank"},
		{[]State{at(4, 0, "3?"), at(4, 0, "3?")}, "there are 2, of 3 ranks; give the State of each rank"},
		{[]State{at(4, 0, "2?"), other}, "states 0 and 1 are of different epochs"},
		{[]State{at(4, 0, "2?"), at(4, 0, "3?")}, "states 0 and 1 are of different epochs"},
		{[]State{at(4, 0, "2?"), at(4, 0, "2d?")}, "states 0 and 1 are of different epochs"},
		{[]State{at(4, 0, "4@1 2?"), at(4, 0, "4@2 2?")}, "states 0 and 1 are of different epochs"},
		{[]State{at(4, 0, "2?"), at(4, 1, "2?")}, "rank 1 had 3 images, and rank 0 had 4; give the States after the same number of batches"},
		{[]State{at(4, 0, "2?"), at(4, -1, "2?")}, "state 1 has a value out of range"},
		{[]State{at(4, 0, "2?"), at(4, 0, "two")}, `state 1: its Ranks is "two"`},
	} {
		_, err := JoinStates(test.states)
		wantError(t, err, ErrInvalidState, test.want)
	}
	same := at(4, 1, "2@4+1")
	if got, err := JoinStates([]State{at(4, 1, "2?"), at(4, 1, "2?")}); err != nil || got != same {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := JoinStates([]State{same, same}); err != nil || got != same {
		t.Errorf("joined again: got %+v, %v", got, err)
	}
}

// With EachOnce each usable image of an epoch comes once over all ranks, also if there are more
// ranks than images.
func TestOptions_EachOnce(t *testing.T) {
	checkLeaks(t)
	for _, test := range []struct {
		images, ranks int
		bad           []int
	}{{20, 4, nil}, {22, 4, nil}, {23, 7, []int{4, 9, 20}}, {3, 5, nil}, {1, 2, nil}} {
		for _, s := range sources(t, damaged(numbered(test.images), test.bad...)) {
			for _, train := range []bool{false, true} {
				var all []int
				lengths := 0
				for rank := range test.ranks {
					o := options()
					o.BatchSize, o.Train, o.Crop.NoFlip = 2, train, true
					if len(test.bad) > 0 {
						o.Reading.MaxSkipRate = 0.7
					}
					s.change(&o)
					o.Ranks.World, o.Ranks.Rank, o.Ranks.EachOnce = test.ranks, rank, true
					l := open(t, s.path, o)
					for epoch := range 2 {
						got := levels(t, l)
						if epoch == 1 {
							all = append(all, got...)
						}
						if fits := test.images / test.ranks; l.Len() != fits && l.Len() != fits+1 || len(test.bad) == 0 && (len(got) != l.Len() || l.Batches() != (len(got)+1)/2) {
							t.Errorf("%+v, %s: rank %d has %d images; Len %d, Batches %d", test, s.name, rank, len(got), l.Len(), l.Batches())
						}
					}
					lengths += l.Len()
					l.Close()
				}
				slices.Sort(all)
				var want []int
				for i := range test.images {
					if !slices.Contains(test.bad, i) {
						want = append(want, i)
					}
				}
				if !slices.Equal(all, want) || lengths != test.images {
					t.Errorf("%+v, %s: images %v, want %v; Len sums to %d", test, s.name, all, want, lengths)
				}
			}
		}
	}
	for _, o := range []Options{{Ranks: Ranks{EachOnce: true, DropRest: true}}, {Ranks: Ranks{EachOnce: true}, DropLast: true}} {
		_, err := Open("a.tar", o)
		wantError(t, err, ErrInvalidOptions, "EachOnce is set", "drop one")
	}
	_, err := Open("a.tar", Options{Ranks: Ranks{World: 65537}})
	wantError(t, err, ErrInvalidOptions, "Ranks.World is 65537; it must be at most 65536")
}

// If no image of a rank's part is usable, the rank repeats others. The epoch ends if there are
// none.
func TestState_OtherRanks_AllUnusable(t *testing.T) {
	bad := []int{6, 7, 8, 9}
	path := write(t, "a.tar", tarOf(damaged(numbered(10), bad...)))
	state := must.Get(JoinStates([]State{{Position: 3, Samples: 10, Ranks: "2"}, {Position: 3, Samples: 10, Ranks: "2"}}))(t)
	// Images 3, 4, 8 and 9 are left. The second of two ranks has 8 and 9.
	o := func(o *Options) {
		o.Ranks.World, o.Ranks.Rank, o.Reading.MaxSkipRate, o.BatchSize, o.Ranks.DropRest = 2, 1, 0.8, 2, true
	}
	lines, err := tryRestore(t, path, o, state)
	must.Do(t, err)
	if len(lines) != 1 || !strings.Contains(lines[0], "000.png 001.png") {
		t.Errorf("got %q", lines)
	}
	// The images that the second rank repeats begin with its own. Image 0 is the first of another
	// rank.
	two := options()
	o(&two)
	l := open(t, write(t, "more.tar", tarOf(damaged(numbered(10), 0, 8, 9))), two)
	must.Do(t, l.Restore(state))
	if got := read(t, l); len(got) != 1 || !strings.Contains(got[0], "001.png 002.png") {
		t.Errorf("got %q", got)
	}
	if got := l.Stats(); got.Skipped["not an image"] != 3 || len(got.Examples) != 3 {
		t.Errorf("skipped %v, examples %q, want 3 of them", got.Skipped, got.Examples)
	}
	path = write(t, "none.tar", tarOf(damaged(numbered(10), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)))
	if _, err = tryRestore(t, path, o, state); !errors.Is(err, ErrBadMember) {
		t.Errorf("all images are unusable: got %v", err)
	}
}

// With EachOnce a rank may have no usable image, if MaxSkipRate allows that.
func TestOptions_EachOnce_NoneUsable(t *testing.T) {
	path := write(t, "a.tar", tarOf(damaged(numbered(7), 3)))
	for _, rate := range []float64{1, 0.5} {
		images := 0
		for rank := range 7 {
			o := options()
			o.Ranks.EachOnce, o.Ranks.World, o.Ranks.Rank, o.Reading.MaxSkipRate = true, 7, rank, rate
			l := open(t, path, o)
			_, err := tryRead(l)
			images += l.Stats().Samples
			if bad := rank == 3 && rate < 1; bad {
				wantError(t, err, ErrBadMember, "1 of 1 images are unusable, and Options.Reading.MaxSkipRate is 0.5")
			} else if err != nil {
				t.Errorf("rate %v, rank %d: %v", rate, rank, err)
			}
		}
		if images != 6 {
			t.Errorf("rate %v: %d images", rate, images)
		}
	}
}

// An archive without a usable image is an error, whatever MaxSkipRate and Ranks are.
func TestOptions_EachOnce_NoneOfAll(t *testing.T) {
	members := numbered(4)
	for i := range members {
		members[i].name = "train/../" + members[i].name // unusable by its name
	}
	o := options()
	o.Ranks.EachOnce, o.Ranks.World, o.Reading.MaxSkipRate = true, 2, 1
	_, err := Open(write(t, "a.tar", tarOf(members)), o)
	if err == nil {
		t.Fatal("no error")
	}
	wantError(t, err, ErrBadMember, "4 of 4 images are unusable")
}
