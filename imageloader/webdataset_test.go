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

// samplesOf returns the images of numbered(n), with the label of each image in a member of its
// own. A "cls" member comes before the image, and a "json" member after the image.
func samplesOf(n int, what string, text func(label int) string) (members []member) {
	for i, m := range numbered(n) {
		key := fmt.Sprintf("%05d", i)
		image := member{name: key + ".png", body: m.body}
		side := member{name: key + "." + what, body: []byte(text(label(i, n)))}
		if what < "png" {
			members = append(members, side, image, member{name: key + ".txt", body: []byte("a caption")})
		} else {
			members = append(members, image, side)
		}
	}
	return members
}

// labelsOf reads one epoch and returns the level and the label of each image, in the order of the
// levels.
func labelsOf(t *testing.T, l *Loader) (pairs []string) {
	t.Helper()
	for batch := range batchesOf(t, l) {
		for i := range batch.N {
			pairs = append(pairs, fmt.Sprintf("%02d:%d", batch.Images[4*i], batch.Labels[i]))
		}
	}
	slices.Sort(pairs)
	return pairs
}

func TestWebDataset(t *testing.T) {
	const n = 24
	number := func(label int) string { return fmt.Sprintf("%d\n", label) }
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("%02d:%d", i, label(i, n)))
	}
	for _, test := range []struct {
		name    string
		members []member
		change  func(*Options)
		classes string
	}{
		{"numbers", samplesOf(n, "cls", number), nil, "[0 1 2]"},
		{"numbers in JSON", samplesOf(n, "json", func(l int) string { return fmt.Sprintf(`{"caption": "x", "label": %d}`, l) }), nil, "[0 1 2]"},
		{"names", samplesOf(n, "cls", func(l int) string { return []string{"cat", "dog", "owl"}[l] }), nil, "[cat dog owl]"},
		{"names in a field", samplesOf(n, "json", func(l int) string { return fmt.Sprintf(`{"label": [1], "kind": "%c"}`, 'x'+l) }),
			func(o *Options) { o.Labels.Field = "kind" }, "[x y z]"},
		{"numbers of classes given", samplesOf(n, "cls", number), func(o *Options) { o.Labels.Classes = []string{"cat", "dog", "owl", "rat"} }, "[cat dog owl rat]"},
		{"names of classes given", samplesOf(n, "cls", func(l int) string { return []string{"cat", "dog", "owl"}[l] }),
			func(o *Options) { o.Labels.Classes = []string{"cat", "dog", "owl", "rat"} }, "[cat dog owl rat]"},
	} {
		packed := tarOf(test.members)
		middle := 3 * (n / 2) * (len(test.members) / n) / 3
		shards := t.TempDir()
		for i, part := range [][]member{test.members[:middle], test.members[middle:]} {
			must.Do(t, os.WriteFile(fmt.Sprintf("%s/part-%03d.tar", shards, i), tarOf(part), 0o644))
		}
		for _, s := range []struct {
			name, path string
			buffer     int
		}{
			{"tar", write(t, "a.tar", packed), 0},
			{"shards", shards + "/part-{000..001}.tar", 0},
			{"tgz", write(t, "a.tgz", gzipOf(packed)), 0},
			{"tgz in blocks", write(t, "b.tgz", gzipOf(packed)), 500},
		} {
			for range 2 { // first without an index file, then with it
				o := options()
				o.Reading.ShuffleBuffer, o.Train, o.Crop.NoFlip = s.buffer, true, true
				if test.change != nil {
					test.change(&o)
				}
				l := open(t, s.path, o)
				for range 2 {
					if got := labelsOf(t, l); !slices.Equal(got, want) {
						t.Errorf("%s, %s: got %v, want %v", test.name, s.name, got, want)
					}
				}
				if got := fmt.Sprint(l.Classes()); got != test.classes {
					t.Errorf("%s, %s: classes %s, want %s", test.name, s.name, got, test.classes)
				}
				l.Close()
			}
		}
	}
}

