package imageloader

import (
	"errors"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
	"github.com/streamtorch/streamtorch/internal/arena"
)

// item is one image of an epoch, on its way from the archive to a batch.
type item struct {
	number int    // number of the sample, in the archive's order
	path   string // the shard
	member int
	name   string
	label  int32
	data   []byte // the compressed image
	memory *piece // gives data back to its source; nil when data is not given back
	bad    *Error // the fault, if the image is not usable. Then `data` is nil
}

// piece counts the items that use one piece of memory. When the last of these items
// releases the piece, the piece goes back to its source.
type piece struct {
	items atomic.Int32
	free  func()
}

func (m *piece) release() {
	if m != nil && m.items.Add(-1) == 0 {
		m.free()
	}
}

// hold makes the item the only user of `data`, which is memory of the arena `from`.
func (it *item) hold(from *arena.Arena, data []byte) {
	it.data, it.memory = data, &piece{free: func() { from.Give(data) }}
	it.memory.items.Store(1)
}

// drop gives back the memory of items that no consumer will get.
func drop(items []item) {
	for i := range items {
		items[i].memory.release()
		items[i].memory = nil
	}
}

// itemOf returns a sample without its data. `bad` is its fault, or nil.
func itemOf(a *archive.Archive, number int, s archive.Sample, bad *Error) item {
	return item{number: number, path: a.Shards[s.Shard].Path, member: int(s.Member), name: s.Name, label: s.Label, bad: bad}
}

// judge returns the fault of an image that the decoder refused. If the decoder had too little
// memory or an internal error, judge fails. The image may then be good, so it must not be skipped.
func (it *item) judge(result *decode.Result) (*Error, error) {
	if result.Err == nil {
		return nil, nil
	}
	bad := &Error{Path: it.path, Member: it.member, Name: it.name, Reason: result.Err.Error(), Kind: ErrBadMember, Cause: result.Err}
	if errors.Is(bad, decode.ErrOutOfMemory) || errors.Is(bad, decode.ErrInternal) {
		bad.Kind, bad.Cause = result.Err, nil
		return nil, bad
	}
	return bad, nil
}
