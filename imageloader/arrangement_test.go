package imageloader

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// An arrangement is an order of the members of twelve labelled images. Image i is of level i, and
// its label is i % 3. A loader must give these labels, or an error.
type arrangement struct {
	name    string
	members []member
	fails   string // text of the error. "" means that the labels must be right
	folder  string // the same for the members as files of a folder. "right" means that the labels must be right
	change  func(*Options)
}

const laid = 12

// each returns the members that `of` makes for each image.
func each(of func(i int) []member) (all []member) {
	for i := range laid {
		all = append(all, of(i)...)
	}
	return all
}

// memberOf returns a member of image i. The kind png is the image.
func memberOf(key string, i int, what string) member {
	m := member{name: fmt.Sprintf(key, i) + "." + what}
	switch what {
	case "png", "jpg", "jpeg", "0.png":
		m.body = solid(i, 4, 4)
	case "cls", "CLS", "txt", "label", "0.cls":
		m.body = []byte(fmt.Sprint(i % 3))
	case "json":
		m.body = []byte(fmt.Sprintf(`{"label": %d}`, i%3))
	case "cls.json":
		m = member{name: fmt.Sprintf(key, i) + ".json", body: []byte(fmt.Sprintf(`{"__key__": "x", "cls": %d}`, i%3))}
	case "class.json":
		m = member{name: fmt.Sprintf(key, i) + ".json", body: []byte(fmt.Sprintf(`{"class": "c%d"}`, i%3))}
	case "json2":
		m = member{name: fmt.Sprintf(key, i) + ".json", body: []byte(fmt.Sprintf(`{"key": "%d", "target": %d}`, i, i%3))}
	case "seg.png":
		m.body = solid(200, 4, 4)
	}
	return m
}

// beside returns, for each image, its members of all kinds one after another. apart returns the
// members of one kind after those of another.
func beside(key string, kinds ...string) []member {
	return each(func(i int) (all []member) {
		for _, what := range kinds {
			all = append(all, memberOf(key, i, what))
		}
		return all
	})
}

func apart(key string, kinds ...string) (all []member) {
	for _, what := range kinds {
		all = append(all, beside(key, what)...)
	}
	return all
}

func shuffledMembers(members []member) []member {
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(members), func(i, k int) { members[i], members[k] = members[k], members[i] })
	return members
}

func renamed(members []member, name func(string) string) []member {
	for i := range members {
		members[i].name = name(members[i].name)
	}
	return members
}

// listing is a file that names the label of each image.
func listing(name string) member {
	text := ""
	for i := range laid {
		text += fmt.Sprintf("%03d.png %d\n", i, i%3)
	}
	return member{name: name, body: []byte(text)}
}

func mac(members []member) (all []member) {
	for _, m := range members {
		all = append(all, member{name: path.Join(path.Dir(m.name), "._"+path.Base(m.name)), body: []byte("Mac OS X")}, m)
	}
	return all
}

const (
	labelApart = "it may be the label of an image, and the first image has no label beside it"
	oneClass   = "it may hold the labels, because the images are only of the class data"
	noLabel    = "no label: its sample has no .cls"
)

