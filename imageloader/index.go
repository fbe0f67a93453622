package imageloader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/internal/inflate"
)

// sample is an image of the split that the loader reads. The loader has a list of these images,
// in the archive's order. The number of a sample is its place in the list, from 0.
type sample struct {
	name   string
	size   int64
	offset int64
	member int32
	shard  int32
	label  int32
}

func (s sample) entry() entry {
	return entry{number: int(s.member), name: s.name, size: s.size, offset: s.offset}
}

// index is the loader's list of samples, with their classes and faults. It is the result of one
// pass through an archive. It does not change afterwards.
type index struct {
	classes *vocabulary
	length  int            // number of samples. 0 until a pass has reached the end
	ignored map[string]int // number of members that are no images, by reason

	// samples is nil until a pass through the archive has reached the end.
	samples []sample
	bad     map[int]*Error // the faults of samples that are known to be unusable, by number
	blocks  []block        // blocks of the samples, if the archive is inflated block by block, or nil
	held    [][]byte       // contents of the samples of a .tgz that is kept in memory
}

// isWhole reports whether the index has all samples. The samples can then be read in any order.
func (x *index) isWhole() bool { return x.samples != nil }

// indexer builds an index.
type indexer struct {
	archive *archive
	options Options
	index   *index

	holding bool // the contents of all samples so far are kept
	small   bool // give up if the contents cannot be kept
	bytes   int  // memory that the kept contents take

	// splits counts images that have a split. Its keys are the directories above the class. unsplit
	// counts images that have only a class. Its keys are the classes.
	splits, unsplit map[string]int

	doubts  doubts // about labels that are from directories
	parts   splits // without Options.Split
	streams bool   // images are used while the indexer collects them
}

func newIndexer(a *archive, o Options, classes *vocabulary) *indexer {
	return &indexer{
		archive: a, options: o, doubts: doubts{field: a.doubt}, splits: map[string]int{}, unsplit: map[string]int{},
		index: &index{classes: classes, ignored: map[string]int{}, bad: map[int]*Error{}, samples: []sample{}},
	}
}

// buildIndex finds the members of an archive in the index files, or by going through the archive.
// If a .tgz fits into Options.ShuffleBuffer, buildIndex keeps its images in memory. A larger .tgz
// without an index file is left to the first epoch if its classes are given. If `now` is true,
// buildIndex reads this .tgz too. If only the first samples of this .tgz are wanted, and fit into
// Options.ShuffleBuffer, buildIndex keeps them in memory and reads no further.
func buildIndex(ctx context.Context, a *archive, o Options, classes *vocabulary, now bool, stats *statistics) (*index, error) {
	compressed := !slices.ContainsFunc(a.shards, func(s *shard) bool { return s.format != gzipTar })
	if compressed && !a.small && o.Limit > 0 && classes.fixed {
		b := newIndexer(a, o, classes)
		b.holding, b.small = true, true
		if err := b.all(ctx, make([]*table, len(a.shards)), stats); err != nil {
			return nil, err
		}
		if b.holding {
			return b.index, b.finish()
		}
	}
	b := newIndexer(a, o, classes)
	b.holding = compressed && a.small
	tables := make([]*table, len(a.shards))
	for i, s := range a.shards {
		if s.format != directory && !b.holding && !o.NoIndexFile {
			tables[i] = s.loadTable(o.IndexDir)
		}
		if tables[i] == nil && s.format == gzipTar && !a.small && classes.fixed && !now {
			return &index{classes: classes, ignored: map[string]int{}}, nil
		}
	}
	if whole := o.Limit == 0 || !classes.fixed; whole && o.Ranks > 1 && len(a.shards) > 1 && !a.small && !o.NoIndexFile && !o.AllowTruncated {
		a.makeTables(ctx, tables, o, stats)
	}
	if err := b.all(ctx, tables, stats); err != nil {
		return nil, err
	}
	return b.index, b.finish()
}

// all adds the members of all shards.
func (b *indexer) all(ctx context.Context, tables []*table, stats *statistics) error {
	for i, s := range b.archive.shards {
		if err := b.shard(ctx, s, tables[i], stats); err != nil {
			return err
		}
	}
	return nil
}

