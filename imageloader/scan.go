package imageloader

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
	"github.com/streamtorch/streamtorch/internal/arena"
)

// Report is the result of [Scan].
type Report struct {
	Path    string `json:"path"`
	Format  string `json:"format"`  // "tar", "gzip-compressed tar", "directory"
	Members int    `json:"members"` // all members, directories included
	Images  int    `json:"images"`  // usable images
	Bytes   int64  `json:"bytes"`   // compressed bytes of the usable images

	// Classes has the number of usable images of each class, in the order of the labels that a
	// Loader gives. Directories are in the order of their names. Labels that are numbers are in
	// the order of the numbers.
	Classes []Count `json:"classes"`
	Splits  []Count `json:"splits"` // number of usable images by the first directory of SPLIT/CLASS/FILE
	// Formats has the number of usable images of each format, such as "JPEG". A file may be of
	// another format than its name says.
	Formats []Count `json:"formats"`

	Smallest Size `json:"smallest"` // size of the usable image with the fewest pixels, after its EXIF orientation is applied
	Median   Size `json:"median"`
	Largest  Size `json:"largest"`

	// FileSize are compressed bytes of the usable images.
	FileSize struct {
		Min    int64 `json:"min"`
		Median int64 `json:"median"`
		Max    int64 `json:"max"`
	} `json:"file_size"`

	Ignored []Count     `json:"ignored"` // number of members that are no images, by reason
	Bad     []BadMember `json:"bad"`     // images that a loader could not use, in the archive's order
}

// Count is a name, and the number of things that have this name.
type Count struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

