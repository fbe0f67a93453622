package archive

import (
	"context"
	"io"
	"slices"

	"github.com/streamtorch/streamtorch/internal/inflate"
)

// Indexer builds an [Index].
type Indexer struct {
	archive *Archive
	options Options
	classes *vocabulary
	index   *Index

	holding bool // the contents of all samples so far are kept
	small   bool // give up if the contents cannot be kept
	bytes   int  // memory that the kept contents take

	// splits counts images that have a split. Its keys are the directories above the class. unsplit
	// counts images that have only a class. Its keys are the classes.
	splits, unsplit map[string]int

	doubts  Doubts // about labels that are from directories
	parts   splits // without Options.Split
	streams bool   // images are used while the indexer collects them
}

// NewIndexer returns an Indexer for [Indexer.Stream]. The classes of the archive must be given.
func (a *Archive) NewIndexer() *Indexer {
	b := a.newIndexer()
	b.streams = true
	return b
}

func (a *Archive) newIndexer() *Indexer {
	return &Indexer{
		archive: a, options: a.options, classes: a.classes, doubts: a.NewDoubts(), splits: map[string]int{}, unsplit: map[string]int{},
		index: &Index{Ignored: map[string]int{}, Bad: map[int]*Error{}, Samples: []Sample{}},
	}
}

// Index finds the members of an archive in the index files, or by going through the archive. If a
// .tgz fits into Options.Reading.ShuffleBuffer, Index keeps its images in memory. A larger .tgz
// without an index file is left to the first epoch if its classes are given. If `now` is true,
// Index reads this .tgz too. If only the first samples of this .tgz are wanted, and fit into
// Options.Reading.ShuffleBuffer, Index keeps them in memory and reads no further.
func (a *Archive) Index(ctx context.Context, now bool) (*Index, error) {
	o, given := a.options, a.classes.fixed
	compressed := !slices.ContainsFunc(a.Shards, func(s *Shard) bool { return s.format != gzipTar })
	if compressed && !a.Small && o.Limit > 0 && given {
		b := a.newIndexer()
		b.holding, b.small = true, true
		if err := b.all(ctx, make([]*table, len(a.Shards))); err != nil {
			return nil, err
		}
		if b.holding {
			return b.Finish()
		}
	}
	b := a.newIndexer()
	b.holding = compressed && a.Small
	tables := make([]*table, len(a.Shards))
	for i, s := range a.Shards {
		if s.format != directory && !b.holding && !o.NoIndexFile {
			tables[i] = s.loadTable()
		}
		if tables[i] == nil && s.format == gzipTar && !a.Small && given && !now {
			return &Index{Ignored: map[string]int{}}, nil
		}
	}
	if whole := o.Limit == 0 || !given; whole && o.Ranks > 1 && len(a.Shards) > 1 && !a.Small && !o.NoIndexFile && !o.AllowTruncated {
		a.makeTables(ctx, tables)
	}
	if err := b.all(ctx, tables); err != nil {
		return nil, err
	}
	return b.Finish()
}

// all adds the members of all shards.
func (b *Indexer) all(ctx context.Context, tables []*table) error {
	for i, s := range b.archive.Shards {
		if err := b.shard(ctx, s, tables[i]); err != nil {
			return err
		}
	}
	return nil
}

// Stream goes through a shard and calls `take` with each sample, in the archive's order. `bad` is
// the fault of a sample, or nil. `data` is its content, in memory of Options.Memory, which `take`
// then owns.
func (b *Indexer) Stream(ctx context.Context, s *Shard, take func(number int, image Sample, bad *Error, data []byte) error) error {
	pass, err := s.pass(ctx, reading{contents: true, memory: s.Memory})
	if err != nil {
		return err
	}
	defer pass.Close()
	for {
		number, bad, data, err := b.nextSample(pass)
		if err == io.EOF {
			return b.ended(pass)
		}
		if err == nil {
			err = take(number, b.index.Samples[number], bad, data)
		}
		if err != nil {
			return err
		}
	}
}

// nextSample reads up to the next sample, adds it and returns its content.
func (b *Indexer) nextSample(p *pass) (number int, bad *Error, data []byte, err error) {
	for {
		e, err := p.Next()
		if err != nil {
			return 0, nil, nil, err
		}
		v, err := b.add(p.shard, e)
		if err != nil {
			return 0, nil, nil, err
		}
		if !v.sample {
			continue
		}
		if v.bad == nil {
			data, err = p.Content()
		}
		return len(b.index.Samples) - 1, v.bad, data, err
	}
}

// full reports whether no more samples are wanted.
func (b *Indexer) full() bool { return b.options.Limit > 0 && len(b.index.Samples) >= b.options.Limit }

// done reports whether the members that follow cannot change the index.
func (b *Indexer) done() bool { return b.full() && b.classes.fixed }

