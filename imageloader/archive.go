package imageloader

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// archive is one shard, or several shards that are read one after another. It is safe for
// concurrent use.
type archive struct {
	path   string // as the caller gave it
	shards []*shard
	small  bool // the .tgz shards together are no larger than the shuffle buffer

	guessed bool   // labels are from directories, and nobody has asked for that
	doubt   *Error // what speaks against the guess at the beginning of the first shard, or nil
}

// openArchive opens the archive at `path`: a file, a directory, or all files of a pattern. The
// archive must be closed.
func openArchive(from files, path string, o Options, workers int, memory *arena.Arena, stats *statistics) (*archive, error) {
	a := &archive{path: path}
	paths, err := expand(from, path)
	if err != nil {
		return nil, &Error{Path: path, Reason: err.Error(), Kind: ErrArchive, Cause: fs.ErrNotExist}
	}
	for i, path := range paths {
		s, err := openShard(from, path, o, workers, memory, stats)
		if err != nil {
			a.Close()
			return nil, err
		}
		s.number = int32(i)
		a.shards = append(a.shards, s)
	}
	labels, doubt := a.findLabels(o)
	a.guessed, a.doubt = o.Labels == LabelsFound && labels == LabelsFromDirectories, doubt
	compressed := int64(0)
	for _, s := range a.shards {
		s.labels = labels
		if s.format == gzipTar {
			compressed += s.info.Size()
		}
	}
	a.small = compressed <= int64(o.ShuffleBuffer)
	return a, nil
}

// Close closes the files. No stream and no read may be running.
func (a *archive) Close() error {
	var errs []error
	for _, s := range a.shards {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// ofMembers reports whether any shard is a shard of a WebDataset.
func (a *archive) ofMembers() bool {
	return slices.ContainsFunc(a.shards, func(s *shard) bool { return s.labels == LabelsFromMembers })
}

var braces = regexp.MustCompile(`\{(\d+)\.\.(\d+)\}`)

// expand returns the paths that match a pattern. {000..127} stands for the numbers 000, 001 and
// so on up to 127. Each number has at least as many digits as the first. *, ? and [...] have the
// meaning of filepath.Glob, and give paths in the order of the names. A path that exists stands
// for itself, whatever characters it has.
func expand(from files, path string) ([]string, error) {
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