// The directory's name is the label if samples have no labels, or if Options.Labels.From asks for
// directories.
func TestWebDataset_Found(t *testing.T) {
	plain := numbered(6)
	beside := samplesOf(6, "cls", func(int) string { return "9" })
	for i := range beside {
		beside[i].name = "train/cat/" + beside[i].name
	}
	meta := slices.Clone(plain)
	meta = append(meta, member{name: "train/a/000.json", body: []byte(`{"label": 7}`)}) // not next to its image
	for _, test := range []struct {
		name    string
		members []member
		labels  LabelSource
		classes string
	}{
		{"directories", plain, LabelsFound, "[a b c]"},
		{"JSON elsewhere", meta, LabelsFound, "[a b c]"},
		{"samples in directories", beside, LabelsFound, "[0 1 2 3 4 5 6 7 8 9]"},
		{"samples, but directories are asked for", beside, LabelsFromDirectories, "[cat]"},
	} {
		o := options()
		o.Labels.From, o.Split = test.labels, "train"
		l := open(t, write(t, "a.tar", tarOf(test.members)), o)
		if got := fmt.Sprint(l.Classes()); got != test.classes {
			t.Errorf("%s: classes %s, want %s", test.name, got, test.classes)
		}
		if got := len(labelsOf(t, l)); got != 6 {
			t.Errorf("%s: %d images", test.name, got)
		}
	}
	o := options()
	o.Labels.From = LabelsFromMembers
	_, err := Open(write(t, "a.tar", tarOf(plain)), o)
	wantError(t, err, ErrBadMember, "member 1 (train/a/000.png): no label: its sample has no .cls, and no .json with the field")
}

// An image with a wrong label is unusable. The image never gets the label of another image.
func TestWebDataset_BadLabels(t *testing.T) {
	image := numbered(3)[1].body
	good := []member{{name: "0.cls", body: []byte("1")}, {name: "0.png", body: image}}
	for _, test := range []struct {
		name    string
		members []member
		want    string
	}{
		{"none", []member{{name: "1.png", body: image}}, "member 3 (1.png): no label"},
		{"of another sample", []member{{name: "1.png", body: image}, {name: "2.cls", body: []byte("1")}}, "member 3 (1.png): no label"},
		{"negative", []member{{name: "1.cls", body: []byte("-1")}, {name: "1.png", body: image}}, "its label is -1; it must be 0 to 999999"},
		{"large", []member{{name: "1.cls", body: []byte("99999999999999999999")}, {name: "1.png", body: image}}, "it must be 0 to 999999"},
		{"empty", []member{{name: "1.cls"}, {name: "1.png", body: image}}, "its label, in 1.cls, is empty"},
		{"blank", []member{{name: "1.cls", body: []byte(" \n")}, {name: "1.png", body: image}}, `its label is ""`},
		{"lines", []member{{name: "1.cls", body: []byte("1\n2")}, {name: "1.png", body: image}}, `its label is "1\n2"`},
		{"long", []member{{name: "1.cls", body: []byte(strings.Repeat("x", 5000))}, {name: "1.png", body: image}}, "larger than 4096 bytes"},
		{"a fraction", []member{{name: "1.json", body: []byte(`{"label": 1.5}`)}, {name: "1.png", body: image}}, "its label is 1.5; it must be 0 to 999999, or a name"},
		{"an object", []member{{name: "1.json", body: []byte(`{"label": {"x": 1}}`)}, {name: "1.png", body: image}}, "no label"},
		{"null", []member{{name: "1.json", body: []byte(`{"label": null}`)}, {name: "1.png", body: image}}, "no label"},
	} {
		for _, path := range []string{write(t, "a.tar", tarOf(append(slices.Clone(good), test.members...))), write(t, "a.tgz", gzipOf(tarOf(append(slices.Clone(good), test.members...))))} {
			_, err := Open(path, options())
			wantError(t, err, ErrBadMember, test.want)
			o := options()
			o.Reading.MaxSkipRate = 0.5
			l := open(t, path, o)
			if got := fmt.Sprint(labelsOf(t, l)); got != "[01:1]" {
				t.Errorf("%s: got %s", test.name, got)
			}
		}
	}
	mixed := append(slices.Clone(good), member{name: "1.cls", body: []byte("cat")}, member{name: "1.png", body: image})
	_, err := Open(write(t, "mixed.tar", tarOf(mixed)), options())
	wantError(t, err, ErrUnknownClass, "some labels are numbers, such as 1, and some are names, such as cat")
	o := options()
	o.Labels.Classes = []string{"only"}
	_, err = Open(write(t, "beyond.tar", tarOf(good)), o)
	wantError(t, err, ErrUnknownClass, `class "1" is not one of the 1 in Options.Labels.Classes`)
}

