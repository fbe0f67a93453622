// Package export reads a file of torch.export.save, and compiles its program to steps.
package export

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/torchzip"
)

// ErrFormat is wrapped by the errors for a file that is damaged, cut short, or not a file of
// torch.export.save.
var ErrFormat = errors.New("not a whole file of torch.export.save")

// ErrUnsupported is wrapped by the errors for a program that is whole, but that package pt2 does
// not run.
var ErrUnsupported = errors.New("this package does not run it")

// Limits of an archive.
const (
	mostJSON = 1 << 30 // the bytes of one JSON text
	// A JSON text may be this many times as long as the file. PyTorch does not compress it.
	mostJSONRatio = 32
	mostEntries   = 1 << 20
	mostNesting   = 8 * mostGraphDepth // a graph inside a graph is 8 values deeper
)

// Archive is the zip file around a program.
type Archive struct{ *torchzip.Archive }

func openArchive(source io.ReaderAt, size int64, name string) (*Archive, error) {
	kind := torchzip.Kind{
		Package: "pt2", Format: ErrFormat, Unsupported: ErrUnsupported, Entries: mostEntries, Inside: torchzip.Below,
		Make: "export the PyTorch model with torch.export.export, and save that with torch.export.save",
	}
	opened, err := torchzip.Open(kind, source, size, name)
	if err != nil {
		return nil, err
	}
	a := &Archive{opened}
	return a, a.check()
}

// check refuses archives of other kinds, and names them.
func (a *Archive) check() error {
	if a.Holds != nil && a.Holds != torchzip.Exported {
		return a.Refuse("%w", a.Holds.Program(a.Kind))
	}
	for _, want := range [][2]string{{"archive_format", "pt2"}, {"archive_version", "0"}, {"byteorder", "little"}} {
		text, err := a.Read(want[0], 64)
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(string(text)); got != want[1] {
			return a.Refuse("its %s is %q, and this package reads %q", want[0], got, want[1])
		}
	}
	return nil
}

// json reads an entry into v.
func (a *Archive) json(name string, v any) error {
	text, err := a.Read(name, min(mostJSON, uint64(a.Size())*mostJSONRatio))
	if err != nil {
		return err
	}
	if nesting(text) > mostNesting {
		return a.Bad("the entry %.200s has more than %d values inside each other", name, mostNesting)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return a.Bad("the entry %.200s: %w", name, err)
	}
	return nil
}

// nesting returns how many values of a JSON text are inside each other. Arguments are decoded in
// two steps, so the time for a text grows with this number.
func nesting(text []byte) (most int) {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			most = max(most, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return most
}

// models returns the names of the programs in the archive.
func (a *Archive) models() []string {
	var names []string
	for entry := range a.Names() {
		if name, ok := strings.CutPrefix(entry, "models/"); ok {
			if name, ok = strings.CutSuffix(name, ".json"); ok {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// model returns the name of the program to load.
func (a *Archive) model(wanted string) (string, error) {
	names := a.models()
	if len(names) == 0 {
		return "", a.Bad("it has no entry models/NAME.json")
	}
	return a.Choose(names, wanted, "program")
}
