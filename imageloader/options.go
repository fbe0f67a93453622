package imageloader

import (
	"fmt"
	"hash/fnv"
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
	// archive's order. Each image is then the same every time, unless Transform or HorizontalFlip
	// says otherwise.
	Train bool

	BatchSize int  // images per batch. 0 means 128. The last batch of an epoch may be smaller
	DropLast  bool // leave out a last batch smaller than BatchSize. It is an error if no batch is left

	// Split, when not empty, selects the images below the directory of this name. "train" takes
	// train/cat/1.jpg, and "photos/train" takes photos/train/cat/1.jpg. "." takes all images. So does
	// "", but with Train it is an error if the archive has several splits, such as train and test.
	// Directories above the classes are splits if they have the same classes, or names of splits.
	Split string

	// Classes gives the names of the classes. A label is an index into these names. An image whose
	// class has no name here is an error. Without Classes, the classes are all classes of the archive,
	// from every split, sorted by name.
	Classes []string

	// OnlyClasses, when not empty, selects the images of these classes. Labels are then indices into
	// these classes alone, in the order that they have among all classes. A name that is no class is
	// an error. The other images may be of classes that Classes does not have.
	OnlyClasses []string

	// Limit, when not 0, is the largest number of images. The loader takes the first images of Split
	// and OnlyClasses, in the archive's order. Ranks divide these images. The classes do not change:
	// if none are given, Open still looks for the classes of the whole archive. If they are given and
	// the images fit into ShuffleBuffer, Open reads no further than the last of these images. It
	// keeps the images of a .tgz in memory.
	Limit int

	// Labels says where the label of an image is from. LabelField is the name of the field in a .json
	// member that holds the label. "" means "label". A label that is a number is the index of the
	// class. If Classes is not set, the names of these classes are the numbers. If Classes is set and
	// has only numbers, a label is one of these names.
	Labels     LabelSource
	LabelField string

	// Transform makes all images one size. With Train, nil means a random box of the image, resized
	// to 224 x 224. Without Train, nil means the middle 224 x 224 of the image, after a resize to 256
	// at its shorter side.
	Transform decode.Transform
	Channels  int // 3: RGB, 1: grey. 0 means 3

	// HorizontalFlip is the probability, 0 to 1, that an image is to be flipped left to right. With
	// Train, 0 means 0.5. Without Train, 0 means never. NoFlip turns flips off.
	HorizontalFlip float64
	NoFlip         bool

	Seed      uint64 // equal seeds, archives and options give equal batches, whatever Workers is
	NoShuffle bool   // with Train: keep the archive's order

	// ShuffleBuffer is the memory, in bytes, for the compressed images of a .tgz. 0 means 256 MiB.
	//
	// An archive whose images fit into ShuffleBuffer is kept in memory. It is inflated once, and
	// shuffled evenly. A larger archive is read in blocks of about half a MiB, in a random order.
	// Blocks that fill half of the memory are mixed, while the next blocks fill the other half. The
	// first reading of a larger archive without an index is different. The loader reads the images in
	// the archive's order and holds some of them. It chooses each next image at random from the held
	// images. A .tar and a directory are always shuffled evenly, and none of their images are kept.
	//
	// The loader reads images ahead of the decoder, but no more than ShuffleBuffer bytes. Without an
	// index this limit is a quarter of ShuffleBuffer, and the held images are not counted. When the
	// limit is less than a batch, a batch is decoded in parts.
	ShuffleBuffer int

	// IndexDir is the folder for the index file of an archive that is too large to be kept in memory.
	// With the index file, the next Open can read the archive from many places at once. "" means the
	// archive's folder. If that folder cannot be written, the index file lies in the user's cache
	// folder. An index file is used only while the archive has the same size, time and hash as when
	// the index was made. NoIndexFile turns off reading and writing of index files.
	IndexDir    string
	NoIndexFile bool

	// ReadRetries is how often a failed read is tried again. The pause before each try grows from 20
	// ms to 1 s. 0 means 3, and less than 0 means never. ReadTimeout is how long a read may take. 0
	// means that there is no limit. The data of a read that takes longer are dropped.
	ReadRetries int
	ReadTimeout time.Duration

	// Ranks is the number of processes that divide each epoch, at most 65,536. 0 means 1. Rank is the
	// number of this process, from 0. All processes must have the same Seed and archive. Each process
	// gets a part of the epoch's order, and all get the same number of images. If the images do not
	// divide evenly, the last rank also gets some images of the first rank. With DropRest some images
	// are left out instead. If images of a rank are unusable, the rank repeats usable images of its
	// part instead. BatchSize is the batch of one rank. See [State] for a change of Ranks inside an
	// epoch.
	Ranks, Rank int
	DropRest    bool

	// EachOnce gives each usable image of an epoch to exactly one rank, and repeats none. Sums over all
	// ranks are then sums over the epoch, as an evaluation needs them. Some ranks have one image less
	// than others, or fewer where images are unusable. So ranks may have different numbers of batches,
	// and a rank may have none. A step in which ranks wait for each other would then fail, or wait
	// forever. So would a captured step with CapturedOptions.Agree. DropRest and DropLast leave images
	// out, so they are errors with EachOnce.
	EachOnce bool

	// JPEGDevice decodes JPEG files beside the Workers, such as the JPEGDecoder of cgotorch/images. The
	// batches are the same to the bit with and without it. nil means that there is none.
	JPEGDevice decode.JPEGDevice

	Workers int // decode threads. 0 means one per core
	// Buffers is the number of batches that exist at a time, including those that the consumer has. 0
	// means 4, or 6 with a JPEGDevice, which has an image for longer than a thread does.
	Buffers int

	// MaxSkipRate is the share of an epoch's images, 0 to 1, that may be unusable. Up to this share,
	// unusable images are left out and counted in Stats. The images that follow replace them. When
	// the share is larger, the epoch ends with ErrBadMember. With 0 the first unusable image ends the
	// epoch. With several Ranks the images of this rank count.
	MaxSkipRate float64

	// AllowTruncated reads an archive that is cut short, as by a download that broke off. Without
	// AllowTruncated, this archive is an error. The loader reads the part before the cut. Stats names
	// the archives that are cut short. The checksum of a .tgz is at its end and is lost with the end.
	// So no checksum covers the part before the cut.
	AllowTruncated bool

	// NoShrink decodes a JPEG at full size, even if its box is far larger than the result. The pixels
	// are then exactly torchvision's. See the Shrinking section of package decode.
	NoShrink bool

	// DecodeMemory is the number of bytes that large images may take at a time while they are
	// decoded. See decode.Options.Memory. 0 means 512 MiB.
	DecodeMemory   int
	MaxPixels      int // width x height above which an image is unusable. 0 means 100 million
	MaxMemberBytes int // compressed size above which an image is unusable. 0 means 256 MiB
}

