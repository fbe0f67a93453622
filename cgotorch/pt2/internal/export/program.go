package export

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/graph"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/guard"
)

// Program is a program of a file, without the values of its tensors.
type Program struct {
	*graph.Program
	File       *Archive
	Signature  Signature
	Guards     guard.Guards
	Nodes      []*graph.Node
	WeightList []*Stored // the tensors of boundProgram.weights, and where they are in the file
	ConstList  []*Stored
}

// Options is what to read of a file.
type Options struct {
	Model string         // the name of the program, if the file holds several; "" means the only one
	Float cgotorch.DType // stands for float32; 0 means float32
}

// Read reads a program without its tensors, and checks it.
func Read(source io.ReaderAt, size int64, name string, o Options) (*Program, error) {
	a, err := openArchive(source, size, name)
	if err != nil {
		return nil, err
	}
	model, err := a.model(o.Model)
	if err != nil {
		return nil, err
	}
	var text exported
	if err := a.json("models/"+model+".json", &text); err != nil {
		return nil, err
	}
	if text.SchemaVersion == (schemaVersion{}) {
		return nil, a.Bad("the entry models/%.100s.json has no schema_version", model)
	}
	if v := text.SchemaVersion; v.Major != schemaMajor {
		return nil, a.Refuse("its schema has version %d.%d (PyTorch %.40s), and this package reads %d.x: export it with PyTorch 2.9 to 2.11",
			v.Major, v.Minor, text.TorchVersion, schemaMajor)
	}
	c := &compiler{file: a, float: o.Float, missing: map[string]string{}}
	g, err := c.build("", &text.GraphModule.Graph)
	if err != nil {
		return nil, err
	}
	if len(c.missing) > 0 {
		return nil, a.Refuse("LibTorch lacks %d of its operators: %s", len(c.missing), c.lacks())
	}
	p := &Program{Program: &graph.Program{Graph: g}, File: a, Nodes: c.nodes}
	paths, err := p.Signature.read(a, &text.GraphModule)
	if err != nil {
		return nil, err
	}
	b := &binder{Program: p, float: o.Float, text: &text, paths: paths, weightAt: map[string]int{}, constantAt: map[string]int{}, userAt: map[string]int{}}
	return p, b.bind(model)
}

// schemaMajor is the version of torch.export's schema that this package reads.
const schemaMajor = 8

// lacks names the first operators that LibTorch lacks, and says where others may be.
func (c *compiler) lacks() string {
	const shown = 3
	var parts []string
	for i, name := range slices.Sorted(maps.Keys(c.missing)) {
		if i == shown {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, fmt.Sprintf("%.80s (node %.60s)", name, c.missing[name]))
	}
	advice := ""
	for name := range c.missing {
		if !strings.HasPrefix(name, "aten::") {
			advice = "; open their library with cgotorch.OpenOperators before. If Python code defines them, write them with PyTorch's operators and export again"
		}
	}
	return strings.Join(parts, ", ") + advice
}

// read reads the trees of arguments and results. It returns the names of the leaves of the
// arguments.
func (p *Signature) read(a *Archive, m *graphModule) (paths []string, err error) {
	if len(m.ModuleCalls) == 0 || m.ModuleCalls[0].Signature == nil {
		return nil, a.Bad("it has no signature")
	}
	s := m.ModuleCalls[0].Signature
	if p.in, err = parseTree(s.In, m.NamedTuples); err != nil {
		return nil, a.Bad("the arguments: %w", err)
	}
	if p.Out, err = parseTree(s.Out, m.NamedTuples); err != nil {
		return nil, a.Bad("the results: %w", err)
	}
	if len(p.in.Children) != 2 || p.in.Children[0].leaf() || p.in.Children[1].leaf() || !p.in.Children[1].Named {
		return nil, a.Bad("the arguments are no tuple and no dict")
	}
	if have := len(m.Signature.Inputs); p.in.leaves() > have {
		return nil, a.Bad("the arguments have %d values, and the signature has %d", p.in.leaves(), have)
	}
	arguments, keywords := p.in.Children[0], p.in.Children[1]
	if len(s.Names) == len(arguments.Children)+len(keywords.Children) {
		p.positions = s.Names[:len(arguments.Children)]
	}
	for i, c := range arguments.Children {
		paths = c.Paths(p.position(i), paths)
	}
	for i, c := range keywords.Children {
		paths = c.Paths(keywords.Keys[i], paths)
	}
	return paths, nil
}