func arrangements() []arrangement {
	one := beside("data/%03d", "png", "cls")
	field := func(name string) func(*Options) { return func(o *Options) { o.Labels.Field = name } }
	return []arrangement{
		{"beside", one, "", "right", nil},
		{"beside, labels first", beside("data/%03d", "cls", "png"), "", "right", nil},
		{"beside, no directory", beside("%03d", "png", "cls"), "", "right", nil},
		{"beside, captions first", beside("data/%03d", "txt", "png", "cls"), "", "right", nil},
		{"beside, json", beside("data/%03d", "json", "png"), "", "right", nil},
		{"beside, json and other fields", beside("data/%03d", "png", "cls.json"), `its field "cls" may be the label`, `its field "cls" may be the label`, nil},
		{"beside, the field given", beside("data/%03d", "png", "cls.json"), "", "right", field("cls")},
		{"beside, names in a field", beside("data/%03d", "class.json", "png"), `its field "class" may be the label`, `its field "class"`, nil},
		{"beside, names in a field given", beside("data/%03d", "class.json", "png"), "", "right", field("class")},
		{"beside, upper case", beside("data/%03d", "jpg", "CLS"), "", "right", nil},
		{"beside, with dots above", beside("data.v1/%03d", "jpg", "cls"), "", "right", nil},
		{"beside, ./", renamed(beside("data/%03d", "png", "cls"), func(s string) string { return "./" + s }), "", "right", nil},
		{"beside, ./ of some", renamed(beside("data/%03d", "png", "cls"), func(s string) string { return strings.Replace("./"+s, "./data/00", "data/00", strings.Count(s, "cls")) }), "", "right", nil},
		{"beside, macOS", mac(one), "", "right", nil},
		{"beside, __MACOSX", renamed(mac(one), func(s string) string { return strings.Replace(s, "data/._", "__MACOSX/data/._", 1) }), "", "right", nil},
		{"beside, behind a hidden folder", append([]member{{name: ".thumbs/000.png", body: solid(9, 2, 2)}}, beside("data/%03d", "png", "cls")...), "", "right", nil},
		{"beside, two images", beside("data/%03d", "jpeg", "seg.png", "cls"), "", "right", nil},
		{"beside, equal keys in folders", each(func(i int) []member {
			return []member{{name: fmt.Sprintf("data/%c/0000.cls", 'a'+i), body: []byte(fmt.Sprint(i % 3))}, {name: fmt.Sprintf("data/%c/0000.png", 'a'+i), body: solid(i, 4, 4)}}
		}), "", "", nil},
		{"beside, in folders of shards", beside("shard-%[1]d/%03[1]d", "png", "cls"), "", "right", nil},
		{"beside, long names", beside(strings.Repeat("data/", 60)+"%03d", "png", "cls"), "", "right", nil},
		{"beside, with an index", append([]member{listing("data/index.txt")}, one...), "", "right", nil},

		{"images first", apart("data/%03d", "png", "cls"), labelApart, "right", nil},
		{"labels first", apart("data/%03d", "cls", "png"), labelApart, "right", nil},
		{"captions first", apart("data/%03d", "txt", "png", "cls"), labelApart, "right", nil},
		{"json behind", apart("data/%03d", "png", "json"), oneClass, "right", nil},
		{"json before", apart("data/%03d", "json", "png"), oneClass, "right", nil},
		{"order of a disk", shuffledMembers(beside("data/%03d", "png", "cls")), labelApart, "right", nil},
		{"order of a disk, json", shuffledMembers(beside("data/%03d", "png", "json")), oneClass, "right", nil},
		{"order of a disk, captions", shuffledMembers(beside("data/%03d", "png", "txt", "cls")), labelApart, "right", nil},
		{"no directory, images first", apart("%03d", "png", "cls"), "no class: it lies in no directory", "right", nil},
		{"no directory, json", beside("%03d", "png", "cls.json"), "no class: it lies in no directory", "no class: it lies in no directory", nil},
		{"folders of their own", append(beside("images/%03d", "png"), beside("labels/%03d", "cls")...), labelApart, labelApart, nil},
		{"folders of their own, json", append(beside("data/%03d", "png"), beside("labels/%03d", "json")...), oneClass, oneClass, nil},
		{"folders of two splits", append(apart("train/%03d", "png", "cls"), apart("val/%03d", "png", "cls")...), labelApart, "", nil},
		{"texts", beside("data/%03d", "png", "txt"), oneClass, oneClass, nil},
		{"texts of two splits", append(beside("train/%03d", "png", "txt"), beside("test/%03d", "png", "txt")...), "it may hold the labels, because the images are only of the class test, train", "it may hold the labels", nil},
		{"texts in folders of shards", beside("0000%[1]d/%03[1]d", "png", "txt"), "it may hold the labels, because the images are only of the class 00000, 00001", "it may hold the labels", nil},
		{"json in folders of shards", beside("part-%[1]d/%03[1]d", "json2", "png"), "it may hold the labels, because the images are only of the class part-0, ", "it may hold the labels", nil},
		{"files .label", beside("data/%03d", "png", "label"), labelApart, labelApart, nil},
		{"index.txt", append([]member{listing("index.txt")}, beside("data/%03d", "png")...), oneClass, oneClass, nil},
		{"labels.csv", append(beside("data/%03d", "png"), listing("labels.csv")), oneClass, oneClass, nil},
		{"data.json behind", append(beside("data/%03d", "png"), listing("data.json")), oneClass, oneClass, nil},
		{"dots in keys", beside("data/img.%03d", "png", "cls"), labelApart, labelApart, nil},
		{"dots behind keys", beside("data/%03d", "0.png", "0.cls"), labelApart, labelApart, nil},
		{"the first has no label", slices.Delete(beside("data/%03d", "png", "cls"), 1, 2), labelApart, labelApart, nil},
		{"the last has no label", one[:len(one)-1], noLabel, noLabel, nil},
		{"one label behind the next image", swapped(beside("data/%03d", "png", "cls"), 7, 8), noLabel, "right", nil},
		{"a label more", append(slices.Clone(one), memberOf("data/%03d", 99, "cls")), "", "right", nil},
		{"two labels", append(beside("data/%03d", "png", "cls"), member{name: "data/011.cls", body: []byte("0")}), "its sample has two labels, 2 and 0", "", nil},
		{"equal labels twice", beside("data/%03d", "cls", "png", "cls"), "", "", nil},
		{"equal keys one after another", append(beside("data/%03d", "png", "cls"), memberOf("data/0%02d", 11, "png"), member{name: "data/011.cls", body: []byte("1")}), "its sample has two labels, 2 and 1", "", nil},
	}
}

