package imageloader

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Note [Doubtful labels]
//
// Without Options.Labels the loader guesses that labels are from directories. The guess is wrong
// for a WebDataset whose members lie apart, or whose labels are in files of another kind. All
// images would then get the label of the one directory that they lie in, and training would end at
// a loss of 0. So the guess is an error in three cases:
//   - A member has an extension that only labels have, such as .cls.
//   - The .json beside the first image has another field than Options.LabelField that may be the
//     label, and its value is not the name of the directory. Or the field is no number and no text.
//   - All images are of one class, or all classes have names of splits or shards, and there are
//     texts or tables that may hold the labels.
//
// Nobody guesses if the program gives Options.Labels, Classes, ClassFile or OnlyClasses.

// labelExtensions are extensions that only labels have. textExtensions are those of files that may
// hold labels.
var (
	labelExtensions = words(".cls .cls2 .class .label .labels .target")
	textExtensions  = words(".txt .text .json .jsn .jsonl .ndjson .csv .tsv .tab .lst .lbl .lab .xml .yaml .yml .toml .index .inx .id .dat .npy .npz .pyd .pickle .pkl .pt .pth .mat .h5 " +
		".hdf5 .parquet .arrow .feather .avro .sqlite .sqlite3 .tfrecord .tfrecords .rec .mp .msg .msgpack .xls .xlsx .ods")
)

// packedText matches the extension of a packed file. aboutFiles matches names of texts for people,
// and bareLabels those of labels without an extension, all in lower case.
var (
	packedText = regexp.MustCompile(`\.(gz|bz2|xz|zst)$`)
	aboutFiles = regexp.MustCompile(`^(readme|licen|(copying|copyrights?|credits?|citations?|attributions?|authors?|change(log|s)|history|sources?|notices?|terms|about|requirements)\.)`)
	bareLabels = words("labels annotations targets")
)

// shardName matches directories that only divide images, such as 00012 or part-3.
var shardName = regexp.MustCompile(`^(?i:(shard|part|chunk|batch|fold|folder|data|image|img)s?[-_. ]?[0-9]*|[0-9]{4,})$`)

func words(text string) map[string]bool {
	all := map[string]bool{}
	for _, word := range strings.Fields(text) {
		all[word] = true
	}
	return all
}

// doubts collects what speaks against labels from directories.
type doubts struct {
	field, label *Error // from findLabels, and of the first member that only labels are like
	// text and inner are of the first text or table, and of the first that lies in a directory.
	text, inner func(classes string) *Error
}

// note looks at a member that is passed over.
func (d *doubts) note(s *shard, e entry) {
	read := e.kind == regularFile || e.kind == sparseFile
	if s.labels == LabelsFromMembers || d.label != nil || !read || hidden(strings.Split(path.Clean(e.name), "/")) != "" {
		return
	}
	base := packedText.ReplaceAllString(strings.ToLower(path.Base(e.name)), "")
	switch extension := path.Ext(base); {
	case labelExtensions[extension]:
		d.label = s.openLabel(e, "it may be the label of an image, and the first image has no label beside it; pack the members of a sample one after another, as tar --sort=name does, with keys that have no dots")
	case d.inner == nil && (textExtensions[extension] || bareLabels[base]) && !aboutFiles.MatchString(base):
		text := func(classes string) *Error {
			return s.openLabel(e, "it may hold the labels, because the images are only of the class %s by their directories; pack each image beside its .cls or .json, or in a directory that has the name of its class", classes)
		}
		if d.text == nil {
			d.text = text
		}
		if path.Dir(path.Clean(e.name)) != "." {
			d.inner = text
		}
	}
}

// openLabel returns the error that a member may hold labels, although labels are from directories.
func (s *shard) openLabel(e entry, format string, args ...any) *Error {
	bad := s.badMember(e, nil, format+"; Options.Labels says where labels are from, such as LabelsFromDirectories", args...)
	bad.Kind = ErrUnknownClass
	return bad
}

// about returns the error of labels that are from directories by a guess, or nil. `classes` are the
// names of the classes that were found.
func (d *doubts) about(classes []string) error {
	all := func(is func(name string) bool) bool {
		return len(classes) > 0 && !slices.ContainsFunc(classes, func(name string) bool { return !is(name) })
	}
	switch {
	case d.label != nil:
		return d.label
	case d.field != nil:
		return d.field
	case d.text != nil && (len(classes) == 1 || all(func(name string) bool { return splitOf(name) != "" })):
		return d.text(printable(some(slices.Sorted(slices.Values(classes)))))
	case d.inner != nil && all(shardName.MatchString):
		return d.inner(printable(some(slices.Sorted(slices.Values(classes)))))
	}
	return nil
}

// splitOf returns the usual name of the split that a directory or a shard has by its name, such as
// "test" for Test, test-000.tar or images_test. It returns "" for any other name.
func splitOf(name string) string {
	for _, word := range strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) }) {
		switch strings.TrimSuffix(word, "set") {
		case "train", "training", "trn":
			return "train"
		case "test", "testing", "tst":
			return "test"
		case "val", "valid", "validation", "dev", "development":
			return "val"
		case "eval", "evaluation", "holdout", "heldout":
			return "eval"
		}
	}
	return ""
}

// splits collects the directories above the classes, and says whether they are splits of the same
// classes. A program that trains must then choose one of them.
type splits struct {
	counts map[string]int    // images, by the directories above their classes
	above  map[string]string // directories above a class, by the class
	shared bool              // a class lies in several directories
}

// add counts an image and reports whether its directory is new.
func (p *splits) add(s *shard, where location) bool {
	if p.counts == nil {
		p.counts, p.above = map[string]int{}, map[string]string{}
	}
	n := p.counts[where.above]
	p.counts[where.above] = n + 1
	if s.labels != LabelsFromMembers && where.above != "" && !p.shared {
		if above, known := p.above[where.class]; !known {
			p.above[where.class] = where.above
		} else {
			p.shared = above != where.above
		}
	}
	return n == 0
}

// chosen fails if the images seem to be of several splits. `part` says that there may be images of
// other splits.
func (p *splits) chosen(a *archive, part bool) error {
	several, named, held := 0, false, false
	for name := range p.counts {
		split := splitOf(name)
		named, held = named || split != "", held || split != "" && split != "train"
		if name == "" { // images of CLASS/FILE
			part = true
		} else {
			several++
		}
	}
	if !(several > 1 && (p.shared || named) || part && held) {
		return nil
	}
	counts := map[string]int{}
	for name, n := range p.counts {
		if name == "" {
			name = "."
		}
		counts[name] = n
	}
	return a.unchosen("the splits " + someCounts(counts))
}

// oneSplit fails if the names of the shards are of several splits, such as train-000.tar and
// test-000.tar.
func (a *archive) oneSplit() error {
	shards := map[string]string{}
	for _, s := range a.shards {
		if split := splitOf(path.Base(s.path)); split != "" && shards[split] == "" {
			shards[split] = s.path
		}
	}
	if len(shards) < 2 {
		return nil
	}
	var names []string
	for _, split := range sortedKeys(shards) {
		names = append(names, printable(shards[split]))
	}
	return a.unchosen("shards of several splits, " + some(names))
}

func (a *archive) unchosen(what string) error {
	return &Error{Path: a.path, Kind: ErrInvalidOptions,
		Reason: "there are " + what + ", and Options.Train is set without Options.Split; name the split to train on, or \".\" for all images"}
}
