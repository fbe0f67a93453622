package imageloader

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// Options configures a [Loader]. The zero value reads every image of the archive in order, 224 x
// 224, in batches of 128.
type Options struct {
	// Train shuffles, and makes random crops and flips. Without it the images come in the archive's
	// order. Each is then the same every time, unless Transform or HorizontalFlip says otherwise.
	Train bool

	BatchSize int  // images per batch. 0 means 128. The last batch of an epoch may be smaller
	DropLast  bool // leave out a last batch smaller than BatchSize. An error where no batch is left

	// Split, when not empty, selects the images below that directory: "train" takes train/cat/1.jpg,
	// and "photos/train" takes photos/train/cat/1.jpg.
	Split string

	// Classes and ClassFile give the names of the classes. A label is an index into them. ClassFile is
	// a text file of the operating system, also with OpenFS, with one class a line. With neither, the
	// classes are those of the whole archive, every split included, sorted by name. An image of another
	// class is an error.
	Classes   []string
	ClassFile string

	// Labels says where the label of an image is from. LabelField is the field of a .json member that
	// has it. "" means "label". A label that is a number is the index of the class. Without Classes
	// their names are then the numbers.
	Labels     Labels
	LabelField string

	// Transform makes each image one size. With Train nil means a random box of the image, resized to
	// 224 x 224. Without Train nil means the middle 224 x 224 of the image resized to 256 at its
	// shorter side.
	Transform decode.Transform
	Channels  int // 3: RGB, 1: grey. 0 means 3

	// HorizontalFlip is the probability, 0 to 1, that an image is to be flipped left to right. 0 means
	// 0.5 with Train, and never without it. NoFlip turns it off.
	HorizontalFlip float64
	NoFlip         bool

	Seed      uint64 // equal seeds, archives and options give equal batches, whatever Workers is
	NoShuffle bool   // keep the archive's order with Train

	// ShuffleBuffer is the memory, in bytes, for the compressed images of a .tgz. 0 means 256 MiB.
	//
	// An archive whose images fit is kept whole: it is inflated once, and shuffled evenly. A larger
	// archive is read in blocks of about half a MiB, in a random order. The images of as many blocks as
	// fill half of the memory are mixed, while the other half is being filled. On its first reading,
	// without an index, each image is drawn from the images held, in the archive's order. A .tar and a
	// directory are always shuffled evenly, and nothing of them is kept.
	//
	// No more than ShuffleBuffer bytes of images are read ahead of the decoder. Without an index the
	// limit is a quarter of that, beside the images held. Where the limit is less than a batch, a batch
	// is decoded in parts.
	ShuffleBuffer int

	// IndexDir is the folder for the index file of an archive that is too large to be kept. With the
	// index the archive is read from many places at once the next time. "" means beside the archive or,
	// where that cannot be written, in the user's cache folder. An index is used as long as the archive
	// has the size, the time and the hash of its making. NoIndexFile turns reading and writing such
	// files off.
	IndexDir    string
	NoIndexFile bool

	// ReadRetries is how often a failed read is tried again, after a pause that grows from 20 ms to 1
	// s. 0 means 3, below 0 never. ReadTimeout is how long a read may take. 0 means for ever. Data of a
	// late read are dropped.
	ReadRetries int
	ReadTimeout time.Duration

	// Ranks divides each epoch among that many processes, of which this is number Rank, from 0. 0 means
	// 1. All must have the same Seed and archive. Each gets a part of the epoch's order, and all get
	// the same number of images. Where they do not divide evenly, the last rank gets some of the first
	// rank's images too or, with DropRest, some are left out. A rank that leaves out unusable images
	// repeats others of its part in their place.
	Ranks, Rank int
	DropRest    bool

	Workers int // decode threads. 0 means one per core
	Buffers int // batches that exist at a time, those of the consumer included. 0 means 4

	// MaxSkipRate is the share of an epoch's images, 0 to 1, that may be unusable. Up to that share
	// they are left out, counted in Stats, and replaced by the images that follow. Above it the epoch
	// ends with ErrBadMember. With 0 the first unusable image ends the epoch.
	MaxSkipRate float64

	// AllowTruncated reads the good part of an archive that is cut short, as by a download that broke
	// off, instead of an error. Stats says which archives. The checksum of a .tgz does not cover its
	// good part.
	AllowTruncated bool

	// NoShrink decodes a JPEG at full size, also where its box is far larger than the result, for
	// exactly torchvision's pixels. See the Shrinking section of package decode.
	NoShrink bool

	// DecodeMemory is the bytes that large images may take at a time while they are decoded, see
	// decode.Options.Memory. 0 means 512 MiB.
	DecodeMemory   int
	MaxPixels      int // width x height above which an image is unusable. 0 means 100 million
	MaxMemberBytes int // compressed size above which an image is unusable. 0 means 256 MiB
}

