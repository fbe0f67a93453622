package imageloader

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// Stats counts a loader's work since Open.
type Stats struct {
	Batches int   // delivered batches
	Samples int   // delivered images
	Bytes   int64 // compressed bytes of the decoded images

	OnDevice int // images that Options.JPEGDevice has decoded

	Skipped  map[string]int // number of unusable images that were left out, by reason
	Examples []string       // the first few unusable images: archive, member and fault
	Ignored  map[string]int // number of the archive's members that are no images, by reason

	Retries int // reads that failed or took too long and were tried again

	Truncated []string // with Options.Reading.AllowTruncated: the archives that are cut short, and where they end

	IndexFiles []string // index files that were read or written
	// IndexError says why an index file could not be written. In this case the next Open is slower.
	IndexError string

	// Elapsed is the time in the loops of Epoch. Read, Inflate and Decode are the working times of
	// stages. The stages work at the same time and on several cores, and their times are added up.
	// Read is the time of reading files, and Inflate of inflating. Decode is the time of decoding
	// and resizing on Workers threads. Threads that serve a JPEGDevice do not count.
	Elapsed               time.Duration
	Read, Inflate, Decode time.Duration
	Workers               int

	// These are the waiting times of single stages. In a loader that is fast enough, ConsumerWait
	// is near 0, and WaitForBuffer is the loader's spare time.
	WaitForSamples time.Duration // time in which decoding waited for images that were not read yet
	WaitForBuffer  time.Duration // time in which decoding waited because the consumer had not released a batch
	ConsumerWait   time.Duration // time in which the consumer waited for its next batch

	// Ready adds up how many batches were ready each time the consumer asked for a batch. Each of
	// these numbers is at most Buffers.
	Ready   int
	Buffers int
}

// Since returns the counts since earlier, which is an earlier Stats of the same loader. The texts
// and Ignored are the same as in s.
func (s Stats) Since(earlier Stats) Stats {
	s.Batches -= earlier.Batches
	s.Samples -= earlier.Samples
	s.Bytes -= earlier.Bytes
	s.OnDevice -= earlier.OnDevice
	s.Retries -= earlier.Retries
	s.Elapsed -= earlier.Elapsed
	s.Read -= earlier.Read
	s.Inflate -= earlier.Inflate
	s.Decode -= earlier.Decode
	s.WaitForSamples -= earlier.WaitForSamples
	s.WaitForBuffer -= earlier.WaitForBuffer
	s.ConsumerWait -= earlier.ConsumerWait
	s.Ready -= earlier.Ready
	s.Skipped = maps.Clone(s.Skipped)
	for reason, n := range earlier.Skipped {
		s.Skipped[reason] -= n
	}
	return s
}

// Unusable returns the number of images that were left out, for any reason.
func (s Stats) Unusable() (n int) {
	for _, count := range s.Skipped {
		n += count
	}
	return n
}

// Bottleneck names the stage that the batches waited for, and the number of cores that the loader
// used. An example is "decode, 3.1 of 4 cores". If the batches did not wait for the loader, the
// stage is the consumer, as in "consumer, 2.2 of 16 cores".
func (s Stats) Bottleneck() string {
	if s.Elapsed <= 0 {
		return "nothing yet"
	}
	const keepsUp, starved = 0.02, 0.1
	share := func(d time.Duration) float64 { return d.Seconds() / s.Elapsed.Seconds() }
	stage := "decode"
	switch {
	case share(s.ConsumerWait) < keepsUp:
		stage = "consumer"
	case share(s.WaitForSamples) > starved && s.Read > s.Inflate:
		stage = "read"
	case share(s.WaitForSamples) > starved:
		stage = "inflate"
	}
	all := runtime.GOMAXPROCS(0)
	// Between two loops there is work too, which Elapsed does not count.
	return fmt.Sprintf("%s, %.1f of %d cores", stage, min(share(s.Inflate+s.Decode), float64(all)), all)
}

const maxExamples = 5

// statistics counts Stats. It is safe for concurrent use.
type statistics struct {
	mu    sync.Mutex
	stats Stats
	began time.Time // beginning of the running loop, zero without a loop
}

func (s *statistics) snapshot() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	copied := s.stats
	if !s.began.IsZero() {
		copied.Elapsed += time.Since(s.began)
	}
	copied.Skipped, copied.Ignored = maps.Clone(copied.Skipped), maps.Clone(copied.Ignored)
	copied.Examples = slices.Clone(copied.Examples)
	return copied
}

// start and stop count the time of a loop of Epoch.
func (s *statistics) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = time.Now()
}

func (s *statistics) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Elapsed += time.Since(s.began)
	s.began = time.Time{}
}

func (s *statistics) update(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}

func (s *statistics) skip(bad []*Error) {
	s.update(func(s *Stats) {
		for _, one := range bad {
			if s.Skipped == nil {
				s.Skipped = map[string]int{}
			}
			s.Skipped[reasonOf(one)]++
			if len(s.Examples) < maxExamples {
				s.Examples = append(s.Examples, one.Error())
			}
		}
	})
}

var decodeKinds = []error{
	decode.ErrNotAnImage, decode.ErrTruncated, decode.ErrCorrupt, decode.ErrTooLarge, decode.ErrTooSmall, decode.ErrUnsupported,
}

// reasonOf sorts the faults of images into a few kinds. If the decoder refused the image, the
// kind is the kind of the decoder's error. For all other faults, the kind is the text before the
// first colon, which has no numbers.
func reasonOf(bad *Error) string {
	for _, kind := range decodeKinds {
		if errors.Is(bad, kind) {
			return strings.TrimPrefix(kind.Error(), "decode: ")
		}
	}
	reason, _, _ := strings.Cut(bad.Reason, ":")
	return reason
}
