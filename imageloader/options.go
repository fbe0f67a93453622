package imageloader

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
)

// Options configures a [Loader]. The zero value reads every image of the archive in order, 224 x
// 224, in batches of 128.
type Options struct {
	// Train turns on shuffling, random crops and random flips. Without Train the images come in the
	// archive's order. Each image is then the same every time, unless Crop says otherwise.
	Train bool

	BatchSize int  // images per batch. 0 means 128. The last batch of an epoch may be smaller
	DropLast  bool // leave out a last batch smaller than BatchSize. It is an error if no batch is left

	// Split, when not empty, selects the images below the directory of this name. "train" takes
	// train/cat/1.jpg, and "photos/train" takes photos/train/cat/1.jpg. "." takes all images. So
	// does "", but with Train it is an error if the archive has several splits, such as train and
	// test. Directories above the classes are splits if they have the same classes, or names of
	// splits.
	Split string

	// Limit, when not 0, is the largest number of images. The loader takes the first images of
	// Split and Labels.Only, in the archive's order. Ranks divide these images. The classes do not
	// change: if none are given, Open still looks for the classes of the whole archive. If they
	// are given and the images fit into Reading.ShuffleBuffer, Open reads no further than the last
	// of these images. It keeps the images of a .tgz in memory.
	Limit int

	Seed uint64 // equal seeds, archives and options give equal batches, whatever Workers is

	Labels  Labels  // where labels are from, and the classes
	Crop    Crop    // what becomes of each image
	Reading Reading // memory and limits of reading the archive, and its faults
	Index   Index   // the index files of large archives
	Ranks   Ranks   // several processes that divide each epoch

	// JPEGDevice decodes JPEG files beside the Workers, such as the JPEGDecoder of
	// cgotorch/images. The batches are the same to the bit with and without it. nil means that
	// there is none.
	JPEGDevice decode.JPEGDevice

	Workers int // decode threads. 0 means one per core, see also Ranks.Local
	// Buffers is the number of batches that exist at a time, including those that the consumer
	// has. 0 means 4, or 6 with a JPEGDevice, which has an image for longer than a thread does.
	Buffers int
}

// Labels says where labels are from, and which classes there are.
type Labels struct {
	// From says where the label of an image is from. Field is the name of the field in a .json
	// member that holds the label. "" means "label". A label that is a number is the index of the
	// class. If Classes is not set, the names of these classes are the numbers. If Classes is set
	// and has only numbers, a label is one of these names.
	From  LabelSource
	Field string

	// Classes gives the names of the classes. A label is an index into these names. An image whose
	// class has no name here is an error. Without Classes, the classes are all classes of the
	// archive, from every split, sorted by name.
	Classes []string

	// Only, when not empty, selects the images of these classes. Labels are then indices into these
	// classes alone, in the order that they have among all classes. A name that is no class is an
	// error. The other images may be of classes that Classes does not have.
	Only []string
}

// Crop says what becomes of each image.
type Crop struct {
	// Transform makes all images one size. With Train, nil means a random box of the image,
	// resized to Size x Size. Without Train, nil means the middle Size x Size of the image, after a
	// resize to 8/7 of Size at its shorter side.
	Transform decode.Transform

	Size int // height and width of the result, without a Transform. 0 means 224

	// Pad is for images of about Size, as CIFAR's are, without a Transform. With Train, the image is
	// shifted at random by at most Pad pixels. Without Train, it is resized as a whole. 0 means the
	// crops of Transform.
	Pad int

	Channels int // 3: RGB, 1: grey. 0 means 3

	// HorizontalFlip is the probability, 0 to 1, that an image is to be flipped left to right. With
	// Train, 0 means 0.5. Without Train, 0 means never. NoFlip turns flips off.
	HorizontalFlip float64
	NoFlip         bool

	// NoShrink decodes a JPEG at full size, even if its box is far larger than the result. The
	// pixels are then exactly torchvision's. See the Shrinking section of package decode.
	NoShrink bool
}

