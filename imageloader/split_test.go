package imageloader

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// named returns an image for each name.
func named(names string) (members []member) {
	for i, name := range strings.Fields(names) {
		members = append(members, member{name: name + ".png", body: solid(i, 4, 4)})
	}
	return members
}

// With Train and without Split, an archive of several splits is an error that names them.
func TestOpen_Splits(t *testing.T) {
	checkLeaks(t)
	const two = "test/a/1 test/b/2 train/a/3 train/a/4 train/b/5"
	for _, c := range []struct {
		name, images string
		change       func(*Options)
		fails        string // "" means that all images are read
	}{
		{"train and test", two, nil, "the splits test (2), train (3)"},
		{"train, val and test", two + " val/a/6", nil, "the splits test (2), train (3), val (1)"},
		{"train and validation", "train/a/1 validation/a/2 validation/b/3", nil, "the splits train (1), validation (2)"},
		{"train and dev", "dev/a/1 train/a/2", nil, "the splits dev (1), train (1)"},
		{"valid and training", "training/a/1 valid/a/2", nil, "the splits training (1), valid (1)"},
		{"Train and Test", "Test/a/1 Train/a/2", nil, "the splits Test (1), Train (1)"},
		{"train2017 and val2017", "train2017/a/1 val2017/b/2", nil, "the splits train2017 (1), val2017 (1)"},
		{"below a folder", "photos/test/a/1 photos/train/a/2", nil, "the splits photos/test (1), photos/train (1)"},
		{"other classes", "test/c/1 train/a/2", nil, "the splits test (1), train (1)"},
		{"splits of other names", "fold1/a/1 fold2/a/2 fold3/a/3", nil, "the splits fold1 (1), fold2 (1), fold3 (1)"},
		{"a test beside classes", "a/1 b/2 test/a/3", nil, "the splits . (2), test (1)"},
		{"some classes alone", two, func(o *Options) { o.Labels.Only = []string{"a"} }, "the splits test ("},
		{"a limit", two, func(o *Options) { o.Limit = 2 }, "the splits test ("},
		{"a limit and classes", two, func(o *Options) { o.Limit, o.Labels.Classes = 2, []string{"a", "b"} }, "the splits test (2)"},
		{"ranks", two, func(o *Options) { o.Ranks.World, o.Ranks.Rank = 2, 1 }, "the splits test (2), train (3)"},

		{"a split", two, func(o *Options) { o.Split = "train" }, ""},
		{"all", two, func(o *Options) { o.Split = "." }, ""},
		{"no training", two, func(o *Options) { o.Train = false }, ""},
		{"train alone", "train/a/1 train/b/2", nil, ""},
		{"test alone", "test/a/1 test/b/2", nil, ""},
		{"train alone, a limit and classes", "train/a/1 train/b/2", func(o *Options) { o.Limit, o.Labels.Classes = 2, []string{"a", "b"} }, ""},
		{"no split", "a/1 b/2", nil, ""},
		{"a folder above", "photos/a/1 photos/b/2", nil, ""},
		{"groups of classes", "animals/cat/1 animals/dog/2 vehicles/car/3", nil, ""},
		{"classes named train and test", "test/1 train/2", nil, ""},
		{"a class named train", "vehicles/car/1 vehicles/train/2", nil, ""},
		{"a class named train among others", "car/1 train/2", nil, ""},
		{"a class named contest", "contest/a/1 protest/b/2", nil, ""},
	} {
		members := named(c.images)
		for _, s := range sources(t, members) {
			o := options()
			o.Train = true
			if s.change(&o); s.order == "streamed first" {
				o.Labels.Classes = strings.Fields("a b c cat dog car train test contest")
			}
			if c.change != nil {
				c.change(&o)
			}
			if s.order == "streamed first" && len(o.Labels.Only)+o.Limit > 0 { // these have tests of their own
				continue
			}
			l, err := Open(s.path, o)
			images := 0
			if err == nil {
				_, err = tryRead(l)
				images = l.Len()
				l.Close()
			}
			where := fmt.Sprintf("%s, %s: ", c.name, s.name)
			switch want := c.fails; {
			case want == "" && err != nil:
				t.Errorf("%s%v", where, err)
			case want == "" && o.Split != "train" && images != len(members), o.Split == "train" && images != 3:
				t.Errorf("%s%d images", where, images)
			case want != "":
				if s.order == "streamed first" { // the counts are those of the images so far
					want = "the splits "
				}
				wantError(t, err, ErrInvalidOptions, s.path+": there are ", want, "Options.Train is set without Options.Split")
			}
		}
	}
}

// In a WebDataset the directories of its members may stand for nothing, or for splits.
func TestOpen_SplitsOfMembers(t *testing.T) {
	checkLeaks(t)
	o := options()
	o.Train = true
	path := write(t, "a.tar", tarOf(append(beside("train/%03d", "png", "cls"), beside("val/%03d", "png", "cls")...)))
	_, err := Open(path, o)
	wantError(t, err, ErrInvalidOptions, "there are the splits train (12), val (12)")
	o.Split = "val"
	must.Check(t, rightLabels(open(t, path, o)))
	o.Split = ""
	must.Check(t, rightLabels(open(t, write(t, "b.tar", tarOf(append(beside("000/%03d", "png", "cls"), beside("001/%03d", "png", "cls")...))), o)))
}

// The names of shards can be those of splits too.
func TestOpen_ShardsOfSplits(t *testing.T) {
	checkLeaks(t)
	folder := t.TempDir()
	for _, name := range strings.Fields("train-0 train-1 test-0 extra-0") {
		must.Do(t, os.WriteFile(folder+"/"+name+".tar", tarOf(named("a/1 b/2")), 0o644))
	}
	o := options()
	o.Train = true
	_, err := Open(folder+"/*.tar", o)
	wantError(t, err, ErrInvalidOptions, "there are shards of several splits, ", "/test-0.tar, ", "/train-0.tar", `or "." for all images`)
	for _, test := range []struct {
		pattern, split string
		want           int
	}{{"/train-*.tar", "", 4}, {"/train-{0..1}.tar", "", 4}, {"/[et]*[an]-0.tar", "", 4}, {"/*tra*.tar", "", 6}, {"/*.tar", ".", 8}} {
		o.Split = test.split
		if got := open(t, folder+test.pattern, o).Len(); got != test.want {
			t.Errorf("%s: %d images, want %d", test.pattern, got, test.want)
		}
	}
	o.Train, o.Split = false, ""
	if got := open(t, folder+"/*.tar", o).Len(); got != 8 {
		t.Errorf("without Train: %d images", got)
	}
}
