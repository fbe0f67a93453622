package imageloader

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// Stats counts a loader's work since Open.
type Stats struct {
	Batches int   // delivered
	Samples int   // images delivered
	Bytes   int64 // compressed bytes of the images decoded

	Skipped  map[string]int // unusable images left out, by reason
	Examples []string       // the first few of them: archive, member and fault
	Ignored  map[string]int // members of the archive that are no images, by reason

	Retries int // reads that failed or took too long, and were tried again

	Truncated []string // with Options.AllowTruncated: the archives that are cut short, and where

	IndexFiles []string // index files read or written
	// IndexError says why an index file could not be written. The next Open will then be slower.
	IndexError string

	// Elapsed is the time in the loops of Epoch. The other fields are the times that the stages worked
	// meanwhile, at the same time and on several cores, all together. Read is for reading files,
	// Inflate for inflating, Decode for decoding and resizing on Workers threads.
	Elapsed               time.Duration
	Read, Inflate, Decode time.Duration
	Workers               int

	// The times that stages waited, one stage at a time. A loader that keeps up has ConsumerWait near
	// 0. WaitForBuffer is then its spare time.
	WaitForSamples time.Duration // no image was read yet that could be decoded
	WaitForBuffer  time.Duration // the consumer had not released a batch
	ConsumerWait   time.Duration // the consumer waited for its next batch

	// Ready is the number of batches that were ready when the consumer asked for a batch, summed over
	// all batches. It counts at most Buffers a time.
	Ready   int
	Buffers int
}

// Since returns the counts since an earlier Stats of the same loader. The texts, and Ignored, are
// those of s.
func (s Stats) Since(earlier Stats) Stats {
	s.Batches -= earlier.Batches
	s.Samples -= earlier.Samples
	s.Bytes -= earlier.Bytes
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

// Bottleneck names the stage that the batches waited for, and the number of cores that the loader
// used: "decode, 3.1 of 4 cores". It is "consumer, 2.2 of 16 cores" where the batches did not wait
// for the loader.
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
	return fmt.Sprintf("%s, %.1f of %d cores", stage, share(s.Inflate+s.Decode), runtime.GOMAXPROCS(0))
}

const maxExamples = 5

// statistics counts Stats. It is safe for concurrent use.
type statistics struct {
	mu      sync.Mutex
	stats   Stats
	began   time.Time    // of the running loop, zero without a loop
	read    atomic.Int64 // nanoseconds in ReadAt and Read of files
	inflate atomic.Int64 // and in inflating from the beginning
}

func (s *statistics) snapshot() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	copied := s.stats
	copied.Read = time.Duration(s.read.Load())
	copied.Inflate = time.Duration(s.inflate.Load())
	if !s.began.IsZero() {
		copied.Elapsed += time.Since(s.began)
	}
	copied.Skipped, copied.Ignored = maps.Clone(copied.Skipped), maps.Clone(copied.Ignored)
	copied.Examples = slices.Clone(copied.Examples)
	copied.IndexFiles = slices.Clone(copied.IndexFiles)
	copied.Truncated = slices.Clone(copied.Truncated)
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

// truncated reports a shard that is cut short, once.
func (s *statistics) truncated(shard *shard, where error) {
	if !shard.cut.Swap(true) {
		s.update(func(s *Stats) { s.Truncated = append(s.Truncated, where.Error()) })
	}
}

var decodeKinds = []error{
	decode.ErrNotAnImage, decode.ErrTruncated, decode.ErrCorrupt, decode.ErrTooLarge, decode.ErrTooSmall, decode.ErrUnsupported,
}

// reasonOf sorts the faults of images into few kinds. The kind is that of the decoder's error where
// there is such an error. Else it is the part of the text that names no numbers.
func reasonOf(bad *Error) string {
	for _, kind := range decodeKinds {
		if errors.Is(bad, kind) {
			return strings.TrimPrefix(kind.Error(), "decode: ")
		}
	}
	reason, _, _ := strings.Cut(bad.Reason, ":")
	return reason
}