// Reading has the memory and the limits of reading an archive, and says which faults are no errors.
type Reading struct {
	// ShuffleBuffer is the memory, in bytes, for the compressed images of a .tgz. 0 means 256 MiB.
	//
	// An archive whose images fit into ShuffleBuffer is kept in memory. It is inflated once, and
	// shuffled evenly. A larger archive is read in blocks of about half a MiB, in a random order.
	// Blocks that fill half of the memory are mixed, while the next blocks fill the other half.
	// The first reading of a larger archive without an index is different. The loader reads the
	// images in the archive's order and holds some of them. It chooses each next image at random
	// from the held images. A .tar and a directory are always shuffled evenly, and none of their
	// images are kept.
	//
	// The loader reads images ahead of the decoder, but no more than ShuffleBuffer bytes. Without
	// an index this limit is a quarter of ShuffleBuffer, and the held images are not counted. When
	// the limit is less than a batch, a batch is decoded in parts.
	ShuffleBuffer int

	// Retries is how often a failed read is tried again. The pause before each try grows from 20
	// ms to 1 s. 0 means 3, and less than 0 means never. Timeout is how long a read may take. 0
	// means that there is no limit. The data of a read that takes longer are dropped.
	Retries int
	Timeout time.Duration

	// MaxSkipRate is the share of an epoch's images, 0 to 1, that may be unusable. Up to this
	// share, unusable images are left out and counted in Stats. The images that follow replace
	// them. When the share is larger, the epoch ends with ErrBadMember. With 0 the first unusable
	// image ends the epoch. With several Ranks the images of this rank count.
	MaxSkipRate float64

	// AllowTruncated reads an archive that is cut short, as by a download that broke off. Without
	// AllowTruncated, this archive is an error. The loader reads the part before the cut. Stats
	// names the archives that are cut short. The checksum of a .tgz is at its end and is lost with
	// the end. So no checksum covers the part before the cut.
	AllowTruncated bool

	MaxMemberBytes int // compressed size above which an image is unusable. 0 means 256 MiB
	MaxPixels      int // width x height above which an image is unusable. 0 means 100 million
	// DecodeMemory is the number of bytes that large images may take at a time while they are
	// decoded. See decode.Options.Memory. 0 means 512 MiB.
	DecodeMemory int
}

// Index says where the index file of an archive lies that is too large to be kept in memory. With
// the index file, the next Open can read the archive from many places at once. An index file is
// used only while the archive has the same size, time and hash as when the index was made.
type Index struct {
	// Dir is the folder for the index file. "" means the archive's folder. If that folder cannot be
	// written, the index file lies in the user's cache folder.
	Dir    string
	NoFile bool // neither read nor write index files
}

// Ranks divides each epoch among several processes. All processes must have the same Seed and
// archive. Each process gets a part of the epoch's order, and all get the same number of images.
// If the images do not divide evenly, the last rank also gets some images of the first rank. If
// images of a rank are unusable, the rank repeats usable images of its part instead. BatchSize is
// the batch of one rank. See [State] for another number of ranks inside an epoch.
type Ranks struct {
	// World is the number of processes, at most 65,536. 0 means 1. Rank is the number of this
	// process, from 0.
	World, Rank int

	// Local is the number of these processes on this machine. They share its cores, so the default
	// of Workers is divided by Local. 0 means 1.
	Local int

	DropRest bool // leave images out that do not divide evenly

	// EachOnce gives each usable image of an epoch to exactly one rank, and repeats none. Sums
	// over all ranks are then sums over the epoch, as an evaluation needs them. Some ranks have
	// one image less than others, or fewer where images are unusable. So ranks may have different
	// numbers of batches, and a rank may have none. A step in which ranks wait for each other
	// would then fail, or wait forever. So would a captured step with CapturedOptions.Agree.
	// DropRest and DropLast leave images out, so they are errors with EachOnce.
	EachOnce bool
}

const (
	defaultBatchSize     = 128
	defaultBuffers       = 4
	deviceBuffers        = 6
	defaultShuffleBuffer = 256 << 20
)

