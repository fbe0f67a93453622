package archive

// Sample is an image of the split that the loader reads. The loader has a list of these images,
// in the archive's order. The number of a sample is its place in the list, from 0.
type Sample struct {
	Name   string
	Size   int64
	Offset int64
	Member int32
	Shard  int32
	Label  int32
}

func (s Sample) entry() Entry {
	return Entry{Number: int(s.Member), Name: s.Name, size: s.Size, offset: s.Offset}
}

// Index is the list of samples with their faults. It is the result of one pass through an archive.
// It does not change afterwards.
type Index struct {
	Samples []Sample       // nil until a pass through the archive has reached the end
	Ignored map[string]int // number of members that are no images, by reason
	Bad     map[int]*Error // the faults of samples that are known to be unusable, by number
	Blocks  []Block        // blocks of the samples, if the archive is inflated block by block, or nil
	Held    [][]byte       // contents of the samples of a .tgz that is kept in memory
}

// IsWhole reports whether the index has all samples. The samples can then be read in any order.
func (x *Index) IsWhole() bool { return x.Samples != nil }

// Links returns the number of links that were passed over.
func (x *Index) Links() int { return x.Ignored[ignoredSymbolicLink] + x.Ignored[ignoredHardLink] }

// Bytes returns the memory that reading the given samples takes. A sample of unknown size counts
// as 0.
func (x *Index) Bytes(numbers []int32) (bytes int) {
	for _, n := range numbers {
		if x.Held == nil && x.Bad[int(n)] == nil {
			bytes += int(max(x.Samples[n].Size, 0))
		}
	}
	return bytes
}

// Largest returns the most bytes that are read of the archive at once. They can be more than the
// shuffle buffer.
func (a *Archive) Largest(x *Index) (most int) {
	if !x.IsWhole() {
		return max(a.options.MaxMemberBytes, blockMost)
	}
	for _, b := range x.Blocks {
		most = max(most, b.Bytes())
	}
	if x.Blocks != nil {
		return most
	}
	for i := range x.Samples {
		if x.Bad[i] == nil {
			most = max(most, int(x.Samples[i].Size))
		}
	}
	return BlockSamples * most
}

// Footprint returns the memory that an image of `bytes` bytes takes, with its entry in an index.
func Footprint(bytes int) int { return bytes + 128 }
