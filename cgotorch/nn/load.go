package nn

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Copy writes source into destination. It broadcasts source, converts its dtype, and records
// nothing for backward. It waits for the device if it copies between host and device.
func Copy(x *cgotorch.Exec, destination, source *cgotorch.Tensor) {
	x.NoGrad().CopyInPlace(destination, source).Close()
}

// LoadOptions choose the names that [Load] may leave out or change. With the zero value, Load needs
// exactly the model's names.
type LoadOptions struct {
	// AllowOtherClasses is for weights that were trained on another number of classes. A tensor of
	// the model's last layer whose shape differs then keeps the model's values.
	AllowOtherClasses bool

	AllowMissing    bool // names of the model may lack a tensor; the model keeps its values there
	AllowUnexpected bool // names that the model lacks are ignored

	// Skip chooses names that Load ignores, in the model and among the tensors. The model keeps its
	// values under these names. Shapes of skipped tensors need not fit. nil skips no name.
	Skip func(name string) bool

	// With Prefix, Load takes only the tensors whose stored names begin with Prefix, and removes it.
	// DataParallel's files need "module.". A checkpoint {"model": …, "epoch": …} needs "model.".
	Prefix string

	// Rename returns the name in the model for the name of a stored tensor, without Prefix. "" ignores
	// the tensor. Skip sees the new names. nil keeps all names.
	Rename func(name string) string
}

// rename returns the stored name in the model, or "".
func (o LoadOptions) rename(name string) string {
	name, ok := strings.CutPrefix(name, o.Prefix)
	if !ok {
		return ""
	}
	if o.Rename == nil {
		return name
	}
	return o.Rename(name)
}

// head returns how the names of m's last layer begin, if its shapes may differ. Otherwise it
// returns "".
func (o LoadOptions) head(m any) string {
	state := State(m)
	if !o.AllowOtherClasses || len(state) == 0 {
		return ""
	}
	last := state[len(state)-1].Name
	return last[:strings.LastIndexByte(last, '.')+1]
}

// LoadError lists the reasons why tensors do not fit a model. Missing and Misshapen have the
// order of the model. Unexpected has alphabetical order.
type LoadError struct {
	Missing    []string // names of the model that the tensors lack
	Unexpected []string // names of tensors that the model lacks
	Misshapen  []string // names of tensors whose shape differs from the model's; each name with both shapes

	tied map[string][]string // all names of the tensor of a missing name
}

// Error gives the number of names in each list, and the first three of them.
func (e *LoadError) Error() string {
	const shown = 3
	var parts []string
	for _, p := range []struct {
		what  string
		names []string
	}{{"missing", e.Missing}, {"unexpected", e.Unexpected}, {"of another shape", e.Misshapen}} {
		if len(p.names) == 0 {
			continue
		}
		part := fmt.Sprintf("%d %s: %s", len(p.names), p.what, strings.Join(p.names[:min(shown, len(p.names))], ", "))
		if len(p.names) > shown {
			part += ", …"
		}
		parts = append(parts, part)
	}
	text := "nn: Load: the tensors do not fit the model: " + strings.Join(parts, "; ")
	if prefixes := e.prefixes(); len(prefixes) > 0 {
		text += "; the missing names are there with " + strings.Join(prefixes[:min(shown, len(prefixes))], " or ") + " in front: set LoadOptions.Prefix to it"
	}
	if len(e.Missing)+len(e.Unexpected) == 0 {
		text += "; make the model with these shapes, set LoadOptions.AllowOtherClasses, or leave out layers with LoadOptions.Skip"
	}
	return text
}

