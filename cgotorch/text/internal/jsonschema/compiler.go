package jsonschema

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
)

const (
	mostNodes = 100_000    // of a grammar
	mostWork  = 30_000_000 // steps of a compilation, which take some seconds at most
	mostChain = 1_000      // references that lead to references
)

// compiler makes a grammar of a document.
type compiler struct {
	root      *location
	locations int // made so far
	work      int
	g         *Grammar
	sets      map[string]int32 // by what a value must fit, the node of these values
	leaves    map[string][]int32
	patterns  map[string]*dfa
	enumSets  map[*location]map[string]bool
	queue     []pending
}

// pending is a node whose values are still to be found.
type pending struct {
	node int32
	all  []*location
}

// Compile makes a grammar of the document of a schema. It fails for a damaged document, an unknown
// keyword, and a schema that no value fits or that is too large. The error begins with the JSON
// pointer of the keyword, if one is to blame.
func Compile(document []byte) (g *Grammar, err error) {
	value, err := parse(document)
	if err != nil {
		return nil, err
	}
	c := &compiler{g: &Grammar{}, sets: map[string]int32{}, leaves: map[string][]int32{}, patterns: map[string]*dfa{},
		enumSets: map[*location]map[string]bool{}, locations: 1}
	c.root = &location{value: value}
	defer func() {
		switch f := recover().(type) {
		case nil:
		case *fault:
			g, err = nil, errors.New(f.Error())
		default:
			panic(f)
		}
	}()
	c.ready()
	c.g.root = c.node([]*location{c.root})
	for len(c.queue) > 0 {
		next := c.queue[0]
		c.queue = c.queue[1:]
		c.fill(next)
	}
	c.g.prune()
	if !c.g.nodes[c.g.root].finite {
		why := c.g.reason(c.g.root, map[int32]bool{})
		if why == nil {
			why = bad(nil, "the schema has no finite value: each one would contain another one")
		}
		panic(why)
	}
	c.g.finish()
	return c.g, nil
}

// spend counts work, and fails if a document asks for too much.
func (c *compiler) spend(n int) {
	if c.work += n; c.work > mostWork {
		panic(bad(nil, "the schema is too large: it asks for too many combinations"))
	}
}

// ready makes the nodes that all grammars have at the same places.
func (c *compiler) ready() {
	c.g.nodes = make([]node, commonNodes)
	c.g.nodes[nodeString] = node{kind: nodeText, most: none}
	c.g.nodes[nodeNull] = node{kind: nodeDFA, dfa: c.literals([]string{"null"})}
	c.g.nodes[nodeBool] = node{kind: nodeDFA, dfa: c.literals([]string{"true", "false"})}
	c.g.nodes[nodeNumber] = node{kind: nodeDFA, dfa: c.numbersOf(&spec{})}
}

func (c *compiler) add(n node) int32 {
	c.spend(10)
	if len(c.g.nodes) >= mostNodes {
		panic(bad(nil, "the schema is too large: its grammar has more than %d nodes", mostNodes))
	}
	c.g.nodes = append(c.g.nodes, n)
	return int32(len(c.g.nodes) - 1)
}

// node returns the node of the values that fit all of several schemas. Equal lists have one node.
// [compiler.fill] finds its values later.
func (c *compiler) node(all []*location) int32 {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *location) int { return cmp.Compare(a.id, b.id) })
	all = slices.Compact(all)
	all = slices.DeleteFunc(all, func(l *location) bool {
		a := c.read(l)
		return a.trivial && a.never == nil
	})
	key := make([]byte, 0, 4*len(all))
	for _, l := range all {
		key = binary.LittleEndian.AppendUint32(key, uint32(l.id))
	}
	c.spend(1 + len(all))
	if known, ok := c.sets[string(key)]; ok {
		return known
	}
	made := c.add(node{kind: nodeAny})
	c.sets[string(key)] = made
	c.queue = append(c.queue, pending{made, all})
	return made
}

// fill finds the parts of a node.
func (c *compiler) fill(p pending) {
	var parts []int32
	var why *fault
	for _, atoms := range c.conjunctions(p.all) {
		found, no := c.leavesOf(atoms)
		if parts = append(parts, found...); no != nil {
			why = no
		}
	}
	slices.Sort(parts)
	parts = slices.Compact(parts)
	c.spend(len(parts))
	c.g.nodes[p.node].parts = parts
	if len(parts) == 0 {
		c.g.nodes[p.node].why = why
	}
}