func swapped(members []member, i, k int) []member {
	members[i], members[k] = members[k], members[i]
	return members
}

// paxOf is tarOf with an extended header for each member, as Python's tarfile writes it.
func paxOf(members []member) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range members {
		err := w.WriteHeader(&tar.Header{Name: m.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(m.body)), Format: tar.FormatPAX, PAXRecords: map[string]string{"LIBARCHIVE.creationtime": "1"}})
		if err != nil {
			panic(err)
		}
		w.Write(m.body)
	}
	w.Close()
	return out.Bytes()
}

// Files beside the images of folders of classes, and of one folder, are labels or not.
func TestArrangements_Beside(t *testing.T) {
	text := func(name, body string) member { return member{name: name, body: []byte(body)} }
	both := func(body string) []member {
		return append(named("000/1"), text("000/1.json", body), named("001/2")[0], text("001/2.json", body))
	}
	const notScalar = "is no number and no text"
	type besides struct {
		name    string
		members []member
		want    string // the classes, or the begin of an error's reason
	}
	all := []besides{
		{"a label in a list", both(`{"label": [3]}`), notScalar},
		{"a label in an object", both(`{"label": {"id": 3}}`), notScalar},
		{"a label that is true", both(`{"label": true}`), notScalar},
		{"a label of null", both(`{"label": null}`), "[000 001]"},
		{"an object of a class", both(`{"class": {"id": 3}}`), notScalar},
		{"a label beside NaN", both(`{"score": NaN, "x": [-Infinity, "\"NaN"], "label": 1}`), "[0 1]"},
		{"a label that is text with NaN", both(`{"score": NaN, "label": "NaN bread"}`), "[NaN bread]"},
		{"a label that is NaN", both(`{"label": NaN}`), "[000 001]"},
		{"a label of the second only", append(both(`{}`), text("001/2.cls", "1")), labelApart},
		{"a hidden label", append(named("a/1 b/2"), text(".git/x.cls", "1")), "[a b]"},
		{"a hidden label of macOS", append(named("a/1 b/2"), text("__MACOSX/a/._x.cls", "1")), "[a b]"},
		{"hidden texts", append(named("a/1 a/2"), text("._LICENSE.txt", "x"), text(".meta.json", "x"), text("a/.labels", "x")), "[a]"},
		{"a packed label", append(named("a/1 b/2"), text("a/1.cls.gz", "x")), labelApart},
	}
	for name := range strings.FieldsSeq("LICENSE LICENCE.txt README readme.md README_dataset.txt COPYING.txt credits.txt Citation.txt ATTRIBUTION.txt CHANGELOG.txt SOURCE.txt a/Thumbs.db makefile x.py") {
		all = append(all, besides{name, append(named("a/1 a/2"), text(name, "x")), "[a]"})
	}
	for name := range strings.FieldsSeq("list.txt labels LABELS.CSV labels.csv.gz train.lst a/1.lbl labels.h5 labels.sqlite x.tfrecord labels.arrow labels.pt labels.xls labels.dat annotations source_labels.txt") {
		all = append(all, besides{name, append(named("a/1 a/2"), text(name, "x")), "it may hold the labels, because the images are only of the class a "})
	}
	for _, c := range all {
		for _, path := range []string{write(t, "a.tar", tarOf(c.members)), writeDirectory(t, c.members)} {
			l, err := Open(path, options())
			if err != nil {
				if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "): ") {
					t.Errorf("%s: got %v, want %q with the member's name", c.name, err, c.want)
				}
				continue
			}
			if got := fmt.Sprint(l.Classes()); got != c.want {
				t.Errorf("%s: got %s, want %q", c.name, got, c.want)
			}
			l.Close()
		}
	}
}

