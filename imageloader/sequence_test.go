package imageloader

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
)

// noisy returns n PNGs of random pixels. Each PNG has 30 KB, and no compressor makes it smaller.
func noisy(n int) []member {
	random := rand.New(rand.NewPCG(1, 2))
	encoder := png.Encoder{CompressionLevel: png.NoCompression}
	members := make([]member, n)
	for i := range members {
		img := image.NewGray(image.Rect(0, 0, 172, 172))
		for j := range img.Pix {
			img.Pix[j] = byte(random.Uint32())
		}
		var body bytes.Buffer
		if err := encoder.Encode(&body, img); err != nil {
			panic(err)
		}
		members[i] = member{name: fmt.Sprintf("train/%c/%03d.png", 'a'+label(i, n), i), body: body.Bytes()}
	}
	return members
}

// blockOptions returns options for an archive of noisy images. With these options, the archive is
// read in several groups of several blocks.
func blockOptions() Options {
	return Options{
		Train: true, BatchSize: 7, Crop: Crop{Channels: 1, NoFlip: true, Transform: decode.RandomCrop{Height: 6, Width: 6}}, Seed: 3, Reading: Reading{ShuffleBuffer: 5 << 20}, Index: Index{NoFile: true},
	}
}

// order reads one epoch and returns the numbers of its images.
func order(t *testing.T, l *Loader) (numbers []int) {
	t.Helper()
	for batch := range batchesOf(t, l) {
		for i := range batch.N {
			var class byte
			var number int
			if _, err := fmt.Sscanf(batch.Names[i], "train/%c/%d.png", &class, &number); err != nil || int64(class-'a') != batch.Labels[i] {
				t.Fatalf("%s with label %d: %v", batch.Names[i], batch.Labels[i], err)
			}
			numbers = append(numbers, number)
		}
	}
	return numbers
}

func TestEpoch_Blocks(t *testing.T) {
	const n = 250
	path := write(t, "noisy.tgz", gzipOf(tarOf(noisy(n))))
	for _, workers := range []int{1, 4} {
		o := blockOptions()
		o.Workers = workers
		l := open(t, path, o)
		if blocks := len(l.index.Load().Blocks); blocks < 6 {
			t.Fatalf("only %d blocks", blocks)
		}
		first, second := order(t, l), order(t, l)
		if slices.Equal(first, second) || slices.IsSorted(first) {
			t.Errorf("orders %v and %v", first, second)
		}
		if distance := meanStep(first); distance < n/15 { // n/3 in a uniform permutation, 1 in the archive's order
			t.Errorf("images that follow one another lie %.0f apart in the archive, of %d", distance, n)
		}
		for _, got := range [][]int{first, second} {
			slices.Sort(got)
			for i := range n {
				if got[i] != i {
					t.Fatalf("not each image once: %v", got)
				}
			}
		}
		l.Close()
		o.Train = false
		l = open(t, path, o)
		if got := order(t, l); len(got) != n || !slices.IsSorted(got) {
			t.Errorf("not shuffled: %v", got)
		}
		l.Close()
	}
}

// meanStep returns the mean difference between two neighbouring numbers of `order`.
func meanStep(order []int) float64 {
	sum := 0
	for i, n := range order[1:] {
		sum += max(n-order[i], order[i]-n)
	}
	return float64(sum) / float64(len(order)-1)
}

// Batches are equal for any number of workers, and after a resume at any batch. This holds for
// every way to read the archive.
func TestEpoch_SameForWorkersAndResume(t *testing.T) {
	const n = 250
	members := damaged(noisy(n), 3, 20, 21, 22, 100, 249)
	packed := tarOf(members)
	random := rand.New(rand.NewPCG(4, 4))
	for _, s := range []source{
		{"tar", write(t, "a.tar", packed), "even", func(*Options) {}},
		{"tgz kept", write(t, "a.tgz", gzipOf(packed)), "even", func(o *Options) { o.Reading.ShuffleBuffer = 64 << 20 }},
		{"tgz in blocks", write(t, "a.tgz", gzipOf(packed)), "blocks", func(*Options) {}},
		{"tgz streamed first", write(t, "a.tgz", gzipOf(packed)), "streamed first", func(o *Options) { o.Labels.Classes = []string{"a", "b", "c"} }},
		{"tgz with index file", write(t, "a.tgz", gzipOf(packed)), "streamed first", func(o *Options) {
			o.Labels.Classes, o.Index.NoFile = []string{"a", "b", "c"}, false
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			var lines []string
			var states []State
			for _, workers := range []int{1, 3, 16} {
				o := blockOptions()
				o.Reading.MaxSkipRate, o.Workers = 0.1, workers
				s.change(&o)
				l := open(t, s.path, o)
				var got []string
				if got, states = readStates(t, l, 2); lines == nil {
					lines = got
				}
				wantLines(t, fmt.Sprint(workers, " workers"), got, lines)
				l.Close()
			}
			if len(lines) != 2*((n-6+6)/7) {
				t.Fatalf("%d batches", len(lines))
			}
			places := 8
			if testing.Short() {
				places = 3
			}
			for range places {
				at := random.IntN(len(lines))
				o := blockOptions()
				o.Reading.MaxSkipRate, o.Workers = 0.1, 1+random.IntN(5)
				s.change(&o)
				wantRest(t, fmt.Sprintf("after batch %d", at), s.path, o, states[at], 2, lines[at+1:])
			}
		})
	}
}

