package archive

// Block is a run of samples that are read together. In a .tgz, these are the samples that begin
// in one segment. A segment is a part of the .tgz that can be inflated alone.
type Block struct {
	First, Count int   // number of the first sample, and number of samples
	From, To     int64 // offsets in the shard's content: of the first sample, and of the end of the last sample
}

// Bytes returns the memory that a block takes while it is in use.
func (b Block) Bytes() int { return int(b.To - b.From) }

const (
	BlockSamples = 16      // samples of a block, in a shard whose samples are read one by one
	blockBytes   = 1 << 20 // approximate bytes of a block, in a shard whose samples are read one by one

	// Here a segment is a part of a .tgz that can be inflated alone. If a segment is longer than
	// blockMost, and longer than half the shuffle buffer, it is cut into several blocks. Without
	// this limit, a compressor or an attacker could decide how much memory a block takes. To read
	// one of these blocks, the loader inflates the segment from its beginning.
	blockMost = 16 << 20
)

// blocks cuts the samples into blocks. A block has more than `most` bytes only if its single
// sample is that large.
func (a *Archive) blocks(x *Index, most int64) []Block {
	var blocks []Block
	last, segment := int32(-1), 0
	for i, s := range x.Samples {
		at := 0
		shard := a.Shards[s.Shard]
		content := shard.content.Load()
		if content != nil {
			at = content.Index().SegmentAt(s.Offset)
		}
		end := s.Offset
		if x.Bad[i] == nil {
			end += max(s.Size, 0)
		}
		begins := len(blocks) == 0 || s.Shard != last || at != segment || end-blocks[len(blocks)-1].From > most
		if !begins && content == nil {
			b := blocks[len(blocks)-1]
			begins = b.Count == BlockSamples || b.To-b.From > blockBytes
		}
		if begins {
			blocks = append(blocks, Block{First: i, From: s.Offset})
			last, segment = s.Shard, at
		}
		b := &blocks[len(blocks)-1]
		b.Count++
		b.To = max(b.To, end)
	}
	for i := range blocks {
		blocks[i].To = max(blocks[i].To, blocks[i].From)
	}
	return blocks
}