// rightLabels reports whether each image has its label. A label is a number, or the name c and the
// number.
func rightLabels(l *Loader) error {
	names := l.Classes()
	for batch, err := range l.Epoch(context.Background()) {
		if err != nil {
			return err
		}
		for i := range batch.N {
			level := int(batch.Images[4*i])
			if got := strings.TrimPrefix(names[batch.Labels[i]], "c"); got != fmt.Sprint(level%3) {
				batch.Release()
				return fmt.Errorf("SILENT: image %d has the label %s (%s)", level, got, batch.Names[i])
			}
		}
		batch.Release()
	}
	return nil
}

func TestArrangements(t *testing.T) {
	for _, c := range arrangements() {
		t.Run(c.name, func(t *testing.T) {
			packed := tarOf(c.members)
			halves := t.TempDir()
			half := len(c.members)/2 | 1 // a sample lies in both
			must.Do(t, os.WriteFile(halves+"/a-0.tar", tarOf(c.members[:half]), 0o644))
			must.Do(t, os.WriteFile(halves+"/a-1.tar", tarOf(c.members[half:]), 0o644))
			ways := []struct {
				name, path, fails string
				buffer            int
			}{
				{"tar", write(t, "a.tar", packed), c.fails, 0},
				{"tar of PAX", write(t, "p.tar", paxOf(c.members)), c.fails, 0},
				{"tgz", write(t, "a.tgz", gzipOf(packed)), c.fails, 0},
				{"tgz in blocks", write(t, "b.tgz", gzipOf(packed)), c.fails, 500},
				{"shards", halves + "/a-*.tar", "any", 0},
			}
			if c.folder != "" {
				ways = append(ways, struct {
					name, path, fails string
					buffer            int
				}{"folder", writeDirectory(t, c.members), strings.TrimSuffix(c.folder, "right"), 0})
			}
			for _, way := range ways {
				for _, train := range []bool{false, true, true} { // the last with an index file
					o := options()
					o.Train, o.Reading.ShuffleBuffer, o.Crop.NoFlip = train, way.buffer, true
					if c.change != nil {
						c.change(&o)
					}
					l, err := Open(way.path, o)
					if err == nil {
						err = rightLabels(l)
						l.Close()
					}
					switch {
					case way.fails == "any" && (err == nil || !strings.Contains(err.Error(), "SILENT")):
					case way.fails == "" && err != nil:
						t.Errorf("%s, train %v: %v", way.name, train, err)
					case way.fails != "" && (err == nil || !strings.Contains(err.Error(), way.fails)):
						t.Errorf("%s, train %v: got %v, want an error with %q", way.name, train, err, way.fails)
					case err != nil && !strings.HasPrefix(err.Error(), "imageloader: "+way.path+": "):
						t.Errorf("%s: the error names no archive: %v", way.name, err)
					}
				}
			}
		})
	}
}