const (
	defaultBatchSize      = 128
	defaultBuffers        = 4
	defaultShuffleBuffer  = 256 << 20
	defaultMaxMemberBytes = 256 << 20
)

// complete checks the options and returns them with every zero replaced by its meaning.
func (o Options) complete() (Options, error) {
	refuse := func(format string, args ...any) (Options, error) {
		return Options{}, fmt.Errorf("imageloader: Options."+format+": %w", append(args, ErrInvalidOptions)...)
	}
	for _, number := range []struct {
		name  string
		value int
	}{
		{"BatchSize", o.BatchSize}, {"ShuffleBuffer", o.ShuffleBuffer}, {"Workers", o.Workers}, {"Buffers", o.Buffers},
		{"DecodeMemory", o.DecodeMemory}, {"MaxPixels", o.MaxPixels}, {"MaxMemberBytes", o.MaxMemberBytes}, {"Ranks", o.Ranks}, {"Rank", o.Rank},
	} {
		if number.value < 0 {
			return refuse("%s is %d; it must not be below 0 (0 means the default)", number.name, number.value)
		}
	}
	if o.Channels != 0 && o.Channels != 1 && o.Channels != 3 {
		return refuse("Channels is %d; it must be 3 (RGB), 1 (grey) or 0 (RGB)", o.Channels)
	}
	if !(o.HorizontalFlip >= 0 && o.HorizontalFlip <= 1) {
		return refuse("HorizontalFlip is %v; it is a probability, 0 to 1", o.HorizontalFlip)
	}
	if o.NoFlip && o.HorizontalFlip > 0 {
		return refuse("HorizontalFlip is %v and NoFlip is set; drop one", o.HorizontalFlip)
	}
	if !(o.MaxSkipRate >= 0 && o.MaxSkipRate <= 1) {
		return refuse("MaxSkipRate is %v; it is a share of the images, 0 to 1", o.MaxSkipRate)
	}
	if o.Split != "" && slices.ContainsFunc(strings.Split(o.Split, "/"), func(s string) bool { return !isDirectoryName(s) }) {
		return refuse("Split is %q; it must name a directory, such as \"train\" or \"photos/train\"", o.Split)
	}
	if o.Labels < LabelsFound || o.Labels > LabelsFromMembers {
		return refuse("Labels is %d; it must be LabelsFound, LabelsFromDirectories or LabelsFromMembers", o.Labels)
	}
	if o.Rank >= max(o.Ranks, 1) {
		return refuse("Rank is %d; it must be less than Ranks, which is %d", o.Rank, o.Ranks)
	}
	if len(o.Classes) > 0 && o.ClassFile != "" {
		return refuse("Classes and ClassFile are both set; drop one")
	}
	if o.NoIndexFile && o.IndexDir != "" {
		return refuse("IndexDir and NoIndexFile are both set; drop one")
	}

	if o.ReadTimeout < 0 {
		return refuse("ReadTimeout is %v; it must not be below 0 (0 means none)", o.ReadTimeout)
	}
	o.ReadRetries = orDefault(o.ReadRetries, 3)
	o.Ranks = orDefault(o.Ranks, 1)
	o.BatchSize = orDefault(o.BatchSize, defaultBatchSize)
	o.Buffers = orDefault(o.Buffers, defaultBuffers)
	o.Channels = orDefault(o.Channels, 3)
	if o.LabelField == "" {
		o.LabelField = defaultLabelField
	}
	o.ShuffleBuffer = orDefault(o.ShuffleBuffer, defaultShuffleBuffer)
	o.MaxMemberBytes = orDefault(o.MaxMemberBytes, defaultMaxMemberBytes)
	o.Classes = slices.Clone(o.Classes)
	if o.Train && !o.NoFlip && o.HorizontalFlip == 0 {
		o.HorizontalFlip = 0.5
	}
	if o.Transform == nil && o.Train {
		o.Transform = decode.RandomResizedCrop{Height: 224, Width: 224}
	} else if o.Transform == nil {
		o.Transform = decode.ResizeCenterCrop{Resize: 256, Height: 224, Width: 224}
	}
	return o, nil
}

func orDefault(value, zero int) int {
	if value == 0 {
		return zero
	}
	return value
}

// share returns this rank's number of images, out of the given number.
func (o Options) share(images int) int {
	if o.DropRest {
		return images / o.Ranks
	}
	return (images + o.Ranks - 1) / o.Ranks
}

// aside is the memory, in bytes, for images that have left the shuffle buffer and are not decoded
// yet.
func (o Options) aside() int { return max(o.ShuffleBuffer/4, 1) }

func (o Options) shuffled() bool { return o.Train && !o.NoShuffle }

func (o Options) poolOptions() decode.Options {
	return decode.Options{
		Workers: o.Workers, Transform: o.Transform, Channels: o.Channels, HorizontalFlip: o.HorizontalFlip, MaxPixels: o.MaxPixels,
		NoShrink: o.NoShrink, Memory: o.DecodeMemory,
	}
}
