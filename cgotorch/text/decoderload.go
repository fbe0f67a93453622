package text

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// fillSources copies the tensors of files into those of the model. It waits for the device.
func fillSources(s *cgotorch.Stream, sources []source) error {
	var pieces []piece
	defer func() {
		for _, p := range pieces {
			p.to.Close()
		}
	}()
	err := s.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		for _, src := range sources {
			if src.quantized == nil && dtypes[src.info.DType] == src.to.DType() && isDense(src.to) {
				pieces = src.cut(x, pieces)
			} else if err := src.convert(x); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = copyPieces(s, pieces)
	}
	return err
}

// isDense reports whether a tensor's elements lie in memory in the order of its dimensions.
func isDense(t *cgotorch.Tensor) bool {
	shape, strides, next := t.Shape(), t.Strides(), int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] > 1 && strides[i] != next {
			return false
		}
		next *= shape[i]
	}
	return true
}

// pieceBytes is about the number of bytes that are read at a time.
const pieceBytes = 16 << 20

// piece is a part of a tensor, and where its bytes are.
type piece struct {
	to    *cgotorch.Tensor
	host  []byte // the memory of `to` where it lies in host memory, or nil
	file  string
	from  int64
	bytes int
}

// cut adds the pieces of a source to a list.
func (s source) cut(x *cgotorch.Exec, pieces []piece) []piece {
	rows := int(s.info.Shape[0])
	row := int(s.info.Bytes) / max(1, rows)
	step := max(1, pieceBytes/max(1, row))
	for from := 0; from < rows; from += step {
		n := min(step, rows-from)
		p := piece{to: x.Keep(x.Narrow(s.to, 0, from, n)), file: s.file.Name(), from: s.file.Offset(s.info) + int64(from*row), bytes: n * row}
		if s.host != nil {
			p.host = s.host[from*row : (from+n)*row]
		}
		pieces = append(pieces, p)
	}
	return pieces
}

// copyPieces reads the pieces with several goroutines, each into page-locked memory of its own,
// from which the stream copies them. Pieces of host memory are read to where they belong.
func copyPieces(s *cgotorch.Stream, pieces []piece) error {
	var next atomic.Int64
	largest := 0
	for _, p := range pieces {
		largest = max(largest, p.bytes)
	}
	workers := min(8, runtime.GOMAXPROCS(0), len(pieces))
	errs := make([]error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = copySome(s, largest, func() (p piece, ok bool) {
				if k := int(next.Add(1)) - 1; k < len(pieces) {
					return pieces[k], true
				}
				return p, false
			})
			if errs[i] != nil {
				next.Store(1 << 40) // the others stop too
			}
		}()
	}
	all.Wait()
	return errors.Join(errs...)
}

