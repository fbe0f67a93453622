package archive

import (
	"path"
	"strings"
	"unicode"
)

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
func (p *splits) add(s *Shard, where Location) bool {
	if p.counts == nil {
		p.counts, p.above = map[string]int{}, map[string]string{}
	}
	n := p.counts[where.Above]
	p.counts[where.Above] = n + 1
	if s.labels != LabelsFromMembers && where.Above != "" && !p.shared {
		if above, known := p.above[where.Class]; !known {
			p.above[where.Class] = where.Above
		} else {
			p.shared = above != where.Above
		}
	}
	return n == 0
}

// chosen fails if the images seem to be of several splits. `part` says that there may be images of
// other splits.
func (p *splits) chosen(a *Archive, part bool) error {
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
func (a *Archive) oneSplit() error {
	shards := map[string]string{}
	for _, s := range a.Shards {
		if split := splitOf(path.Base(s.Path)); split != "" && shards[split] == "" {
			shards[split] = s.Path
		}
	}
	if len(shards) < 2 {
		return nil
	}
	var names []string
	for _, split := range sortedKeys(shards) {
		names = append(names, Printable(shards[split]))
	}
	return a.unchosen("shards of several splits, " + some(names))
}

func (a *Archive) unchosen(what string) error {
	return &Error{Path: a.Path, Kind: ErrInvalidOptions,
		Reason: "there are " + what + ", and Options.Train is set without Options.Split; name the split to train on, or \".\" for all images"}
}