// prefixes returns the texts, such as "module.", with which all missing names are among the
// unexpected names. Of a tied weight one name is enough. Each text is quoted.
func (e *LoadError) prefixes() []string {
	if len(e.Missing) == 0 {
		return nil
	}
	there := map[string]bool{}
	for _, name := range e.Unexpected {
		there[name] = true
	}
	names := func(missing string) []string {
		if names := e.tied[missing]; names != nil {
			return names
		}
		return []string{missing}
	}
	var prefixes []string
	for _, name := range e.Unexpected {
		for _, first := range names(e.Missing[0]) {
			prefix, ok := strings.CutSuffix(name, first)
			lacks := func(missing string) bool {
				return !slices.ContainsFunc(names(missing), func(n string) bool { return there[prefix+n] })
			}
			if ok && strings.HasSuffix(prefix, ".") && !slices.ContainsFunc(e.Missing, lacks) && !slices.Contains(prefixes, strconv.Quote(prefix)) {
				prefixes = append(prefixes, strconv.Quote(prefix))
			}
		}
	}
	return prefixes
}

// Load copies tensors into m's parameters and buffers, and converts them to the dtypes of m. The
// tensors have the names that [State] gives. Load waits for the device if it copies between host
// and device. The tensors stay the caller's.
//
// A tensor that m holds under several names, such as a tied weight, needs one of them. If several
// are there, their values must be equal, and Load waits for the device to compare them.
//
// Load fails with the error of [Check]. It fails with a [*LoadError] if names or shapes do not fit.
// It fails with [cgotorch.ErrInvalidArgument] if all names may be missing and none is there, and if
// the values of a tied weight differ. After a failure m is unchanged. A missing num_batches_tracked
// is no error, because files from before PyTorch 0.4.1 lack it.
func Load(x *cgotorch.Exec, m any, tensors map[string]*cgotorch.Tensor, o LoadOptions) error {
	var entries []Entry
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		if t := tensors[name]; t != nil {
			load := func(x *cgotorch.Exec) (*cgotorch.Tensor, error) { return x.Alias(t), nil }
			entries = append(entries, Entry{Name: name, Shape: t.Shape(), Text: t.String(), Closed: t.Closed(), Load: load})
		}
	}
	matched, err := Match(x, m, entries, o)
	if err != nil {
		return err
	}
	for _, n := range matched {
		Copy(x, n.Tensor, tensors[n.Stored])
	}
	return nil
}

// skipsAll reports whether Skip chooses each name of m.
func (o LoadOptions) skipsAll(m any) bool {
	return o.Skip != nil && !slices.ContainsFunc(State(m), func(n Named) bool { return !o.Skip(n.Name) })
}

// nothingLoaded returns the error of tensors of which no name is the model's.
func nothingLoaded(m any, entries []Entry, o LoadOptions) error {
	stored := "there are no tensors"
	if len(entries) > 0 {
		stored = fmt.Sprintf("the tensors have names such as %.60s", entries[0].Name)
		if name := o.rename(entries[0].Name); name != "" && name != entries[0].Name {
			stored += fmt.Sprintf(", which LoadOptions make %.60s", name)
		}
	}
	return fmt.Errorf("nn: Load: nothing would be loaded: %s, and the model %.60s: set LoadOptions.Prefix or LoadOptions.Rename: %w", stored, State(m)[0].Name, cgotorch.ErrInvalidArgument)
}

// Entry describes a stored tensor that has not been read yet.
type Entry struct {
	Name   string
	Shape  []int64
	Text   string // dtype and shape, for errors
	Closed bool   // the tensor cannot be read, because it is closed

	// Of is the name of the stored tensor whose values these are, if a file only notes this name. A
	// model without the name may load the file. "" means that the tensor is stored under Name.
	Of string

	// Load reads the tensor. Match calls it to compare the values of a tied weight. nil means that
	// these need not be compared.
	Load func(x *cgotorch.Exec) (*cgotorch.Tensor, error)
}

func (e Entry) stored() string { return cmp.Or(e.Of, e.Name) }

// Matched is a tensor of a model with the name under which its values are stored.
type Matched struct {
	Named
	Stored string // differs from Name if LoadOptions.Rename is set, or if a file only notes the name
}

