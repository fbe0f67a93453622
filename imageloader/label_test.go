package imageloader

import (
	"fmt"
	"testing"
)

func TestLoader_Classes(t *testing.T) {
	members := []member{ // not in order, and with a class that only one split has
		{name: "train/dog/0.png", body: solid(0, 3, 3)},
		{name: "train/cat/1.png", body: solid(1, 3, 3)},
		{name: "test/ant/2.png", body: solid(2, 3, 3)},
		{name: "train/dog/3.png", body: solid(3, 3, 3)},
		{name: "test/cat/4.png", body: solid(4, 3, 3)},
	}
	stray := member{name: "misc/5.png", body: solid(5, 3, 3)} // in no split
	withStray := write(t, "stray.tar", tarOf(append([]member{stray}, members...)))
	packed := tarOf(members)
	paths := []string{write(t, "a.tar", packed), write(t, "a.tgz", gzipOf(packed))}
	o := options()
	if got, want := fmt.Sprint(open(t, withStray, o).Classes()), "[ant cat dog misc]"; got != want {
		t.Errorf("CLASS/FILE among SPLIT/CLASS/FILE: got classes %v, want %v", got, want)
	}
	o.Split = "train"
	if got, want := fmt.Sprint(open(t, withStray, o).Classes()), "[ant cat dog]"; got != want {
		t.Errorf("CLASS/FILE where a split is asked for: got classes %v, want %v", got, want)
	}
	for _, test := range []struct {
		name    string
		change  func(*Options)
		classes string
		labels  string
	}{
		{"archive", func(o *Options) {}, "[ant cat dog]", "[2 1 0 2 1]"},
		{"archive, train", func(o *Options) { o.Split = "train" }, "[ant cat dog]", "[2 1 2]"},
		{"archive, test", func(o *Options) { o.Split = "test" }, "[ant cat dog]", "[0 1]"},
		{"caller", func(o *Options) { o.Labels.Classes = []string{"dog", "cat", "ant", "bee"} }, "[dog cat ant bee]", "[0 1 2 0 1]"},
		{"caller, train", func(o *Options) { o.Labels.Classes, o.Split = []string{"cat", "dog"}, "train" }, "[cat dog]", "[1 0 1]"},
	} {
		for _, path := range paths {
			for _, buffer := range []int{0, 400} {
				t.Run(fmt.Sprintf("%s/%d/%s", test.name, buffer, path), func(t *testing.T) {
					o := options()
					o.BatchSize, o.Reading.ShuffleBuffer = 10, buffer
					test.change(&o)
					l := open(t, path, o)
					if got := fmt.Sprint(l.Classes()); got != test.classes {
						t.Errorf("got classes %v, want %v", got, test.classes)
					}
					for batch := range batchesOf(t, l) {
						if got := fmt.Sprint(batch.Labels); got != test.labels {
							t.Errorf("got labels %v, want %v", got, test.labels)
						}
					}
				})
			}
		}
	}
}

func TestOpen_UnknownClass(t *testing.T) {
	for _, s := range sources(t, numbered(30)) {
		if s.order != "even" {
			continue // with given classes, Open does not read the whole archive: see the next test
		}
		t.Run(s.name, func(t *testing.T) {
			checkLeaks(t)
			o := options()
			s.change(&o)
			o.Labels.Classes, o.Reading.MaxSkipRate = []string{"a", "c"}, 1 // an unknown class is no reason to skip an image
			_, err := Open(s.path, o)
			wantError(t, err, ErrUnknownClass, s.path+": member ", "): class \"b\" is not one of the 2 in Options.Labels.Classes (a, c)")
		})
	}
}

// The epoch fails when it reads an image of an unknown class, if Open did not read the image.
func TestEpoch_UnknownClass(t *testing.T) {
	members := numbered(30)
	members[25].name = "train/x/025.png"
	o := options()
	o.Reading.ShuffleBuffer, o.Labels.Classes = 500, []string{"a", "b", "c"}
	l := open(t, write(t, "a.tgz", gzipOf(tarOf(members))), o)
	_, err := tryRead(l)
	wantError(t, err, ErrUnknownClass, `member 26 (train/x/025.png): class "x" is not one of the 3`)
}

func TestOpen_UnknownSplit(t *testing.T) {
	checkLeaks(t)
	for _, s := range sources(t, numbered(30)) {
		o := options()
		s.change(&o)
		o.Split = "val"
		l, err := Open(s.path, o)
		if s.order == "streamed first" && err == nil { // the first epoch finds that the split is unknown
			_, err = tryRead(l)
			l.Close()
		}
		wantError(t, err, ErrNoImages, s.path, `no images in split "val"; there are the splits train (30); Options.Split "." takes all`)
	}
}

// If the archive has no splits and a split is asked for, Open fails. The error names the
// directories of the archive.
func TestOpen_NoSplits(t *testing.T) {
	checkLeaks(t)
	var members []member
	for i, class := range []string{"f", "e", "d\n", "c", "b", "a", "a"} {
		members = append(members, member{name: fmt.Sprintf("%s/%d.png", class, i), body: solid(1, 2, 2)})
	}
	o := options()
	for _, test := range []struct {
		more []member
		want string
	}{
		{nil, `no images in split "train"; there are images of no split, CLASS/FILE, in the directories a (2), b (1), c (1), "d\n" (1), e (1), …; Options.Split "." takes all`},
		{[]member{{name: "test/a/1.png", body: solid(1, 2, 2)}}, `there are the splits test (1); there are images of no split, CLASS/FILE, in the directories a (2), b`},
	} {
		for _, path := range []string{write(t, "a.tar", tarOf(append(test.more, members...))), write(t, "a.tgz", gzipOf(tarOf(append(test.more, members...))))} {
			o.Split = "train"
			_, err := Open(path, o)
			wantError(t, err, ErrNoImages, path+": ", test.want)
			o.Split = ""
			if got := open(t, path, o).Len(); got != len(members)+len(test.more) {
				t.Errorf("Split \"\": %d images, want %d", got, len(members)+len(test.more))
			}
		}
	}
	o.Split = "train"
	_, err := Open(write(t, "b.tar", tarOf([]member{{name: "a.txt"}})), o)
	wantError(t, err, ErrNoImages, `no images in split "train" (passed over: 1 not an image)`)
}