// complete checks the options and returns them, with the default value in place of each zero.
func (o Options) complete() (Options, error) {
	if err := o.check(); err != nil {
		return Options{}, fmt.Errorf("imageloader: Options.%w: %w", err, ErrInvalidOptions)
	}
	o.Reading.Retries = orDefault(o.Reading.Retries, 3)
	o.Reading.ShuffleBuffer = orDefault(o.Reading.ShuffleBuffer, defaultShuffleBuffer)
	o.Ranks.World = orDefault(o.Ranks.World, 1)
	if o.Workers == 0 && o.Ranks.Local > 1 {
		o.Workers = max(1, runtime.NumCPU()/o.Ranks.Local)
	}
	o.BatchSize = orDefault(o.BatchSize, defaultBatchSize)
	if o.Buffers == 0 && o.JPEGDevice != nil {
		o.Buffers = deviceBuffers
	}
	o.Buffers = orDefault(o.Buffers, defaultBuffers)
	o.Crop.Channels = orDefault(o.Crop.Channels, 3)
	o.Labels.Classes, o.Labels.Only = slices.Clone(o.Labels.Classes), slices.Clone(o.Labels.Only)
	if o.Train && !o.Crop.NoFlip && o.Crop.HorizontalFlip == 0 {
		o.Crop.HorizontalFlip = 0.5
	}
	if o.Crop.Transform == nil {
		o.Crop.Transform = o.Crop.transform(o.Train)
	}
	return o, nil
}

// transform returns the default Transform.
func (c Crop) transform(train bool) decode.Transform {
	size := orDefault(c.Size, 224)
	switch {
	case c.Pad > 0 && train:
		return decode.RandomCrop{Height: size, Width: size, Padding: c.Pad}
	case c.Pad > 0:
		return decode.Resize{Height: size, Width: size}
	case train:
		return decode.RandomResizedCrop{Height: size, Width: size}
	default:
		return decode.ResizeCenterCrop{Resize: size * 8 / 7, Height: size, Width: size}
	}
}

// check returns what is wrong with a field, or nil. The text begins with the name of the field.
func (o Options) check() error {
	for _, number := range []struct {
		name  string
		value int
	}{
		{"BatchSize", o.BatchSize}, {"Limit", o.Limit}, {"Workers", o.Workers}, {"Buffers", o.Buffers}, {"Ranks.World", o.Ranks.World}, {"Ranks.Rank", o.Ranks.Rank}, {"Ranks.Local", o.Ranks.Local},
		{"Crop.Size", o.Crop.Size}, {"Crop.Pad", o.Crop.Pad},
		{"Reading.ShuffleBuffer", o.Reading.ShuffleBuffer}, {"Reading.MaxMemberBytes", o.Reading.MaxMemberBytes},
		{"Reading.MaxPixels", o.Reading.MaxPixels}, {"Reading.DecodeMemory", o.Reading.DecodeMemory},
	} {
		if number.value < 0 {
			return fmt.Errorf("%s is %d; it must not be below 0 (0 means the default)", number.name, number.value)
		}
	}
	if s := o.Split; s != "" && s != "." && slices.ContainsFunc(strings.Split(s, "/"), func(s string) bool { return !isDirectoryName(s) }) {
		return fmt.Errorf("Split is %q; it must name a directory, such as \"train\" or \"photos/train\", or be \".\" for all", s)
	}
	if rate := o.Reading.MaxSkipRate; !(rate >= 0 && rate <= 1) {
		return fmt.Errorf("Reading.MaxSkipRate is %v; it is a share of the images, 0 to 1", rate)
	}
	if o.Reading.Timeout < 0 {
		return fmt.Errorf("Reading.Timeout is %v; it must not be below 0 (0 means none)", o.Reading.Timeout)
	}
	if o.Index.NoFile && o.Index.Dir != "" {
		return errors.New("Index.Dir and Index.NoFile are both set; drop one")
	}
	if o.Ranks.EachOnce && (o.Ranks.DropRest || o.DropLast) {
		return errors.New("Ranks.EachOnce is set, and Ranks.DropRest or DropLast leaves images out; drop one")
	}
	return cmp.Or(o.Crop.check(), o.Ranks.check(), o.Labels.check())
}

