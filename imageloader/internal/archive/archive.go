// Package archive reads what is in an archive of images: its shards, members, labels and index. It
// makes no batches, and it decodes no image. Its errors are those of package imageloader.
package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// Options says which images of an archive are wanted, and how the archive is read. Most fields are
// those of imageloader.Options and of its groups.
type Options struct {
	Train       bool // the images are for training, so they must not be of several splits
	Split       string
	OnlyClasses []string
	Limit       int

	Classes    []string
	Labels     LabelSource
	LabelField string // "" means "label"

	ShuffleBuffer int
	IndexDir      string
	NoIndexFile   bool

	ReadRetries    int // less than 0 means never
	ReadTimeout    time.Duration
	AllowTruncated bool
	MaxMemberBytes int  // 0 means 256 MiB
	Skip           bool // an unusable image is no error of the pass that finds it

	Ranks, Rank int // 0 Ranks means 1

	Workers int          // number of goroutines that inflate a .tgz
	Memory  *arena.Arena // for contents of images. nil means Go's heap
	Counts  *Counts      // counts the reading
}

func (o Options) allSplits() bool { return o.Split == "" || o.Split == "." }

// Archive is one shard, or several shards that are read one after another. It is safe for
// concurrent use.
type Archive struct {
	Path   string // as the caller gave it
	Shards []*Shard
	Small  bool // the .tgz shards together are no larger than the shuffle buffer

	options Options
	classes *vocabulary
	guessed bool   // labels are from directories, and nobody has asked for that
	doubt   *Error // what speaks against the guess at the beginning of the first shard, or nil
}

// Open opens the archive at `path`: a file, a directory, or all files of a pattern. The archive
// must be closed.
func Open(from Files, path string, o Options) (*Archive, error) {
	if o.LabelField == "" {
		o.LabelField = defaultLabelField
	}
	if o.MaxMemberBytes == 0 {
		o.MaxMemberBytes = 256 << 20
	}
	o.Ranks = max(o.Ranks, 1)
	classes, err := givenClasses(o)
	if err != nil {
		return nil, err
	}
	a := &Archive{Path: path, options: o, classes: classes}
	paths, err := expand(from, path)
	if err != nil {
		return nil, &Error{Path: path, Reason: err.Error(), Kind: ErrArchive, Cause: fs.ErrNotExist}
	}
	for i, path := range paths {
		s, err := openShard(from, path, &a.options)
		if err != nil {
			a.Close()
			return nil, err
		}
		s.number = int32(i)
		a.Shards = append(a.Shards, s)
	}
	labels, doubt := a.findLabels()
	a.guessed, a.doubt = o.Labels == LabelsFound && labels == LabelsFromDirectories, doubt
	compressed := int64(0)
	for _, s := range a.Shards {
		s.labels = labels
		if s.format == gzipTar {
			compressed += s.info.Size()
		}
	}
	a.Small = compressed <= int64(o.ShuffleBuffer)
	if o.Train && o.Split == "" {
		err = a.oneSplit()
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// Close closes the files. No stream and no read may be running.
func (a *Archive) Close() error {
	var errs []error
	for _, s := range a.Shards {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Format returns the format of the first shard, such as "tar".
func (a *Archive) Format() string { return a.Shards[0].format.String() }

// Packed reports whether any shard is a .tgz.
func (a *Archive) Packed() bool {
	return slices.ContainsFunc(a.Shards, func(s *Shard) bool { return s.format == gzipTar })
}

// Unchanged fails if a file of the archive was changed after it was opened.
func (a *Archive) Unchanged() error {
	for _, s := range a.Shards {
		if s.file == nil {
			continue
		}
		if err := s.unchanged(); err != nil {
			return err
		}
	}
	return nil
}

// Inflating returns the time that inflating by an index has taken, on all goroutines together.
func (a *Archive) Inflating() (busy time.Duration) {
	for _, s := range a.Shards {
		if content := s.content.Load(); content != nil {
			busy += content.Busy()
		}
	}
	return busy
}

// Classes returns the names that labels are indices into.
func (a *Archive) Classes() []string { return a.classes.classes() }

// ClassesGiven reports whether the classes are known without a pass through the archive.
func (a *Archive) ClassesGiven() bool { return a.classes.fixed }

// SortClasses sorts names of classes by the labels that they have.
func (a *Archive) SortClasses(names []string) {
	slices.Sort(names)
	if a.ofMembers() {
		slices.SortStableFunc(names, func(a, b string) int {
			x, _ := isNumber(a) // 0 for a name
			y, _ := isNumber(b)
			return x - y
		})
	}
}

// ofMembers reports whether any shard is a shard of a WebDataset.
func (a *Archive) ofMembers() bool {
	return slices.ContainsFunc(a.Shards, func(s *Shard) bool { return s.labels == LabelsFromMembers })
}

// sortedKeys returns the keys of m in their order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

var braces = regexp.MustCompile(`\{(\d+)\.\.(\d+)\}`)

// expand returns the paths that match a pattern. {000..127} stands for the numbers 000, 001 and
// so on up to 127. Each number has at least as many digits as the first. *, ? and [...] have the
// meaning of filepath.Glob, and give paths in the order of the names. A path that exists stands
// for itself, whatever characters it has.
func expand(from Files, path string) ([]string, error) {
	if _, err := from.stat(path); err == nil {
		return []string{path}, nil
	}
	const most = 1_000_000
	patterns := []string{path}
	for {
		place := braces.FindStringSubmatchIndex(patterns[0])
		if place == nil {
			break
		}
		first, last := patterns[0][place[2]:place[3]], patterns[0][place[4]:place[5]]
		from, _ := strconv.Atoi(first)
		to, err := strconv.Atoi(last)
		if err != nil || from > to || to-from >= most/len(patterns) {
			return nil, fmt.Errorf("{%s..%s} is no range of numbers, or a very long one", first, last)
		}
		var expanded []string
		for _, p := range patterns {
			place := braces.FindStringSubmatchIndex(p)
			for n := from; n <= to; n++ {
				expanded = append(expanded, fmt.Sprintf("%s%0*d%s", p[:place[0]], len(first), n, p[place[1]:]))
			}
		}
		patterns = expanded
	}
	var paths []string
	for _, p := range patterns {
		if !strings.ContainsAny(p, `*?[`) {
			paths = append(paths, p) // openShard reports a missing file
			continue
		}
		found, err := from.glob(p)
		if err != nil {
			return nil, fmt.Errorf("the pattern is malformed: %w", err)
		}
		found = slices.DeleteFunc(found, isIndexFile)
		if len(found) == 0 {
			return nil, errors.New("no file fits this pattern; check the path")
		}
		paths = append(paths, found...)
	}
	return paths, nil
}