// full reports whether no more samples are wanted.
func (b *indexer) full() bool { return b.options.Limit > 0 && b.index.length >= b.options.Limit }

// done reports whether the members that follow cannot change the index.
func (b *indexer) done() bool { return b.full() && b.index.classes.fixed }

// shard adds the members of a shard. The members are in the table t. If t is nil, a pass through
// the shard finds them.
func (b *indexer) shard(ctx context.Context, s *shard, t *table, stats *statistics) error {
	if b.done() || b.small && !b.holding {
		return nil
	}
	if t != nil {
		if t.gzip != nil {
			s.content.Store(inflate.NewFile(s.file, t.gzip, s.memory))
		}
		for _, e := range t.entries {
			if _, err := b.add(s, e); err != nil {
				return err
			}
		}
		return nil
	}
	r := reading{contents: b.holding}
	if s.format == gzipTar && !b.archive.small && !b.holding && !b.options.NoIndexFile {
		c := s.claim(ctx, b.options.IndexDir, s.longestClaim())
		defer c.free()
		if t := s.loadTable(b.options.IndexDir); t != nil {
			return b.shard(ctx, s, t, stats)
		}
		if c.waited { // the other loader could not store it, so nobody needs to wait for this one
			c.free()
		}
		if c.lock != nil && len(b.archive.shards) == 1 {
			r.workers = b.options.sharedWorkers(s.workers, 1)
		}
	}
	pass, err := s.pass(ctx, r)
	if err != nil {
		return err
	}
	defer pass.close()
	for {
		if b.done() && (b.holding || s.format != gzipTar) { // else the pass makes the index of the .tgz
			return nil
		}
		e, err := pass.next()
		if err == io.EOF {
			return b.ended(pass, stats)
		}
		if err != nil {
			return err
		}
		v, err := b.add(s, e)
		if err != nil {
			return err
		}
		if v.sample && b.holding {
			if err := b.hold(e, v.bad == nil, pass); err == io.EOF {
				return b.ended(pass, stats)
			} else if err != nil {
				return err
			}
			if b.small && !b.holding {
				return nil
			}
		}
	}
}

// ended is called when a pass has reached the end of its shard. If the shard is cut short, ended
// drops the samples after the cut. It then calls p.keep.
func (b *indexer) ended(p *pass, stats *statistics) error {
	if p.cut != nil {
		b.drop(p.shard, p.good())
		stats.truncated(p.shard, p.cut)
	}
	return p.keep(b.options, b.archive.small, stats)
}

// drop removes those samples of s that do not lie in the first `good` bytes of the content of s.
// s is the shard whose samples were added last.
func (b *indexer) drop(s *shard, good int64) {
	x := b.index
	for x.length > 0 {
		last := x.samples[x.length-1]
		if last.shard != s.number || last.offset+last.size <= good {
			return
		}
		x.length--
		x.samples = x.samples[:x.length]
		delete(x.bad, x.length)
		if len(x.held) > x.length {
			x.held = x.held[:x.length]
		}
	}
}

// pass goes through a shard and makes its table.
type pass struct {
	stream
	shard *shard
	table table
	cut   error // the error of a shard that is cut short, if that is allowed
}

func (s *shard) pass(ctx context.Context, r reading) (*pass, error) {
	stream, err := s.open(ctx, r)
	if err != nil {
		return nil, err
	}
	return &pass{stream: stream, shard: s}, nil
}

func (p *pass) next() (entry, error) {
	e, err := p.stream.next()
	if err == nil && p.shard.format != directory {
		p.table.entries = append(p.table.entries, e)
	}
	return e, p.forgive(err)
}

func (p *pass) content() ([]byte, error) {
	data, err := p.stream.content()
	return data, p.forgive(err)
}

// forgive changes the error of a shard that is cut short to io.EOF, if Options.AllowTruncated is
// set.
func (p *pass) forgive(err error) error {
	if p.shard.mayBeCut && errors.Is(err, ErrTruncated) {
		p.cut = err
		return io.EOF
	}
	return err
}

