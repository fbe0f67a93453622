package weights

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// StoreOptions are the options of [OpenStore].
type StoreOptions struct {
	// Units matches the part of a tensor's name that is the name of its unit. The match must be at
	// the beginning of the tensor's name, and a point must follow the match. After the point comes
	// the tensor's name in the unit. A tensor whose name does not match is left out. For a Switch
	// Transformer `^.*\.experts\.expert_\d+` makes a unit of each expert, and
	// `^(encoder|decoder)\.block\.\d+` makes a unit of each block.
	Units *regexp.Regexp

	// DType is the dtype to which floating-point tensors are converted. 0 leaves each tensor in its
	// own dtype.
	DType cgotorch.DType

	// Map uses the pages of the files as the store's memory. The system keeps these pages once for
	// all processes. A unit is then copied to a slot tensor by tensor, not in one piece. The files
	// must not be changed or shortened while the store is open. If the system cannot page-lock the
	// pages, [NewCache] fails and says so.
	Map bool
}

// OpenStore reads units from safetensors files. Each path is a file, or an .index.json that lists
// several shards. A path may also be a folder with model.safetensors or
// model.safetensors.index.json. Units are in the order of their names, and so are the tensors of
// a unit. Numbers in names are compared by value. OpenStore reads with as many threads as there
// are cores, and waits until everything is read. The caller closes the Store.
//
// OpenStore fails with [safetensors.ErrFormat] for a file that is damaged or cut short. It fails
// with [cgotorch.ErrOutOfMemory], and says how many bytes are left, if memory is short. It fails
// with [ErrInvalidOptions] if no tensor matches or a tensor is in two files. It fails with the
// same error if Map is set and a tensor must be converted.
func OpenStore(paths []string, o StoreOptions) (*Store, error) {
	if o.Units == nil {
		return nil, fmt.Errorf("weights: StoreOptions.Units is nil: say which tensors make a unit: %w", ErrInvalidOptions)
	}
	if o.DType != 0 && !o.DType.IsFloat() {
		return nil, fmt.Errorf("weights: StoreOptions.DType is %v; it must be a floating-point dtype: %w", o.DType, ErrInvalidOptions)
	}
	shards, err := shardsOf(paths)
	if err != nil {
		return nil, err
	}
	r := storeReader{o: o, from: map[string]map[string]*fileTensor{}}
	defer r.close()
	for _, path := range shards {
		if err := r.open(path); err != nil {
			return nil, err
		}
	}
	specs := r.specs()
	if len(specs) == 0 {
		return nil, fmt.Errorf("weights: %s: no tensor's name is matched by %v and followed by a point: %w", strings.Join(shards, ", "), o.Units, ErrInvalidOptions)
	}
	s := &Store{mapped: o.Map}
	if err = s.lay(specs); err == nil {
		if o.Map {
			err = r.mapInto(s)
		} else if err = s.allocate(); err == nil {
			err = r.readInto(s)
		}
	}
	if err != nil {
		s.free()
		return nil, err
	}
	return s, nil
}

// shardsOf returns the safetensors files to which paths refer.
func shardsOf(paths []string) ([]string, error) {
	var shards []string
	for _, path := range paths {
		files, _, err := safetensors.Files(path)
		if err != nil {
			return nil, fmt.Errorf("weights: %w", err)
		}
		shards = append(shards, files...)
	}
	if len(shards) == 0 {
		return nil, fmt.Errorf("weights: no file to read units from: %w", ErrInvalidOptions)
	}
	return shards, nil
}

// storeReader finds the tensors of units in files.
type storeReader struct {
	o     StoreOptions
	files []*safetensors.File
	from  map[string]map[string]*fileTensor // by unit and tensor
}

// fileTensor is a tensor in a file.
type fileTensor struct {
	file  *safetensors.File
	info  safetensors.Info
	dtype cgotorch.DType // in the file
	spec  TensorSpec
}

func (r *storeReader) close() {
	for _, f := range r.files {
		f.Close()
	}
}

func (r *storeReader) open(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	r.files = append(r.files, f)
	for _, info := range f.Tensors() {
		unit, name, ok := r.split(info.Name)
		if !ok {
			continue
		}
		dtype, ok := checkpoint.DType(info.DType)
		if !ok {
			return fmt.Errorf("weights: %s: tensor %s: LibTorch has no %s: convert it first: %w", path, info.Name, info.DType, ErrInvalidOptions)
		}
		tensors := r.from[unit]
		if tensors == nil {
			tensors = map[string]*fileTensor{}
			r.from[unit] = tensors
		}
		if other, twice := tensors[name]; twice {
			return fmt.Errorf("weights: tensor %s is in %s and in %s: %w", info.Name, other.file.Name(), path, ErrInvalidOptions)
		}
		t := &fileTensor{file: f, info: info, dtype: dtype, spec: TensorSpec{Name: name, DType: dtype, Shape: info.Shape}}
		if r.o.DType != 0 && dtype.IsFloat() {
			t.spec.DType = r.o.DType
		}
		if r.o.Map && t.spec.DType != dtype {
			return fmt.Errorf("weights: %s: tensor %s is %v and wanted as %v: open the store without Map: %w", path, info.Name, dtype, t.spec.DType, ErrInvalidOptions)
		}
		tensors[name] = t
	}
	return nil
}

