package archive

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// Note [Doubtful labels]
//
// Without Options.Labels.From the loader guesses that labels are from directories. The guess is
// wrong for a WebDataset whose members lie apart, or whose labels are in files of another kind.
// All images would then get the label of the one directory that they lie in, and training would
// end at a loss of 0. So the guess is an error in three cases:
//   - A member has an extension that only labels have, such as .cls.
//   - The .json beside the first image has another field than Options.Labels.Field that may be the
//     label, and its value is not the name of the directory. Or the field is no number and no text.
//   - All images are of one class, or all classes have names of splits or shards, and there are
//     texts or tables that may hold the labels.
//
// Nobody guesses if the program gives Options.Labels.From, Classes or OnlyClasses.

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

// Doubts collects what speaks against labels from directories.
type Doubts struct {
	guessed      bool   // without a guess there is no doubt
	field, label *Error // from findLabels, and of the first member that only labels are like
	// text and inner are of the first text or table, and of the first that lies in a directory.
	text, inner func(classes string) *Error
}

// NewDoubts returns the doubts about the labels of the archive so far.
func (a *Archive) NewDoubts() Doubts { return Doubts{guessed: a.guessed, field: a.doubt} }

// Note looks at a member that is passed over.
func (d *Doubts) Note(s *Shard, e Entry) {
	read := e.kind == regularFile || e.kind == sparseFile
	if s.labels == LabelsFromMembers || d.label != nil || !read || hidden(strings.Split(path.Clean(e.Name), "/")) != "" {
		return
	}
	base := packedText.ReplaceAllString(strings.ToLower(path.Base(e.Name)), "")
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
		if path.Dir(path.Clean(e.Name)) != "." {
			d.inner = text
		}
	}
}

// openLabel returns the error that a member may hold labels, although labels are from directories.
func (s *Shard) openLabel(e Entry, format string, args ...any) *Error {
	bad := s.badMember(e, nil, format+"; Options.Labels.From says where labels are from, such as LabelsFromDirectories", args...)
	bad.Kind = ErrUnknownClass
	return bad
}

// About returns the error of labels that are from directories by a guess, or nil. `classes` are the
// names of the classes that were found.
func (d *Doubts) About(classes []string) error {
	all := func(is func(name string) bool) bool {
		return len(classes) > 0 && !slices.ContainsFunc(classes, func(name string) bool { return !is(name) })
	}
	switch {
	case !d.guessed:
	case d.label != nil:
		return d.label
	case d.field != nil:
		return d.field
	case d.text != nil && (len(classes) == 1 || all(func(name string) bool { return splitOf(name) != "" })):
		return d.text(Printable(some(slices.Sorted(slices.Values(classes)))))
	case d.inner != nil && all(shardName.MatchString):
		return d.inner(Printable(some(slices.Sorted(slices.Values(classes)))))
	}
	return nil
}