// Match checks names and shapes as [Load] does, but before the tensors are read, for instance
// from a file. It returns the tensors of m whose names are in `entries`, except skipped tensors. It
// reads tensors only to compare the values of a tied weight. It changes nothing and fails as Load
// does. The names in `entries` must differ.
func Match(x *cgotorch.Exec, m any, entries []Entry, o LoadOptions) ([]Matched, error) {
	if err := Check(m); err != nil {
		return nil, err
	}
	skip := func(name string) bool { return o.Skip != nil && o.Skip(name) }
	head := o.head(m)
	stored := map[string]Entry{} // by their names in the model
	for _, e := range entries {
		name := o.rename(e.Name)
		other, twice := stored[name]
		switch {
		case name == "", twice && e.Of != "":
			continue
		case twice && other.Of == "":
			return nil, fmt.Errorf("nn: Load: LoadOptions.Rename gives %s to both %s and %s", name, other.Name, e.Name)
		}
		stored[name] = e
	}
	var matched []Matched
	failure := &LoadError{tied: map[string][]string{}}
	known := map[string]bool{}
	var missing []Named
	found := map[*cgotorch.Tensor][]Entry{}
	for _, n := range State(m) {
		known[n.Name] = true
		e, ok := stored[n.Name]
		fits := ok && !e.Closed && !n.Tensor.Closed() && slices.Equal(e.Shape, n.Tensor.Shape())
		switch {
		case skip(n.Name):
		case n.Tensor.Closed():
			return nil, fmt.Errorf("nn: Load: tensor %s of the model: %w", n.Name, cgotorch.ErrClosed)
		case !ok, !fits && e.Of != "":
			missing = append(missing, n)
		case !fits && head != "" && strings.HasPrefix(n.Name, head):
		case !fits:
			failure.Misshapen = append(failure.Misshapen, fmt.Sprintf("%s (%s, the model has %s)", n.Name, e.Text, n.Tensor))
			found[n.Tensor] = append(found[n.Tensor], e)
		default:
			matched = append(matched, Matched{Named: n, Stored: e.stored()})
			found[n.Tensor] = append(found[n.Tensor], e)
		}
	}
	names := map[*cgotorch.Tensor][]string{}
	for _, n := range missing {
		names[n.Tensor] = append(names[n.Tensor], n.Name)
	}
	for _, n := range missing {
		if !o.AllowMissing && found[n.Tensor] == nil && !strings.HasSuffix(n.Name, "num_batches_tracked") {
			failure.Missing = append(failure.Missing, n.Name)
			failure.tied[n.Name] = names[n.Tensor]
		}
	}
	for name, e := range stored {
		if !o.AllowUnexpected && !known[name] && !skip(name) && e.Of == "" {
			failure.Unexpected = append(failure.Unexpected, name)
		}
	}
	if len(matched) == 0 && len(known) > 0 && len(failure.Missing)+len(failure.Misshapen) == 0 && !o.skipsAll(m) {
		return nil, nothingLoaded(m, entries, o)
	}
	slices.Sort(failure.Unexpected)
	if len(failure.Missing)+len(failure.Unexpected)+len(failure.Misshapen) > 0 {
		return nil, failure
	}
	for _, n := range matched {
		if err := n.compare(x, found[n.Tensor]); err != nil {
			return nil, err
		}
		delete(found, n.Tensor)
	}
	return matched, nil
}

// compare fails if the entries of one tensor of a model would give it different values.
func (n *Matched) compare(x *cgotorch.Exec, tied []Entry) error {
	var first []byte
	for i, e := range tied {
		if len(tied) == 1 || e.Load == nil || i > 0 && e.stored() == tied[0].stored() {
			continue
		}
		var values []byte
		var err error
		x.Tidy(func() *cgotorch.Tensor {
			var t *cgotorch.Tensor
			if t, err = e.Load(x); err == nil {
				to := x.NoGrad().EmptyLike(n.Tensor)
				Copy(x, to, t)
				values = cgotorch.ToBytes(x, to)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if first == nil {
			first = values
		} else if !bytes.Equal(first, values) {
			return fmt.Errorf("nn: Load: the model has one tensor for %s and %s, and their stored values differ: make the model without this tie, or leave one name out with LoadOptions.Skip: %w",
				tied[0].Name, e.Name, cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}