// keep is called when a whole shard has been read. It keeps the inflate.Index of a .tgz in the
// shard. It stores the table in an index file, unless the shard is cut short or the table can be
// made again quickly.
func (p *pass) keep(o Options, small bool, stats *statistics) error {
	const many = 50_000 // members of a .tar. A pass through 50,000 members takes some 0.1 s
	s := p.shard
	known := s.content.Load() != nil
	if s.format == gzipTar && !known {
		p.table.gzip = p.stream.index()
		s.content.Store(inflate.NewFile(s.file, p.table.gzip, s.memory))
	}
	large := s.format == gzipTar && !small || s.format == plainTar && len(p.table.entries) > many
	if !large || o.NoIndexFile || known || p.cut != nil {
		return nil
	}
	path, err := s.storeTable(&p.table, o.IndexDir)
	if err != nil {
		stats.update(func(s *Stats) { s.IndexError = err.Error() }) // the next Open works without the index file
	} else {
		stats.indexFile(path)
	}
	return nil
}

// add judges a member and returns the verdict. It counts splits and ignored members. If the
// member is a sample, add appends it to the index.
func (b *indexer) add(s *shard, e entry) (verdict, error) {
	x := b.index
	if b.done() {
		return verdict{}, nil
	}
	v, err := s.judge(e, b.options, x.classes)
	if err != nil {
		return v, err
	}
	if v.split != "" {
		b.splits[v.split]++
	} else if v.unsplit != "" {
		b.unsplit[v.unsplit]++
	}
	if v.ignored != "" {
		x.ignored[v.ignored]++
		b.doubts.note(s, e)
	}
	if b.options.Train && b.options.Split == "" && v.class != "" {
		if isNew := b.parts.add(s, location{above: v.split, class: v.class}); isNew && b.streams {
			if err := b.parts.chosen(b.archive, false); err != nil {
				return v, err
			}
		}
	}
	if v.sample = v.sample && !b.full(); !v.sample {
		return v, nil
	}
	number := x.length
	x.length++
	if v.bad != nil {
		if b.options.MaxSkipRate == 0 {
			return v, fatal(v.bad)
		}
		x.bad[number] = v.bad
	}
	x.samples = append(x.samples, sample{
		name: e.name, size: e.size, offset: e.offset, member: int32(e.number), shard: s.number, label: v.label,
	})
	return v, nil
}

// hold keeps the content of the latest sample. If the contents become too large, hold drops them
// all, and no more contents are kept.
func (b *indexer) hold(e entry, usable bool, s stream) error {
	x := b.index
	var data []byte
	if usable && b.bytes+footprint(int(e.size)) <= b.options.ShuffleBuffer {
		var err error
		if data, err = s.content(); err != nil {
			return err
		}
	}
	x.held = append(x.held, data)
	if usable {
		b.bytes += int(e.size)
	}
	if b.bytes += footprint(0); b.bytes > b.options.ShuffleBuffer {
		b.holding, x.held = false, nil
	}
	return nil
}

// finish completes the index after the last member.
func (b *indexer) finish() error {
	x := b.index
	if x.length == 0 && (x.classes.only == nil || len(x.classes.names) == 0) {
		return b.noImages()
	}
	if b.archive.guessed && !x.classes.fixed && x.classes.only == nil {
		if err := b.doubts.about(x.classes.names); err != nil {
			return err
		}
	}
	if err := b.parts.chosen(b.archive, b.done()); err != nil {
		return err
	}
	if !x.classes.fixed {
		labels, err := x.classes.sorted(b.archive.ofMembers())
		if err != nil {
			return &Error{Path: b.archive.path, Reason: err.Error(), Kind: ErrUnknownClass}
		}
		if err := x.classes.restrict(); err != nil {
			return &Error{Path: b.archive.path, Reason: err.Error(), Kind: ErrInvalidOptions}
		}
		for i := range x.samples {
			if label := &x.samples[i].label; *label >= 0 {
				*label = x.classes.label(labels[*label])
			}
		}
	}
	if x.length == 0 {
		return b.noImages()
	}
	x.samples = slices.Clip(x.samples)
	if x.held == nil && slices.ContainsFunc(b.archive.shards, func(s *shard) bool { return s.format == gzipTar }) {
		x.blocks = b.archive.blocks(x, max(int64(b.options.ShuffleBuffer/2), blockMost))
	}
	return nil
}