// leavesOf returns nodes, each of one type, of the values that fit all atoms. Without any it
// returns the reason.
func (c *compiler) leavesOf(atoms []*atom) ([]int32, *fault) {
	key := make([]byte, 0, 4*len(atoms))
	for _, a := range atoms {
		key = binary.LittleEndian.AppendUint32(key, uint32(a.at.id))
	}
	if known, ok := c.leaves[string(key)]; ok {
		return known, nil
	}
	s := merged(atoms, c.root)
	if s.why != nil {
		return nil, s.why
	}
	var found []int32
	if len(s.enums) > 0 {
		if found = c.enumNodes(s); len(found) == 0 {
			return nil, bad(s.enums[0].at, "no value of it fits all that is asked")
		}
	} else {
		found = c.typeNodes(s)
	}
	if len(found) == 0 {
		return nil, s.why
	}
	c.leaves[string(key)] = found
	return found, nil
}

// typeNodes returns a node for each type of a spec that has values. For another type it sets the
// spec's `why`.
func (c *compiler) typeNodes(s *spec) (found []int32) {
	if s.types&null != 0 {
		found = append(found, nodeNull)
	}
	if s.types&boolean != 0 {
		found = append(found, nodeBool)
	}
	if s.types&number != 0 {
		if !s.integer && s.low == nil && s.high == nil && s.multiple == nil {
			found = append(found, nodeNumber)
		} else if d := c.numbersOf(s); d != nil {
			found = append(found, c.add(node{kind: nodeDFA, dfa: d}))
		}
	}
	if s.types&text != 0 {
		if n, ok := c.textNode(s); ok {
			found = append(found, n)
		}
	}
	if s.types&array != 0 {
		if n, ok := c.arrayNode(s); ok {
			found = append(found, n)
		}
	}
	if s.types&objects != 0 {
		if n, ok := c.objectNode(s); ok {
			found = append(found, n)
		}
	}
	return found
}

// textNode returns the node of the strings of a spec. It reports false if there are none, and then
// sets the spec's `why`. So do arrayNode and objectNode.
func (c *compiler) textNode(s *spec) (int32, bool) {
	least, most := s.minLength, s.maxLength
	if least.n > most.n {
		s.why = bad(least.at, "it is more than maxLength, so no text fits")
		return 0, false
	}
	if len(s.patterns) == 0 {
		if least.n == 0 && most.n == none {
			return nodeString, true
		}
		return c.add(node{kind: nodeText, least: int32(least.n), most: int32(most.n)}), true
	}
	var d *dfa
	for _, p := range s.patterns {
		one := c.pattern(p)
		if one != nil && d != nil {
			one = c.both(p.at, d, one)
		}
		if d = one; d == nil {
			s.why = bad(p.at, "no text fits it")
			return 0, false
		}
	}
	if least.n > 0 || most.n < none {
		at := most.at
		if most.n == none {
			at = least.at
		}
		if d = c.counted(at, d, least.n, most.n); d == nil {
			s.why = bad(at, "no text of this length fits the pattern or the format")
			return 0, false
		}
	}
	return c.add(node{kind: nodeText, dfa: d}), true
}

// pattern returns the automaton of a pattern, or nil if no text fits it.
func (c *compiler) pattern(p pattern) *dfa {
	d, ok := c.patterns[p.text]
	if !ok {
		c.spend(len(p.text))
		d = c.determined(p.at, c.newNFA(p.at, readRegex(p.at, p.text)))
		c.patterns[p.text] = d
	}
	return d
}

func (c *compiler) arrayNode(s *spec) (int32, bool) {
	if s.minItems.n > s.maxItems.n {
		s.why = bad(s.minItems.at, "it is more than maxItems, so no list fits")
		return 0, false
	}
	n := node{kind: nodeArray, least: int32(s.minItems.n), most: int32(s.maxItems.n)}
	ahead := 0
	for _, a := range s.atoms {
		ahead = max(ahead, len(a.prefix))
	}
	for i := range min(ahead, s.maxItems.n) {
		n.prefix = append(n.prefix, c.node(s.item(i)))
	}
	n.items = c.node(s.item(ahead))
	return c.add(n), true
}

func (c *compiler) objectNode(s *spec) (int32, bool) {
	if s.minProperties.n > s.maxProperties.n {
		s.why = bad(s.minProperties.at, "it is more than maxProperties, so no object fits")
		return 0, false
	}
	keys, required := s.keys()
	c.spend(len(keys) * (1 + len(s.atoms)))
	if len(required) > s.maxProperties.n {
		s.why = bad(s.maxProperties.at, "it is less than the number of required keys, so no object fits")
		return 0, false
	}
	n := node{kind: nodeObject, least: int32(s.minProperties.n), most: int32(s.maxProperties.n), items: -1}
	for _, key := range keys {
		n.properties = append(n.properties, property{key, c.node(s.property(c, key)), required[key] != nil})
	}
	if extra, ok := s.extras(); ok {
		n.items = c.node(extra)
	}
	if n.items < 0 && s.minProperties.n > len(keys) {
		s.why = bad(s.minProperties.at, "there are %d properties, and other keys are written only where additionalProperties stands", len(keys))
		return 0, false
	}
	return c.add(n), true
}