// Size is the size of an image in pixels.
type Size struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// BadMember is an image that a loader could not use.
type BadMember struct {
	Member int    `json:"member"` // counted from 1, in the archive's order
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Scan reads an archive and decodes its first images, on all cores. `images` is their largest
// number, and 0 means all. Unusable images are no error: the report lists them. Scan fails with
// ErrArchive when the archive cannot be read to its end. It then also returns the report of the
// part that it could read. It fails with ErrNoImages when no member is an image by its name, and
// with ErrUnknownClass and the whole report when it is not clear where the labels are from. It
// fails with the cause of ctx when ctx ends.
func Scan(ctx context.Context, path string, images int) (Report, error) {
	if images == 0 {
		images = math.MaxInt
	}
	s := scanner{left: images, report: Report{Path: filepath.ToSlash(path)}, classes: map[string]int{}, splits: map[string]int{},
		formats: map[string]int{}, ignored: map[string]int{}, memory: arena.New(4 * scanBytes)}
	defer s.memory.Close()
	a, err := archive.Open(archive.OS, path, archive.Options{Memory: s.memory, Counts: new(archive.Counts)})
	if err != nil {
		return s.report, err
	}
	defer a.Close()
	s.archive, s.doubts = a, a.NewDoubts()
	s.report.Format = a.Format()
	// Resizing decodes the whole image, but a crop decodes only a part.
	if s.pool, err = decode.NewPool(decode.Options{Transform: decode.Resize{Height: 1, Width: 1}}); err != nil {
		return s.report, err
	}
	defer s.pool.Close()
	err = s.run(ctx)
	s.finish()
	if err == nil && s.report.Images == 0 && len(s.report.Bad) == 0 {
		err = a.NoImages(s.ignored, nil, nil)
	}
	if err == nil && s.left > 0 {
		err = s.doubts.About(slices.Collect(maps.Keys(s.classes)))
	}
	return s.report, err
}

// scanner builds a report.
type scanner struct {
	archive *archive.Archive
	pool    *decode.Pool
	memory  *arena.Arena
	report  Report
	left    int // number of images that are still to be read
	doubts  archive.Doubts

	classes, splits, formats, ignored map[string]int

	sizes []Size
	bytes []int64
}

// scanned is an image that is to be decoded.
type scanned struct {
	item
	where archive.Location
}

const (
	scanImages = 256      // images decoded at a time
	scanBytes  = 32 << 20 // bytes of images decoded at a time
)

// run reads and decodes images at the same time.
func (s *scanner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	parts := make(chan []scanned, 1)
	var readErr error
	go func() {
		defer close(parts)
		readErr = s.read(ctx, parts)
	}()
	var err error
	for part := range parts {
		if err == nil {
			if err = s.decode(part); err != nil {
				cancel()
			}
		}
	}
	cancel()
	return cmp.Or(err, readErr)
}

// read sends the images of the archive in parts.
func (s *scanner) read(ctx context.Context, parts chan<- []scanned) error {
	for _, shard := range s.archive.Shards {
		if err := s.readShard(ctx, shard, parts); err != nil || s.left <= 0 {
			return err
		}
	}
	return nil
}

func (s *scanner) readShard(ctx context.Context, shard *archive.Shard, parts chan<- []scanned) error {
	stream, err := shard.Open(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	var part []scanned
	bytes := 0
	flush := func() error {
		select {
		case parts <- part:
			part, bytes = nil, 0
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s.left <= 0 {
			return flush()
		}
		e, err := stream.Next()
		if err != nil {
			if flushErr := flush(); err == io.EOF {
				err = flushErr
			}
			return err
		}
		s.report.Members++
		where, ignored, bad := shard.Admit(e)
		if ignored != "" {
			s.ignored[ignored]++
			s.doubts.Note(shard, e)
		}
		if where.Class == "" && bad == nil {
			continue
		}
		it := scanned{item: item{path: shard.Path, member: e.Number, name: e.Name, bad: bad}, where: where}
		if bad == nil {
			data, err := stream.Content()
			if errors.As(err, &bad) && bad.Kind == ErrBadMember {
				it.bad = bad
			} else if err != nil {
				flush()
				return err
			} else {
				it.hold(s.memory, data)
			}
		}
		part = append(part, it)
		s.left--
		if bytes += len(it.data); len(part) == scanImages || bytes >= scanBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
}

// decode decodes a part and adds it to the report.
func (s *scanner) decode(part []scanned) error {
	var images []decode.Image
	for _, it := range part {
		if it.bad == nil {
			images = append(images, decode.Image{Data: it.data})
		}
	}
	results := make([]decode.Result, len(images))
	if err := s.pool.Decode(images, make([]byte, 3*len(images)), results); err != nil {
		return err
	}
	for _, it := range part {
		if it.bad != nil {
			s.addBad(it, it.bad.Reason)
			continue
		}
		result := results[0]
		results = results[1:]
		switch bad, err := it.judge(&result); {
		case err != nil:
			return err
		case bad != nil:
			s.addBad(it, bad.Reason)
		default:
			s.add(it, Size{result.Width, result.Height})
		}
		it.memory.release()
	}
	return nil
}

func (s *scanner) addBad(it scanned, reason string) {
	s.report.Bad = append(s.report.Bad, BadMember{Member: it.member, Name: it.name, Reason: reason})
	if it.where.Class != "" {
		s.classes[it.where.Class] += 0
	}
}

func (s *scanner) add(it scanned, size Size) {
	s.report.Images++
	s.classes[it.where.Class]++
	if it.where.Split != "" {
		s.splits[it.where.Split]++
	}
	s.formats[decode.Sniff(it.data).String()]++
	s.sizes = append(s.sizes, size)
	s.bytes = append(s.bytes, int64(len(it.data)))
}

// finish completes the report.
func (s *scanner) finish() {
	r := &s.report
	if r.Bad == nil {
		r.Bad = []BadMember{} // in JSON an empty list, and not null
	}
	r.Classes = counted(s.classes, s.archive.SortClasses)
	r.Splits, r.Formats, r.Ignored = counted(s.splits, slices.Sort), counted(s.formats, slices.Sort), counted(s.ignored, slices.Sort)
	if r.Images == 0 {
		return
	}
	slices.SortFunc(s.sizes, func(a, b Size) int {
		return cmp.Or(cmp.Compare(a.Width*a.Height, b.Width*b.Height), cmp.Compare(a.Width, b.Width))
	})
	slices.Sort(s.bytes)
	middle, last := (r.Images-1)/2, r.Images-1
	r.Smallest, r.Median, r.Largest = s.sizes[0], s.sizes[middle], s.sizes[last]
	r.FileSize.Min, r.FileSize.Median, r.FileSize.Max = s.bytes[0], s.bytes[middle], s.bytes[last]
	for _, n := range s.bytes {
		r.Bytes += n
	}
}

// counted returns the counts of m. The function `sort` sorts their names.
func counted(m map[string]int, sort func(names []string)) []Count {
	names := slices.Collect(maps.Keys(m))
	sort(names)
	counts := make([]Count, len(names))
	for i, name := range names {
		counts[i] = Count{name, m[name]}
	}
	return counts
}