// Scan counts the images of a WebDataset by label. Labels that are numbers are in the order of
// the numbers.
func TestWebDataset_Scan(t *testing.T) {
	var members []member
	for i, m := range numbered(12) {
		members = append(members, member{name: fmt.Sprintf("%d.cls", i), body: []byte(fmt.Sprint(i))}, member{name: fmt.Sprintf("%d.png", i), body: m.body})
	}
	report := must.Get(Scan(context.Background(), write(t, "a.tgz", gzipOf(tarOf(members))), 0))(t)
	if got := fmt.Sprint(report.Classes); report.Images != 12 || got != "[{0 1} {1 1} {2 1} {3 1} {4 1} {5 1} {6 1} {7 1} {8 1} {9 1} {10 1} {11 1}]" {
		t.Errorf("%d images, classes %s", report.Images, got)
	}
}

// If a sample has several images, the first is read, and the others are counted.
func TestWebDataset_SeveralImages(t *testing.T) {
	all := numbered(4)
	members := []member{
		{name: "0.cls", body: []byte("0")}, {name: "0.png", body: all[1].body}, {name: "0.jpg", body: all[2].body}, {name: "0.seg.png", body: all[3].body},
	}
	l := open(t, write(t, "a.tar", tarOf(members)), options())
	if got := fmt.Sprint(labelsOf(t, l), l.Stats().Ignored); got != "[01:0] map[further image of a sample:1 not an image:1]" {
		t.Error(got)
	}
}

// Members without a key, such as the files that macOS adds and directories, do not part a sample.
func TestWebDataset_MembersBetween(t *testing.T) {
	const n = 6
	var members []member
	for i, m := range samplesOf(n, "cls", func(label int) string { return fmt.Sprint(label) }) {
		m.name = "train/" + m.name
		folder, base, _ := strings.Cut(m.name, "/")
		members = append(members, member{name: folder + "/._" + base, body: []byte("macOS")}, m)
		if i == 3 {
			members = append(members, member{name: "train/README", body: []byte("text")})
		}
	}
	for _, labels := range []LabelSource{LabelsFound, LabelsFromMembers} {
		for _, path := range []string{write(t, "a.tar", tarOf(members)), write(t, "a.tgz", gzipOf(tarOf(members)))} {
			o := options()
			o.Labels.From, o.Train, o.Crop.NoFlip = labels, true, true
			l := open(t, path, o)
			if got, want := fmt.Sprint(labelsOf(t, l), l.Classes()), "[00:0 01:0 02:1 03:1 04:2 05:2] [0 1 2]"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	}
}

// An image without a label does not fail the loader of another split.
func TestWebDataset_BadOfAnotherSplit(t *testing.T) {
	image := numbered(1)[0].body
	members := []member{
		{name: "train/0.cls", body: []byte("1")}, {name: "train/0.png", body: image},
		{name: "test/1.png", body: image},
	}
	o := options()
	o.Labels.From, o.Split = LabelsFromMembers, "train"
	l := open(t, write(t, "a.tar", tarOf(members)), o)
	if got := len(labelsOf(t, l)); got != 1 {
		t.Errorf("%d images", got)
	}
	o.Split = "test"
	_, err := Open(write(t, "a.tar", tarOf(members)), o)
	wantError(t, err, ErrBadMember, "no label")
}