// shard adds the members of a shard. The members are in the table t. If t is nil, a pass through
// the shard finds them.
func (b *Indexer) shard(ctx context.Context, s *Shard, t *table) error {
	if b.done() || b.small && !b.holding {
		return nil
	}
	if t != nil {
		if t.gzip != nil {
			s.content.Store(inflate.NewFile(s.file, t.gzip, s.Memory))
		}
		for _, e := range t.entries {
			if _, err := b.add(s, e); err != nil {
				return err
			}
		}
		return nil
	}
	r := reading{contents: b.holding}
	if s.format == gzipTar && !b.archive.Small && !b.holding && !b.options.NoIndexFile {
		c := s.claim(ctx, s.longestClaim())
		defer c.free()
		if t := s.loadTable(); t != nil {
			return b.shard(ctx, s, t)
		}
		if c.waited { // the other loader could not store it, so nobody needs to wait for this one
			c.free()
		}
		if c.lock != nil && len(b.archive.Shards) == 1 {
			r.workers = s.sharedWorkers(1)
		}
	}
	pass, err := s.pass(ctx, r)
	if err != nil {
		return err
	}
	defer pass.Close()
	for {
		if b.done() && (b.holding || s.format != gzipTar) { // else the pass makes the index of the .tgz
			return nil
		}
		e, err := pass.Next()
		if err == io.EOF {
			return b.ended(pass)
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
				return b.ended(pass)
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
func (b *Indexer) ended(p *pass) error {
	if p.cut != nil {
		b.drop(p.shard, p.good())
		if !p.shard.cut.Swap(true) {
			b.options.Counts.note(func(n *Notes) { n.Truncated = append(n.Truncated, p.cut.Error()) })
		}
	}
	return p.keep(b.archive.Small)
}

// drop removes those samples of s that do not lie in the first `good` bytes of the content of s.
// s is the shard whose samples were added last.
func (b *Indexer) drop(s *Shard, good int64) {
	x := b.index
	for len(x.Samples) > 0 {
		last := x.Samples[len(x.Samples)-1]
		if last.Shard != s.number || last.Offset+last.Size <= good {
			return
		}
		x.Samples = x.Samples[:len(x.Samples)-1]
		delete(x.Bad, len(x.Samples))
		if len(x.Held) > len(x.Samples) {
			x.Held = x.Held[:len(x.Samples)]
		}
	}
}

// add judges a member and returns the verdict. It counts splits and ignored members. If the
// member is a sample, add appends it to the index.
func (b *Indexer) add(s *Shard, e Entry) (verdict, error) {
	x := b.index
	if b.done() {
		return verdict{}, nil
	}
	v, err := b.judge(s, e)
	if err != nil {
		return v, err
	}
	if v.split != "" {
		b.splits[v.split]++
	} else if v.unsplit != "" {
		b.unsplit[v.unsplit]++
	}
	if v.ignored != "" {
		x.Ignored[v.ignored]++
		b.doubts.Note(s, e)
	}
	if b.options.Train && b.options.Split == "" && v.class != "" {
		if isNew := b.parts.add(s, Location{Above: v.split, Class: v.class}); isNew && b.streams {
			if err := b.parts.chosen(b.archive, false); err != nil {
				return v, err
			}
		}
	}
	if v.sample = v.sample && !b.full(); !v.sample {
		return v, nil
	}
	number := len(x.Samples)
	if v.bad != nil {
		if !b.options.Skip {
			return v, Fatal(v.bad)
		}
		x.Bad[number] = v.bad
	}
	x.Samples = append(x.Samples, Sample{
		Name: e.Name, Size: e.size, Offset: e.offset, Member: int32(e.Number), Shard: s.number, Label: v.label,
	})
	return v, nil
}

// hold keeps the content of the latest sample. If the contents become too large, hold drops them
// all, and no more contents are kept.
func (b *Indexer) hold(e Entry, usable bool, s Stream) error {
	x := b.index
	var data []byte
	if usable && b.bytes+Footprint(int(e.size)) <= b.options.ShuffleBuffer {
		var err error
		if data, err = s.Content(); err != nil {
			return err
		}
	}
	x.Held = append(x.Held, data)
	if usable {
		b.bytes += int(e.size)
	}
	if b.bytes += Footprint(0); b.bytes > b.options.ShuffleBuffer {
		b.holding, x.Held = false, nil
	}
	return nil
}

// Finish completes the index after the last member, and returns it.
func (b *Indexer) Finish() (*Index, error) {
	x := b.index
	if len(x.Samples) == 0 && (b.classes.only == nil || len(b.classes.names) == 0) {
		return nil, b.archive.NoImages(x.Ignored, b.splits, b.unsplit)
	}
	if !b.classes.fixed && b.classes.only == nil {
		if err := b.doubts.About(b.classes.names); err != nil {
			return nil, err
		}
	}
	if err := b.parts.chosen(b.archive, b.done()); err != nil {
		return nil, err
	}
	if !b.classes.fixed {
		labels, err := b.classes.sorted(b.archive.ofMembers())
		if err != nil {
			return nil, &Error{Path: b.archive.Path, Reason: err.Error(), Kind: ErrUnknownClass}
		}
		if err := b.classes.restrict(); err != nil {
			return nil, &Error{Path: b.archive.Path, Reason: err.Error(), Kind: ErrInvalidOptions}
		}
		for i := range x.Samples {
			if label := &x.Samples[i].Label; *label >= 0 {
				*label = b.classes.label(labels[*label])
			}
		}
	}
	if len(x.Samples) == 0 {
		return nil, b.archive.NoImages(x.Ignored, b.splits, b.unsplit)
	}
	x.Samples = slices.Clip(x.Samples)
	if x.Held == nil && b.archive.Packed() {
		x.Blocks = b.archive.blocks(x, max(int64(b.options.ShuffleBuffer/2), blockMost))
	}
	return x, nil
}
