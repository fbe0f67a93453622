package data

import (
	"fmt"
	"runtime"
)

// Options are the options of a [Loader]. The zero value gives all samples in their order, in
// batches of 128.
type Options struct {
	BatchSize int  // samples per batch. 0 means 128. The last batch of an epoch may be smaller
	DropLast  bool // leave out a last batch smaller than BatchSize. It is an error if no batch is left

	// Shuffle gives the samples in a random order, another one in each epoch. Equal seeds, data and
	// options give equal batches, whatever Workers is.
	Shuffle bool
	Seed    uint64

	// ShuffleBuffer is the number of samples of a Stream that are permuted at a time. 0 means 65,536.
	// BufferBytes bounds the memory for these samples, in bytes. 0 means 256 MiB. Up to three such
	// buffers exist at a time. A Dataset is permuted as a whole.
	ShuffleBuffer int
	BufferBytes   int

	// World is the number of processes that divide each epoch. 0 means 1. Rank is the number of this
	// process, from 0. All ranks have equal Seeds and data, and get equal numbers of samples. If the
	// samples do not divide evenly, a few are given twice. With DropRest a few are left out instead.
	// BatchSize is the batch of one rank. See [State] for a change of World inside an epoch.
	World, Rank int
	DropRest    bool

	// EachOnce gives each sample of an epoch to exactly one rank. Sums over all ranks are then sums
	// over the epoch, as an evaluation needs them. Some ranks have one sample less than others. So
	// ranks may have different numbers of batches, and a rank may have none. A step in which ranks wait
	// for each other would then fail, or wait forever. So would a captured step with
	// CapturedOptions.Agree. DropRest and DropLast leave samples out, so they are errors with EachOnce.
	EachOnce bool

	// Map makes one sample of another, on the worker goroutines. The order of the samples stays. Map
	// is called by several goroutines at a time, so it must not change what they share. An error of
	// Map ends the epoch. A panic of Map is raised again in the loop over the epoch. nil means no Map.
	Map func(Sample) (Sample, error)

	// Fields are the fields of the batches: the fields that Map returns or, without Map, some fields
	// of the data. nil means the fields of the data.
	Fields []Field

	// Pad says, by the field's name, how samples of different lengths become one array. A field that
	// is not named here has the zero Pad.
	Pad map[string]Pad

	Workers int // goroutines that make batches, up to 1024. 0 means one per core
	Buffers int // batches that exist at a time, including those that the consumer has. 0 means 4
}

// Pad says how samples of different lengths become one array. The samples of a field whose Shape
// begins with [Variable] are padded at their ends. The batch has one more column, int64 [N], with
// the lengths before padding. Its name is the field's name with "_length".
type Pad struct {
	Length   int     // the greatest length. 0 means 2,048. A longer sample is an error
	Truncate bool    // cut a longer sample instead
	Value    float64 // fills the rest. It must be a number of the field's dtype. Real dtypes only
	Whole    bool    // pad to Length, not only to the longest sample of the batch
}

const (
	defaultBatchSize     = 128
	defaultBuffers       = 4
	defaultShuffleBuffer = 65_536
	defaultBufferBytes   = 256 << 20
	defaultLength        = 2048
	mostWorkers          = 1024
)

// share returns this rank's number of samples of n.
func (o Options) share(n int) int {
	rounds, rest := n/o.World, n%o.World
	if rest > 0 && !o.DropRest && (!o.EachOnce || o.Rank < rest) {
		rounds++
	}
	return rounds
}

// empty returns the error of an epoch without batches, in which this rank has `share` samples.
// `name` names the data.
func (o Options) empty(name string, share int64) error {
	switch {
	case share > 0:
		return fmt.Errorf("data: %s has %d samples, fewer than the BatchSize %d, and Options.DropLast leaves them out: lower BatchSize, or leave DropLast out: %w", name, share, o.BatchSize, ErrInvalidOptions)
	case o.DropRest && o.World > 1:
		return fmt.Errorf("data: %s has fewer samples than the %d ranks, and Options.DropRest leaves them out: take fewer ranks, or leave DropRest out: %w", name, o.World, ErrInvalidOptions)
	}
	return fmt.Errorf("data: %s has no samples, so an epoch would have no batches: look at the file or the query that it is from: %w", name, ErrInvalidOptions)
}

// complete checks the options and returns them, with the default value in place of each zero.
// `fields` are the fields of the data.
func (o Options) complete(fields []Field) (Options, error) {
	for _, number := range []struct {
		name  string
		value *int
		zero  int
	}{
		{"BatchSize", &o.BatchSize, defaultBatchSize}, {"ShuffleBuffer", &o.ShuffleBuffer, defaultShuffleBuffer},
		{"BufferBytes", &o.BufferBytes, defaultBufferBytes}, {"World", &o.World, 1}, {"Rank", &o.Rank, 0},
		{"Workers", &o.Workers, runtime.GOMAXPROCS(0)}, {"Buffers", &o.Buffers, defaultBuffers},
	} {
		if *number.value < 0 || *number.value > 1<<31-1 {
			return o, fmt.Errorf("data: Options.%s is %d; it must not be below 0 (0 means the default), or 2^31 or more: %w", number.name, *number.value, ErrInvalidOptions)
		}
		if *number.value == 0 {
			*number.value = number.zero
		}
	}
	if o.Workers > mostWorkers {
		return o, fmt.Errorf("data: Options.Workers is %d; it must be 0 to %d: %w", o.Workers, mostWorkers, ErrInvalidOptions)
	}
	if o.Rank >= o.World {
		return o, fmt.Errorf("data: Options.Rank is %d; it must be less than World, which is %d: %w", o.Rank, o.World, ErrInvalidOptions)
	}
	if o.EachOnce && (o.DropRest || o.DropLast) {
		return o, fmt.Errorf("data: Options.EachOnce is set, and DropRest or DropLast leaves samples out; drop one: %w", ErrInvalidOptions)
	}
	if err := checkFields(fields); err != nil {
		return o, err
	}
	if o.Fields == nil {
		o.Fields = fields
	} else if err := checkFields(o.Fields); err != nil {
		return o, err
	}
	for _, f := range o.Fields {
		if i := fieldIndex(fields, f.Name); o.Map == nil && (i < 0 || !fields[i].equal(f)) {
			return o, fmt.Errorf("data: Options.Fields has %s, and the data have %s; without a Map fields stay as they are: %w", f, names(fields), ErrInvalidOptions)
		}
	}
	return o, o.checkPads()
}

func (o Options) checkPads() error {
	for name, p := range o.Pad {
		i := fieldIndex(o.Fields, name)
		switch {
		case i < 0 || o.Fields[i].Text || !o.Fields[i].variable():
			return fmt.Errorf("data: Options.Pad names %q, which is no field of variable length among %s: %w", name, names(o.Fields), ErrInvalidOptions)
		case p.Length < 0 || p.Length > maxSample/o.Fields[i].unit():
			return fmt.Errorf("data: Options.Pad[%q].Length is %d; it is out of range: %w", name, p.Length, ErrInvalidOptions)
		}
		if _, ok := padding(o.Fields[i].DType, p.Value); !ok {
			return fmt.Errorf("data: Options.Pad[%q].Value is %v, which is no %v: %w", name, p.Value, o.Fields[i].DType, ErrInvalidOptions)
		}
	}
	return nil
}

// pad returns the complete Pad of a field.
func (o Options) pad(name string) Pad {
	p := o.Pad[name]
	if p.Length == 0 {
		p.Length = defaultLength
	}
	return p
}
