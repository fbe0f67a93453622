package imageloader

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// sample is an image of the split that the loader reads. Its number is its place among them, in the archive's order.
type sample struct {
	name   string
	size   int64
	offset int64
	member int32
	label  int32
}

func (s sample) entry() entry {
	return entry{number: int(s.member), name: s.name, size: s.size, offset: s.offset}
}

// index is what one pass through an archive finds. It does not change afterwards.
type index struct {
	classes *vocabulary
	length  int            // samples; 0 when the pass ended early
	ignored map[string]int // members that are no images, by reason

	// Of an archive that can be read in any order, nil otherwise.
	samples []sample
	held    [][]byte       // contents, of a .tgz kept in memory
	bad     map[int]*Error // samples that are known to be unusable, by number
}

// random says whether samples can be read in any order.
func (x *index) random() bool { return x.samples != nil }

// indexer builds an index.
type indexer struct {
	archive *archive
	options Options
	index   *index

	holding bool // contents are kept so far
	bytes   int  // footprint of what is kept

	// The images by the directories above their class, and those that have a class alone by that.
	splits, unsplit map[string]int
}

// buildIndex goes through the archive once. Of a .tgz it keeps the images while they fit in Options.ShuffleBuffer; when
// they do not, it goes on only where it must, for the names of the classes.
func buildIndex(a *archive, o Options, classes *vocabulary) (*index, error) {
	b := &indexer{
		archive: a, options: o, holding: a.format == gzipTar, splits: map[string]int{}, unsplit: map[string]int{},
		index: &index{classes: classes, ignored: map[string]int{}, bad: map[int]*Error{}, samples: []sample{}},
	}
	s, err := a.open(context.Background())
	if err != nil {
		return nil, err
	}
	defer s.close()
	for {
		e, err := s.next()
		if err == io.EOF {
			return b.index, b.finish()
		}
		if err != nil {
			return nil, err
		}
		if err := b.add(e, s); err != nil {
			return nil, err
		}
		if a.format == gzipTar && !b.holding && classes.fixed {
			return b.index, nil
		}
	}
}

// add takes one member in.
func (b *indexer) add(e entry, s stream) error {
	x := b.index
	verdict, err := b.archive.judge(e, b.options, x.classes)
	if err != nil {
		return err
	}
	if verdict.split != "" {
		b.splits[verdict.split]++
	} else if verdict.unsplit != "" {
		b.unsplit[verdict.unsplit]++
	}
	if verdict.ignored != "" {
		x.ignored[verdict.ignored]++
	}
	if !verdict.sample {
		return nil
	}
	number := x.length
	x.length++
	if verdict.bad != nil && b.options.MaxSkipRate == 0 {
		return fatal(verdict.bad)
	}
	if x.samples != nil {
		if verdict.bad != nil {
			x.bad[number] = verdict.bad
		}
		x.samples = append(x.samples, sample{
			name: e.name, size: e.size, offset: e.offset, member: int32(e.number), label: verdict.label,
		})
	}
	if b.holding {
		return b.hold(verdict.bad == nil, s)
	}
	return nil
}

// hold keeps the content of the latest sample, or gives up keeping any.
func (b *indexer) hold(usable bool, s stream) error {
	x := b.index
	var data []byte
	if usable {
		var err error
		if data, err = s.content(func(n int) []byte { return make([]byte, n) }); err != nil {
			return err
		}
	}
	x.held = append(x.held, data)
	if b.bytes += footprint(len(data)); b.bytes <= b.options.ShuffleBuffer {
		return nil
	}
	b.holding, x.held, x.samples, x.bad = false, nil, nil, nil
	if x.classes.fixed {
		x.length, x.ignored = 0, map[string]int{} // not known
	}
	return nil
}

// finish completes the index after the last member.
func (b *indexer) finish() error {
	x := b.index
	if x.length == 0 {
		return b.noImages()
	}
	if !x.classes.fixed {
		labels := x.classes.sorted()
		for i := range x.samples {
			if label := &x.samples[i].label; *label >= 0 {
				*label = labels[*label]
			}
		}
	}
	x.samples = slices.Clip(x.samples)
	return nil
}

func (b *indexer) noImages() error {
	a, reason := b.archive, "no images in it; names must be CLASS/FILE or SPLIT/CLASS/FILE, with an extension such as .jpg"
	if split := b.options.Split; split != "" {
		reason = fmt.Sprintf("no images in split %q", split)
		if len(b.splits) > 0 {
			reason += "; there are the splits " + someCounts(b.splits)
		}
		if len(b.unsplit) > 0 {
			reason += "; there are images of no split, CLASS/FILE, in the directories " + someCounts(b.unsplit)
		}
		if len(b.splits)+len(b.unsplit) > 0 {
			reason += "; Options.Split \"\" takes all"
		}
	}
	if len(b.index.ignored) > 0 {
		reason += " (passed over: " + counts(b.index.ignored) + ")"
	}
	return &Error{Path: a.path, Reason: reason, Kind: ErrNoImages}
}

// verdict is what a loader makes of a member.
type verdict struct {
	sample  bool   // it has a place in the sequence
	label   int32  // of a sample; -1 when it is bad
	bad     *Error // a sample that is not usable
	ignored string // why it is not an image
	split   string // of an image, with what directories lie below it
	unsplit string // the first directory of an image without a split, where one is asked for
}

// judge says what the member is to a loader with these options. It fails for a class that is not in the vocabulary; a
// vocabulary that is being collected grows.
func (a *archive) judge(e entry, o Options, classes *vocabulary) (verdict, error) {
	where, ignored, bad := a.admit(e)
	switch {
	case ignored != "":
		return verdict{ignored: ignored}, nil
	case bad != nil && where.class == "": // it could belong to any split
		return verdict{sample: true, label: -1, bad: bad}, nil
	case where.class == "":
		return verdict{}, nil
	}
	v := verdict{split: where.above, sample: o.Split == "" || strings.HasPrefix(where.above+"/", o.Split+"/"), bad: bad}
	if o.Split != "" && where.split == "" {
		return verdict{unsplit: where.class}, nil // CLASS/FILE, when SPLIT/CLASS/FILE is asked for
	}
	if !classes.fixed {
		v.label = classes.collect(where.class)
		return v, nil
	}
	if v.sample {
		label, known := classes.labels[where.class]
		if !known {
			return verdict{}, classes.unknown(a, e, where.class)
		}
		v.label = label
	}
	return v, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// counts returns "3 hidden file, 1 not an image".
func counts(m map[string]int) string {
	var parts []string
	for _, key := range sortedKeys(m) {
		parts = append(parts, fmt.Sprintf("%d %s", m[key], key))
	}
	return strings.Join(parts, ", ")
}

// someCounts returns "cat (12), dog (10)", the first few by name.
func someCounts(m map[string]int) string {
	var parts []string
	for _, key := range sortedKeys(m) {
		parts = append(parts, fmt.Sprintf("%s (%d)", printable(key), m[key]))
	}
	return some(parts)
}