// copySome copies pieces until there is none. None has more than `largest` bytes.
func copySome(s *cgotorch.Stream, largest int, next func() (piece, bool)) (err error) {
	files := map[string]*os.File{}
	var slab *cgotorch.HostSlab
	defer func() {
		err = errors.Join(err, slab.Close())
		for _, f := range files {
			f.Close()
		}
	}()
	for p, ok := next(); ok; p, ok = next() {
		if files[p.file] == nil {
			if files[p.file], err = os.Open(p.file); err != nil {
				return fmt.Errorf("text: %w", err)
			}
		}
		if p.host != nil {
			if _, err := files[p.file].ReadAt(p.host, p.from); err != nil {
				return fmt.Errorf("text: %s: %w", p.file, err)
			}
			continue
		}
		if slab == nil || len(slab.Bytes()) < p.bytes {
			slab.Close()
			if slab, err = cgotorch.NewHostSlab(s.Device(), largest); err != nil {
				return err
			}
		}
		data := slab.Bytes()[:p.bytes]
		slab.Touch(true)
		if _, err := files[p.file].ReadAt(data, p.from); err != nil {
			return fmt.Errorf("text: %s: %w", p.file, err)
		}
		began, done, err := s.CopyFrom(nil, cgotorch.HostCopy{To: p.to, From: data})
		if err != nil {
			return err
		}
		err = slab.Await(done)
		began.Close()
		done.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// innerPrefix is before the names of a text model in older files of models that also see images.
const innerPrefix = "language_model."

// inFiles returns the names that a tensor may have in files.
func (n names) inFiles(name string) (all []string) {
	rest, ok := strings.CutPrefix(name, n.prefix[0])
	if !ok {
		return append(all, name, innerPrefix+name)
	}
	for _, p := range n.prefix {
		all = append(all, p+rest)
	}
	return all
}

// match finds a source for each tensor of the decoder, by the tensor's name, also for those that
// are made later. Its error names all tensors of the files that do not fit.
func (d *decoder) match(w weightSet) (map[string]source, error) {
	sources := map[string]source{}
	var errs []error
	known, told := map[string]bool{}, false
	add := func(name string, shape []int64) {
		s := d.source(w, name, shape)
		sources[name] = s
		switch {
		case s.quantized != nil:
			for _, m := range s.quantized.members {
				known[s.quantized.module+m.suffix] = true
			}
			if err := s.quantized.check(); err != nil {
				errs = append(errs, err)
			}
		case s.file == nil:
			errs = append(errs, fmt.Errorf("text: %s: tensor %s is missing: %w", w.names(), name, cgotorch.ErrInvalidArgument))
		default:
			known[s.name] = true
			if err := s.check(); err != nil {
				errs = append(errs, err)
			}
		}
	}
	for _, n := range d.Weights {
		add(n.Name, n.Tensor.Shape())
	}
	later := slices.Clone(d.later)
	for _, p := range d.packs {
		if p.one != nil {
			later = append(later, p.one)
		} else {
			add(p.name, p.shape)
		}
	}
	for _, l := range later {
		for i, name := range l.names {
			add(name, []int64{int64(l.rows[i]), int64(l.in)})
		}
	}
	if err := d.tie(w, sources); err != nil {
		errs = append(errs, err)
	}
	for _, f := range w.files {
		for _, t := range f.Tensors() {
			if known[t.Name] || d.c.passesOver(t.Name) || d.c.isZeroBias(f, t) {
				continue
			}
			if d.c.quantized == nil && isQuantized(t) {
				told = true
			} else {
				errs = append(errs, fmt.Errorf("text: %s: tensor %s is not the model's: %w", f.Name(), t.Name, cgotorch.ErrInvalidArgument))
			}
		}
	}
	if told {
		errs = slices.Insert(errs, 0, fmt.Errorf("text: %s: the weights are quantised, and config.json has no quantization_config that tells how: %w", w.names(), cgotorch.ErrInvalidArgument))
	}
	return sources, few(errs)
}

// isQuantized reports whether a tensor is a part of quantised weights.
func isQuantized(t safetensors.Info) bool {
	return slices.Contains([]string{"I8", "F8_E4M3"}, t.DType) ||
		slices.ContainsFunc([]string{".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv"}, func(suffix string) bool { return strings.HasSuffix(t.Name, suffix) })
}

// isZeroBias reports whether a tensor is a bias of zeros, as old files of gptq have it for each
// product.
func (c *decoderConfig) isZeroBias(f *safetensors.File, t safetensors.Info) bool {
	if c.quantized == nil || !strings.HasSuffix(t.Name, ".bias") || t.Bytes > 1<<24 {
		return false
	}
	data, err := f.Read(t.Name)
	return err == nil && !slices.ContainsFunc(data, func(b byte) bool { return b != 0 })
}

// source finds a tensor of the decoder in the files.
func (d *decoder) source(w weightSet, name string, shape []int64) source {
	s := source{shape: shape}
	for _, inFile := range d.c.names.inFiles(name) {
		if d.c.quantized != nil {
			if s.quantized = d.c.quantized.source(w, inFile, shape); s.quantized != nil {
				return s
			}
		}
		if f := w.of[inFile]; f != nil && s.file == nil {
			s.file, s.name = f, inFile
			s.info, _ = f.Lookup(inFile)
		}
	}
	return s
}

// tie refuses files that have a head of their own although config.json says that it is the
// embedding.
func (d *decoder) tie(w weightSet, sources map[string]source) error {
	name := headName
	if w.of[name] == nil {
		name = innerPrefix + headName
	}
	f, table := w.of[name], sources[d.Weights[0].Name] // the embedding is the first
	if d.c.tied && f != nil && table.quantized != nil {
		return fmt.Errorf("text: %s: tensor %s is there beside a quantised embedding, and tie_word_embeddings of config.json says that they are one: set it to false: %w", f.Name(), name, cgotorch.ErrInvalidArgument)
	}
	if !d.c.tied || f == nil || table.file == nil {
		return nil
	}
	head, err := f.Read(name)
	if err != nil {
		return fmt.Errorf("text: %w", err)
	}
	embedding, err := table.file.Read(table.name)
	if err != nil {
		return fmt.Errorf("text: %w", err)
	}
	if !bytes.Equal(head, embedding) {
		return fmt.Errorf("text: %s: tensor %s differs from %s, and tie_word_embeddings of config.json says that they are one: set it to false: %w",
			f.Name(), name, table.name, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// narrowActivations are the suffixes of what quantised files say of activations and of the cache.
var narrowActivations = []string{".input_scale", ".input_zero_point", ".output_scale", ".k_scale", ".v_scale"}

// passesOver reports whether files may have a tensor that the decoder does not read: the head of a
// model whose head is its embedding, frequencies of old files, and what sees images.
func (c *decoderConfig) passesOver(name string) bool {
	switch {
	case name == headName, name == innerPrefix+headName:
		return c.tied
	case strings.HasSuffix(name, ".rotary_emb.inv_freq"):
		return true
	case c.quantized != nil && slices.ContainsFunc(narrowActivations, func(suffix string) bool { return strings.HasSuffix(name, suffix) }):
		return true
	}
	return slices.ContainsFunc(c.vision.tensors, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