func (b *indexer) noImages() error {
	a, reason := b.archive, "no images in it; names must be CLASS/FILE or SPLIT/CLASS/FILE, with an extension such as .jpg, or those of a WebDataset, KEY.jpg beside KEY.cls"
	if split := b.options.Split; !b.options.allSplits() {
		reason = fmt.Sprintf("no images in split %q", split)
		if len(b.splits) > 0 {
			reason += "; there are the splits " + someCounts(b.splits)
		}
		if len(b.unsplit) > 0 {
			reason += "; there are images of no split, CLASS/FILE, in the directories " + someCounts(b.unsplit)
		}
		if len(b.splits)+len(b.unsplit) > 0 {
			reason += "; Options.Split \".\" takes all"
		}
	}
	if only := b.options.OnlyClasses; len(only) > 0 {
		reason = "no images of Options.OnlyClasses (" + some(only) + "): " + reason
	}
	if ignored := b.index.ignored; len(ignored) > 0 {
		reason += " (passed over: " + counts(ignored) + ")" + cureOf(ignored)
	}
	return &Error{Path: a.path, Reason: reason, Kind: ErrNoImages}
}

// cureOf returns the cure of an archive whose members were all passed over, for these reasons.
func cureOf(ignored map[string]int) (cure string) {
	for _, reason := range sortedKeys(ignored) {
		switch kind, _, _ := strings.Cut(reason, " ("); kind {
		case ignoredArchive:
			return "; unpack the archives in it, and give their folder, or a pattern such as FOLDER/*.tar"
		case ignoredFormat:
			cure = "; convert the images to PNG or JPEG"
		case ignoredVideo:
			cure = cmp.Or(cure, "; extract the videos' frames as JPEG files")
		}
	}
	return cure
}

// verdict is a loader's judgement of a member.
type verdict struct {
	sample  bool   // the member has a place in the sequence
	label   int32  // label of a sample; -1 when its class is not known
	bad     *Error // the fault of a sample that is not usable
	ignored string // why the member is not an image
	class   string // of an image
	split   string // of an image: the directories above its class
	unsplit string // class of an image that has no split, if the options ask for a split
}

// judge returns the verdict on a member for a loader with the options o. It adds new classes to a
// vocabulary that is being collected. It fails for a sample whose class is not in a fixed
// vocabulary.
func (s *shard) judge(e entry, o Options, classes *vocabulary) (verdict, error) {
	where, ignored, bad := s.admit(e)
	inSplit := o.allSplits() || strings.HasPrefix(where.above+"/", o.Split+"/")
	switch {
	case ignored != "":
		return verdict{ignored: ignored}, nil
	case bad != nil && where.class == "" && where.above != "" && !inSplit:
		return verdict{split: where.above}, nil
	case bad != nil && where.class == "": // if its split is not known, the image counts in every split
		return verdict{sample: true, label: -1, bad: bad}, nil
	case where.class == "":
		return verdict{}, nil
	}
	v := verdict{class: where.class, split: where.above, sample: inSplit, bad: bad}
	if !o.allSplits() && where.split == "" {
		return verdict{unsplit: where.class}, nil // CLASS/FILE, but the options ask for SPLIT/CLASS/FILE
	}
	if !classes.fixed {
		v.label = classes.collect(where.class)
		v.sample = v.sample && classes.keeps(where.class)
		return v, nil
	}
	if v.sample {
		label, known := classes.find(where.class, s.labels == LabelsFromMembers)
		if !known {
			return verdict{}, classes.unknown(s, e, where.class)
		}
		v.label, v.sample = label, label >= 0
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

// counts returns the counts of m as a text, such as "3 hidden file, 1 not an image".
func counts(m map[string]int) string {
	var parts []string
	for _, key := range sortedKeys(m) {
		parts = append(parts, fmt.Sprintf("%d %s", m[key], key))
	}
	return strings.Join(parts, ", ")
}

// someCounts returns the first few counts of m, by name, as a text, such as "cat (12), dog (10)".
func someCounts(m map[string]int) string {
	var parts []string
	for _, key := range sortedKeys(m) {
		parts = append(parts, fmt.Sprintf("%s (%d)", printable(key), m[key]))
	}
	return some(parts)
}
