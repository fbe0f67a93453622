package imageloader

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/decode"
)

// Stats counts what a loader has done since Open.
type Stats struct {
	Batches int   // delivered
	Samples int   // images delivered
	Bytes   int64 // compressed bytes of the images decoded

	Skipped  map[string]int // unusable images left out, by reason
	Examples []string       // the first few of them: archive, member and what is wrong
	Ignored  map[string]int // members of the archive that are no images, by reason

	IndexFiles []string // index files read or written
	IndexError string   // why one could not be written; the next Open will be slower, and nothing else

	// Where the time went. The stages run at the same time, so none is a share of another. A loader that keeps up has
	// ConsumerWait near 0; then WaitForBuffer is what it had to spare.
	Read           time.Duration // reading and inflating
	Decode         time.Duration // decoding batches: while the decode threads were at work
	WaitForSamples time.Duration // decode threads idle because nothing was read yet
	WaitForBuffer  time.Duration // decode threads idle because the consumer had not released a batch
	ConsumerWait   time.Duration // the consumer waiting for its next batch
}

const maxExamples = 5

// statistics is Stats being counted. It is safe for concurrent use.
type statistics struct {
	mu    sync.Mutex
	stats Stats
}

func (s *statistics) snapshot() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	copied := s.stats
	copied.Skipped, copied.Ignored = maps.Clone(copied.Skipped), maps.Clone(copied.Ignored)
	copied.Examples = slices.Clone(copied.Examples)
	copied.IndexFiles = slices.Clone(copied.IndexFiles)
	return copied
}

func (s *statistics) update(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}

func (s *statistics) read(took time.Duration) {
	s.update(func(s *Stats) { s.Read += took })
}

func (s *statistics) skip(bad *Error) {
	s.update(func(s *Stats) {
		if s.Skipped == nil {
			s.Skipped = map[string]int{}
		}
		s.Skipped[reasonOf(bad)]++
		if len(s.Examples) < maxExamples {
			s.Examples = append(s.Examples, bad.Error())
		}
	})
}

// timed adds the time that wait takes to one of the durations.
func (s *statistics) timed(which func(*Stats) *time.Duration, wait func()) {
	begin := time.Now()
	wait()
	took := time.Since(begin)
	s.update(func(s *Stats) { *which(s) += took })
}

var decodeKinds = []error{
	decode.ErrNotAnImage, decode.ErrTruncated, decode.ErrCorrupt, decode.ErrTooLarge, decode.ErrTooSmall, decode.ErrUnsupported,
}

// reasonOf sorts what is wrong with images into few kinds: that of the decoder's error where there is one, else the part of
// the text that names no numbers.
func reasonOf(bad *Error) string {
	for _, kind := range decodeKinds {
		if errors.Is(bad, kind) {
			return strings.TrimPrefix(kind.Error(), "decode: ")
		}
	}
	reason, _, _ := strings.Cut(bad.Reason, ":")
	return reason
}