func (c Crop) check() error {
	switch {
	case c.Channels != 0 && c.Channels != 1 && c.Channels != 3:
		return fmt.Errorf("Crop.Channels is %d; it must be 3 (RGB), 1 (grey) or 0 (RGB)", c.Channels)
	case !(c.HorizontalFlip >= 0 && c.HorizontalFlip <= 1):
		return fmt.Errorf("Crop.HorizontalFlip is %v; it is a probability, 0 to 1", c.HorizontalFlip)
	case c.Transform != nil && (c.Size != 0 || c.Pad != 0):
		return errors.New("Crop.Transform is set, and so is Crop.Size or Crop.Pad, which are for the default; drop one")
	case c.NoFlip && c.HorizontalFlip > 0:
		return fmt.Errorf("Crop.HorizontalFlip is %v and Crop.NoFlip is set; drop one", c.HorizontalFlip)
	}
	return nil
}

func (r Ranks) check() error {
	switch {
	case r.Rank >= max(r.World, 1):
		return fmt.Errorf("Ranks.Rank is %d; it must be less than Ranks.World, which is %d", r.Rank, r.World)
	case r.World > mostRanks:
		return fmt.Errorf("Ranks.World is %d; it must be at most %d", r.World, mostRanks)
	}
	return nil
}

func (l Labels) check() error {
	if l.From < LabelsFound || l.From > LabelsFromMembers {
		return fmt.Errorf("Labels.From is %d; it must be LabelsFound, LabelsFromDirectories or LabelsFromMembers", l.From)
	}
	for i, name := range l.Only {
		if name == "" || slices.Contains(l.Only[:i], name) {
			return fmt.Errorf("Labels.Only has %q as name %d; each name must be a class, and be there once", name, i)
		}
	}
	return nil
}

func isDirectoryName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

func orDefault(value, zero int) int {
	if value == 0 {
		return zero
	}
	return value
}

// part returns a number that stands for Labels.Only and Limit. It is 0 without them.
func (o Options) part() uint32 {
	if len(o.Labels.Only) == 0 && o.Limit == 0 {
		return 0
	}
	hash := fnv.New32a()
	for _, name := range slices.Sorted(slices.Values(o.Labels.Only)) {
		fmt.Fprintf(hash, "%d %s ", len(name), name)
	}
	fmt.Fprint(hash, o.Limit)
	return max(hash.Sum32(), 1)
}

// aside returns the memory, in bytes, for images that have left the shuffle buffer and are not
// decoded yet.
func (o Options) aside() int { return max(o.Reading.ShuffleBuffer/4, 1) }

func (o Options) poolOptions() decode.Options {
	c := o.Crop
	return decode.Options{
		Workers: o.Workers, Transform: c.Transform, Channels: c.Channels, HorizontalFlip: c.HorizontalFlip, NoShrink: c.NoShrink,
		MaxPixels: o.Reading.MaxPixels, Memory: o.Reading.DecodeMemory, JPEGDevice: o.JPEGDevice,
	}
}

// archiveOptions returns what the reading of the archive needs of the loader's options.
func (l *Loader) archiveOptions() archive.Options {
	o, r := l.options, l.options.Reading
	return archive.Options{
		Train: o.Train, Split: o.Split, OnlyClasses: o.Labels.Only, Limit: o.Limit,
		Classes: o.Labels.Classes, Labels: o.Labels.From, LabelField: o.Labels.Field,
		ShuffleBuffer: r.ShuffleBuffer, IndexDir: o.Index.Dir, NoIndexFile: o.Index.NoFile,
		ReadRetries: r.Retries, ReadTimeout: r.Timeout, AllowTruncated: r.AllowTruncated, MaxMemberBytes: r.MaxMemberBytes, Skip: r.MaxSkipRate > 0,
		Ranks: o.Ranks.World, Rank: o.Ranks.Rank, Workers: l.pool.Workers(), Memory: l.memory, Counts: &l.reading,
	}
}