// The index is stored beside the archive, and the next loader uses it. If the archive is
// replaced, the index is made again.
func TestOpen_IndexFile(t *testing.T) {
	if testing.Short() {
		t.Skip("many files")
	}
	path := write(t, "noisy.tgz", gzipOf(tarOf(noisy(250))))
	o := blockOptions()
	o.Index.NoFile = false
	first := open(t, path, o)
	want := order(t, first)
	if got := first.Stats().IndexFiles; len(got) != 1 || got[0] != path+".index" {
		t.Fatalf("index files %v, %s", got, first.Stats().IndexError)
	}
	first.Close()
	before := must.Get(os.Stat(path + ".index"))(t)
	second := open(t, path, o)
	if got := order(t, second); !slices.Equal(got, want) {
		t.Error("another order with the index file")
	}
	second.Close()
	after, err := os.Stat(path + ".index")
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the index was written again: %v", err)
	}

	must.Do(t, os.WriteFile(path, gzipOf(tarOf(noisy(200))), 0o644))
	third := open(t, path, o)
	if got := len(order(t, third)); got != 200 {
		t.Errorf("%d images of the new archive, want 200", got)
	}
	third.Close()
	if after, _ := os.Stat(path + ".index"); os.SameFile(before, after) {
		t.Error("the stale index was kept")
	}

	folder := t.TempDir()
	o.Index.Dir = folder
	open(t, path, o)
	if files, _ := os.ReadDir(folder); len(files) != 1 {
		t.Errorf("%d files in IndexDir", len(files))
	}
}

func TestOpen_Shards(t *testing.T) {
	members := numbered(30)
	folder := t.TempDir()
	for i := range 3 {
		part := tarOf(members[10*i : 10*i+10])
		if i == 1 {
			part = gzipOf(part)
		}
		must.Do(t, os.WriteFile(fmt.Sprintf("%s/train-%03d.tar", folder, i), part, 0o644))
	}
	for _, pattern := range []string{"/train-{000..002}.tar", "/train-*.tar", "/train-00[0-2].tar"} {
		for _, buffer := range []int{0, 100} {
			o := options()
			o.Reading.ShuffleBuffer = buffer
			l := open(t, folder+pattern, o)
			if got := levels(t, l); len(got) != 30 || !slices.IsSorted(got) {
				t.Errorf("%s: images %v", pattern, got)
			}
			l.Close()
			o.Train = true
			l = open(t, folder+pattern, o)
			got := levels(t, l)
			slices.Sort(got)
			if len(got) != 30 || got[0] != 0 || got[29] != 29 || len(slices.Compact(got)) != 30 {
				t.Errorf("%s, shuffled: images %v", pattern, got)
			}
			l.Close()
		}
	}
	for pattern, want := range map[string]string{
		"/train-{000..003}.tar": "train-003.tar: no such file", "/other-*.tar": "no file fits this pattern", "/train-{002..000}.tar": "no range of numbers",
	} {
		_, err := Open(folder+pattern, options())
		wantError(t, err, ErrArchive, want)
	}
}

// The ranks together see every image. All ranks have the same number of batches, even if some
// images are unusable.
func TestEpoch_Ranks(t *testing.T) {
	for _, test := range []struct {
		images, ranks int
		drop          bool
		bad           []int
		each, seen    int // each: images of each rank. seen: different images of all ranks
	}{
		{20, 4, false, nil, 5, 20},
		{22, 4, false, nil, 6, 22},
		{22, 4, true, nil, 5, 20},
		{22, 3, false, []int{4, 5, 17}, 8, 19},
		{3, 4, false, nil, 1, 3},
	} {
		for _, s := range sources(t, damaged(numbered(test.images), test.bad...)) {
			for _, shuffled := range []bool{false, true} {
				seen := map[string]bool{}
				for rank := range test.ranks {
					o := options()
					o.BatchSize, o.Reading.MaxSkipRate, o.Train, o.Crop.NoFlip = 2, 0.5, shuffled, true
					s.change(&o)
					o.Ranks.World, o.Ranks.Rank, o.Ranks.DropRest = test.ranks, rank, test.drop
					l := open(t, s.path, o)
					images, batches := 0, 0
					for batch := range batchesOf(t, l) {
						images, batches = images+batch.N, batches+1
						for _, name := range batch.Names {
							seen[name] = true
						}
					}
					if images != test.each || batches != l.Batches() || l.Len() != test.each {
						t.Errorf("%+v, %s, rank %d: %d images in %d batches; Len %d, Batches %d", test, s.name, rank, images, batches, l.Len(), l.Batches())
					}
					l.Close()
				}
				if !test.drop && len(seen) != test.seen || len(seen) > test.seen {
					t.Errorf("%+v, %s: %d different images, want %d", test, s.name, len(seen), test.seen)
				}
			}
		}
	}
	_, err := Open(write(t, "a.tar", tarOf(numbered(3))), Options{Ranks: Ranks{World: 4, DropRest: true}})
	wantError(t, err, ErrNoImages, "3 images for 4 ranks")
	_, err = Open("a.tar", Options{Ranks: Ranks{World: 2, Rank: 2}})
	wantError(t, err, ErrInvalidOptions, "Rank is 2")
}