// split divides a tensor's name into the name of its unit and its name in the unit.
func (r *storeReader) split(tensor string) (unit, name string, ok bool) {
	at := r.o.Units.FindStringIndex(tensor)
	if at == nil || at[0] != 0 || at[1] == 0 || !strings.HasPrefix(tensor[at[1]:], ".") || at[1]+1 == len(tensor) {
		return "", "", false
	}
	return tensor[:at[1]], tensor[at[1]+1:], true
}

func (r *storeReader) specs() []UnitSpec {
	var specs []UnitSpec
	for name, tensors := range r.from {
		unit := UnitSpec{Name: name}
		for _, t := range tensors {
			unit.Tensors = append(unit.Tensors, t.spec)
		}
		slices.SortFunc(unit.Tensors, func(a, b TensorSpec) int { return compareNames(a.Name, b.Name) })
		specs = append(specs, unit)
	}
	slices.SortFunc(specs, func(a, b UnitSpec) int { return compareNames(a.Name, b.Name) })
	return specs
}

// compareNames orders names. Numbers in names are compared by value: block.2 comes before
// block.10.
func compareNames(a, b string) int {
	for a != "" && b != "" {
		numberA, numberB := leadingNumber(a), leadingNumber(b)
		if numberA == "" || numberB == "" {
			if a[0] != b[0] {
				return int(a[0]) - int(b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		valueA, valueB := strings.TrimLeft(numberA, "0"), strings.TrimLeft(numberB, "0")
		c := cmp.Or(len(valueA)-len(valueB), strings.Compare(valueA, valueB), strings.Compare(numberA, numberB))
		if c != 0 {
			return c
		}
		a, b = a[len(numberA):], b[len(numberB):]
	}
	return len(a) - len(b)
}

func leadingNumber(s string) string {
	return s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
}

// readInto reads all tensors into the store's memory.
func (r *storeReader) readInto(s *Store) error {
	return inParallel(len(s.names), 1, func(begin, end int) error {
		converts, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
		if err != nil {
			return fmt.Errorf("weights: %w", err)
		}
		defer converts.Close()
		for _, name := range s.names[begin:end] {
			unit := s.units[name]
			for i, t := range unit.layout.tensors {
				if err := r.from[name][t.Name].readInto(unit.parts[i], converts); err != nil {
					return fmt.Errorf("weights: unit %s: %w", name, err)
				}
			}
		}
		return nil
	})
}

// readInto reads the tensor into `memory`. If the store has a different dtype for the tensor than
// the file, readInto converts the tensor on the stream `converts`.
func (t *fileTensor) readInto(memory []byte, converts *cgotorch.Stream) error {
	if t.dtype == t.spec.DType {
		return t.file.ReadInto(t.info.Name, memory)
	}
	data, err := t.file.Read(t.info.Name)
	if err != nil {
		return err
	}
	return converts.Do(func(x *cgotorch.Exec) error {
		copy(memory, cgotorch.ToBytes(x, x.To(cgotorch.FromBytes(x, data, t.dtype, t.spec.Shape), t.spec.DType)))
		return nil
	})
}

// mapInto maps the files and makes their pages the store's memory.
func (r *storeReader) mapInto(s *Store) error {
	slabs := map[*safetensors.File]*cgotorch.HostSlab{}
	used := map[*safetensors.File]bool{}
	for _, tensors := range r.from {
		for _, t := range tensors {
			used[t.file] = true
		}
	}
	for _, f := range r.files {
		if !used[f] {
			continue
		}
		slab, err := mapFile(f.Name())
		if err != nil {
			return fmt.Errorf("weights: %s: %w", f.Name(), err)
		}
		s.slabs = append(s.slabs, slab)
		slabs[f] = slab
	}
	for _, name := range s.names {
		unit := s.units[name]
		for i, t := range unit.layout.tensors {
			from := r.from[name][t.Name]
			begin := from.file.Offset(from.info)
			end := begin + unit.layout.size[i]
			memory := slabs[from.file].Bytes()
			if end > int64(len(memory)) {
				return fmt.Errorf("weights: %s: tensor %s: the file has become shorter: %w", from.file.Name(), from.info.Name, safetensors.ErrFormat)
			}
			unit.parts = append(unit.parts, memory[begin:end:end])
		}
	}
	return nil
}

func mapFile(path string) (*cgotorch.HostSlab, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return cgotorch.MapHostSlab(file, int(info.Size()))
}