const (
	defaultBatchSize     = 128
	defaultBuffers       = 4
	deviceBuffers        = 6
	defaultShuffleBuffer = 256 << 20
)

// complete checks the options and returns them, with the default value in place of each zero.
func (o Options) complete() (Options, error) {
	refuse := func(format string, args ...any) (Options, error) {
		return Options{}, fmt.Errorf("imageloader: Options."+format+": %w", append(args, ErrInvalidOptions)...)
	}
	for _, number := range []struct {
		name  string
		value int
	}{
		{"BatchSize", o.BatchSize}, {"ShuffleBuffer", o.ShuffleBuffer}, {"Workers", o.Workers}, {"Buffers", o.Buffers},
		{"DecodeMemory", o.DecodeMemory}, {"MaxPixels", o.MaxPixels}, {"MaxMemberBytes", o.MaxMemberBytes}, {"Ranks", o.Ranks}, {"Rank", o.Rank}, {"Limit", o.Limit},
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
	if o.Split != "" && o.Split != "." && slices.ContainsFunc(strings.Split(o.Split, "/"), func(s string) bool { return !isDirectoryName(s) }) {
		return refuse("Split is %q; it must name a directory, such as \"train\" or \"photos/train\", or be \".\" for all", o.Split)
	}
	if o.Labels < LabelsFound || o.Labels > LabelsFromMembers {
		return refuse("Labels is %d; it must be LabelsFound, LabelsFromDirectories or LabelsFromMembers", o.Labels)
	}
	if o.Rank >= max(o.Ranks, 1) {
		return refuse("Rank is %d; it must be less than Ranks, which is %d", o.Rank, o.Ranks)
	}
	if o.Ranks > mostRanks {
		return refuse("Ranks is %d; it must be at most %d", o.Ranks, mostRanks)
	}
	if o.EachOnce && (o.DropRest || o.DropLast) {
		return refuse("EachOnce is set, and DropRest or DropLast leaves images out; drop one")
	}
	for i, name := range o.OnlyClasses {
		if name == "" || slices.Contains(o.OnlyClasses[:i], name) {
			return refuse("OnlyClasses has %q as name %d; each name must be a class, and be there once", name, i)
		}
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
	if o.Buffers == 0 && o.JPEGDevice != nil {
		o.Buffers = deviceBuffers
	}
	o.Buffers = orDefault(o.Buffers, defaultBuffers)
	o.Channels = orDefault(o.Channels, 3)
	o.ShuffleBuffer = orDefault(o.ShuffleBuffer, defaultShuffleBuffer)
	o.Classes, o.OnlyClasses = slices.Clone(o.Classes), slices.Clone(o.OnlyClasses)
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

func isDirectoryName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

func orDefault(value, zero int) int {
	if value == 0 {
		return zero
	}
	return value
}

// part returns a number that stands for OnlyClasses and Limit. It is 0 without them.
func (o Options) part() uint32 {
	if len(o.OnlyClasses) == 0 && o.Limit == 0 {
		return 0
	}
	hash := fnv.New32a()
	for _, name := range slices.Sorted(slices.Values(o.OnlyClasses)) {
		fmt.Fprintf(hash, "%d %s ", len(name), name)
	}
	fmt.Fprint(hash, o.Limit)
	return max(hash.Sum32(), 1)
}

// aside returns the memory, in bytes, for images that have left the shuffle buffer and are not
// decoded yet.
func (o Options) aside() int { return max(o.ShuffleBuffer/4, 1) }

func (o Options) shuffled() bool { return o.Train && !o.NoShuffle }

func (o Options) poolOptions() decode.Options {
	return decode.Options{
		Workers: o.Workers, Transform: o.Transform, Channels: o.Channels, HorizontalFlip: o.HorizontalFlip, MaxPixels: o.MaxPixels,
		NoShrink: o.NoShrink, Memory: o.DecodeMemory, JPEGDevice: o.JPEGDevice,
	}
}

// archiveOptions returns what the reading of the archive needs of the loader's options.
func (l *Loader) archiveOptions() archive.Options {
	o := l.options
	return archive.Options{
		Train: o.Train, Split: o.Split, OnlyClasses: o.OnlyClasses, Limit: o.Limit,
		Classes: o.Classes, Labels: o.Labels, LabelField: o.LabelField,
		ShuffleBuffer: o.ShuffleBuffer, IndexDir: o.IndexDir, NoIndexFile: o.NoIndexFile,
		ReadRetries: o.ReadRetries, ReadTimeout: o.ReadTimeout, AllowTruncated: o.AllowTruncated, MaxMemberBytes: o.MaxMemberBytes, Skip: o.MaxSkipRate > 0,
		Ranks: o.Ranks, Rank: o.Rank, Workers: l.pool.Workers(), Memory: l.memory, Counts: &l.reading,
	}
}