// If an archive is read in blocks, each rank reads only its own part, and can resume in this
// part.
func TestEpoch_Ranks_Blocks(t *testing.T) {
	path := write(t, "noisy.tgz", gzipOf(tarOf(noisy(250))))
	seen := map[string]int{}
	for rank := range 3 {
		o := blockOptions()
		o.Ranks.World, o.Ranks.Rank = 3, rank
		l := open(t, path, o)
		var lines []string
		var states []State
		for batch := range batchesOf(t, l) {
			for _, name := range batch.Names {
				seen[name]++
			}
			lines, states = append(lines, line(batch)), append(states, batch.State)
		}
		l.Close()
		for at := 0; at < len(lines); at += 3 {
			wantRest(t, fmt.Sprintf("rank %d after batch %d", rank, at), path, o, states[at], 1, lines[at+1:])
		}
	}
	twice := 0
	for _, times := range seen {
		twice += times - 1
	}
	if len(seen) != 250 || twice != 2 {
		t.Errorf("%d different images, %d of them twice; want 250, and 2 to make 3 times 84", len(seen), twice)
	}
}

// If many images of a rank are unusable, the rank repeats its usable images. It then has as many
// images as the other ranks. Each unusable image counts once, and the state of every batch can be
// restored.
func TestEpoch_Ranks_Repeat(t *testing.T) {
	for _, s := range sources(t, damaged(numbered(20), 0, 1, 2, 4, 5, 6, 8)) {
		o := options()
		s.change(&o)
		o.Ranks.World, o.Reading.MaxSkipRate, o.BatchSize = 2, 0.7, 3
		l := open(t, s.path, o)
		var lines []string
		var states []State
		images := 0
		for batch := range batchesOf(t, l) {
			lines, states, images = append(lines, line(batch)), append(states, batch.State), images+batch.N
		}
		if images != 10 {
			t.Errorf("%s: got %d images, want 10", s.name, images)
		}
		for i, state := range states {
			must.Do(t, l.Restore(state))
			wantLines(t, fmt.Sprintf("%s after batch %d", s.name, i), read(t, l), lines[i+1:])
		}
		o.Reading.MaxSkipRate = 0.6
		_, err := tryRead(open(t, s.path, o))
		wantError(t, err, ErrBadMember, "7 of 10 images are unusable")
	}
}

// With DropLast all ranks leave out a last batch that is smaller, and their epochs end.
func TestEpoch_Ranks_DropLast(t *testing.T) {
	for _, s := range sources(t, damaged(numbered(20), 3, 13)) {
		for rank := range 2 {
			o := options()
			s.change(&o)
			o.Ranks.World, o.Ranks.Rank, o.DropLast, o.Reading.MaxSkipRate = 2, rank, true, 0.2
			l := open(t, s.path, o)
			for range 2 {
				if got := len(read(t, l)); got != 2 || l.Batches() != 2 {
					t.Errorf("%s, rank %d: %d batches, and Batches is %d, want 2", s.name, rank, got, l.Batches())
				}
			}
		}
	}
}

// A rank reads only the 200 images of its part in each epoch. Every further read would fail, and
// the epoch is still whole.
func TestEpoch_Ranks_ReadNoMore(t *testing.T) {
	data := tarOf(numbered(400))
	o := options()
	o.Ranks.World, o.Reading.Retries, o.BatchSize = 2, -1, 100
	var reads, allowed atomic.Int64
	allowed.Store(math.MaxInt64)
	l := must.Get(OpenReaderAt(readerFunc(func(p []byte, off int64) (int, error) {
		if reads.Add(1) > allowed.Load() {
			return 0, errors.New("line is down")
		}
		return bytes.NewReader(data).ReadAt(p, off)
	}), int64(len(data)), "far.tar", o))(t)
	defer closeWhole(t, l)
	opened := reads.Load()
	for i := range 20 {
		allowed.Store(opened + 200*int64(i+2)) // the next epoch is read ahead, as soon as this one is assembled
		if got := read(t, l); len(got) != 2 {
			t.Fatalf("got %d batches", len(got))
		}
	}
}