// A program that says where labels are from gets them from there.
func TestArrangements_Asked(t *testing.T) {
	checkLeaks(t)
	path := write(t, "a.tar", tarOf(apart("data/%03d", "png", "cls")))
	for name, change := range map[string]func(*Options){
		"Labels":  func(o *Options) { o.Labels.From = LabelsFromDirectories },
		"Classes": func(o *Options) { o.Labels.Classes = []string{"data"} },
		"Only":    func(o *Options) { o.Labels.Only = []string{"data"} },
	} {
		o := options()
		change(&o)
		l := open(t, path, o)
		if got := fmt.Sprint(l.Classes(), len(labelsOf(t, l))); got != "[data] 12" {
			t.Errorf("%s: %s", name, got)
		}
	}
	plain := open(t, write(t, "b.tar", tarOf(append(beside("data/%03d", "png"), member{name: "README.txt", body: []byte("faces")}, member{name: "data/LICENSE.txt"}))), options())
	if got := fmt.Sprint(plain.Classes()); got != "[data]" {
		t.Errorf("without labels: %s", got)
	}
	ids := open(t, write(t, "c.tar", tarOf(append(named("0000045/1 0000045/2 0000099/3"), member{name: "pairs.txt", body: []byte("1 2")}))), options())
	if got := fmt.Sprint(ids.Classes()); got != "[0000045 0000099]" {
		t.Errorf("a list beside folders: %s", got)
	}
	_, err := Scan(context.Background(), path, 0)
	wantError(t, err, ErrUnknownClass, "member 13 (data/000.cls): ", labelApart)
}

// The text of a label is a number or a name, as others write it.
func TestArrangements_Texts(t *testing.T) {
	for _, test := range []struct{ text, want string }{ // want is the name of the class, or the fault
		{"7", "7"}, {"7\n", "7"}, {" 7\r\n", "7"}, {"+7", "7"}, {"007", "7"}, {"\ufeff7", "7"}, {"\ufeff7\r\n", "7"},
		{"12_0", "12_0"}, {"1_000", "1_000"}, {"0x10", "0x10"}, {"0x1p3", "0x1p3"}, {"0b1", "0b1"}, {"n01440764", "n01440764"},
		{"cat", "cat"}, {"\ufeffcat\n", "cat"}, {"sea lion", "sea lion"}, {"café", "café"}, {"犬", "犬"}, {"a/b", "a/b"}, {"3d", "3d"}, {"1,5", "1,5"}, {"nano", "nano"},
		{"1.5", "it must be 0 to 999999, or a name"}, {"-1", "it must be 0"}, {"3.0", "it must be 0"}, {".5", "it must be 0"}, {"5.", "it must be 0"},
		{"1e3", "it must be 0"}, {"-inf", "it must be 0"}, {"+NaN", "it must be 0"}, {"1000000", "it must be 0"}, {"99999999999999999999", "it must be 0"},
		{"caf\xe9", "in UTF-8"}, {"\xff\xfe7\x00", "in UTF-8"}, {"7\x00", "in UTF-8"}, {"a\nb", "on one line"}, {"caf\ufffd", "in UTF-8"}, {"a\ufeffb", "in UTF-8"}, {"", "is empty"}, {"\ufeff", `its label is ""`},
	} {
		for _, what := range []string{"cls", "json"} {
			text := test.text
			if what == "json" {
				if !strings.HasPrefix(test.want, test.text) && strings.ContainsAny(text, "\ufeff\n\r\x00\xff ") || text == "" {
					continue
				}
				text = fmt.Sprintf("\ufeff{\"label\": \"%s\"}", text)
			}
			members := []member{{name: "0." + what, body: []byte(text)}, {name: "0.png", body: solid(1, 4, 4)}}
			want := test.want
			if test.text == "caf\xe9" && what == "json" {
				want = "in UTF-8"
			}
			for _, path := range []string{write(t, "a.tar", tarOf(members)), writeDirectory(t, members)} {
				l, err := Open(path, options())
				if err != nil {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s %q: %v, want %q", what, test.text, err, want)
					}
					continue
				}
				if classes := l.Classes(); classes[len(classes)-1] != want {
					t.Errorf("%s %q: got %q, want %q", what, test.text, classes, want)
				}
				l.Close()
			}
		}
	}
}
