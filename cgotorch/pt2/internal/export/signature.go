package export

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/guard"
)

// Signature is the shape of the arguments and of the results of a program.
type Signature struct {
	in, Out   *tree
	positions []string      // the names of the positional arguments
	Inputs    []guard.Input // the leaves of `in`
}

// InputNames returns the names of the inputs, as errors show them.
func (s *Signature) InputNames() string {
	var names []string
	for _, v := range s.Inputs {
		names = append(names, v.Name)
	}
	return fmt.Sprintf("%.200s", strings.Join(names, ", "))
}

// Flatten returns the leaves of arguments, in the order of the program's inputs. `named` are those
// that are given by their names.
func (s *Signature) Flatten(args []any, named map[string]any) (leaves []any, err error) {
	arguments, keywords := s.in.Children[0], s.in.Children[1]
	if len(args) > len(arguments.Children) {
		return nil, s.tooMany(len(args))
	}
	used := 0
	for i, c := range arguments.Children {
		name := s.position(i)
		var v any
		if i < len(args) {
			v = args[i]
		} else if byName, ok := named[name]; ok {
			v, used = byName, used+1
		} else if fixed, ok := s.fixed(c, len(leaves)); ok {
			leaves = append(leaves, fixed...)
			continue
		} else {
			return nil, fmt.Errorf("%s is missing", name)
		}
		if leaves, err = c.flatten(name, v, leaves); err != nil {
			return nil, err
		}
	}
	for i, c := range keywords.Children {
		name := keywords.Keys[i]
		v, ok := named[name]
		if !ok {
			fixed, ok := s.fixed(c, len(leaves))
			if !ok {
				return nil, fmt.Errorf("the keyword %s is missing", name)
			}
			leaves = append(leaves, fixed...)
			continue
		}
		used++
		if leaves, err = c.flatten(name, v, leaves); err != nil {
			return nil, err
		}
	}
	if used < len(named) {
		return nil, fmt.Errorf("there are %d keywords too many among %.100q; the program has %.200s", len(named)-used, slices.Sorted(maps.Keys(named)), s.InputNames())
	}
	return leaves, nil
}

// tooMany returns the error for more arguments without a name than the program has.
func (s *Signature) tooMany(given int) error {
	arguments, keywords := s.in.Children[0], s.in.Children[1]
	names := make([]string, len(arguments.Children))
	for i := range names {
		names[i] = s.position(i)
	}
	why := fmt.Sprintf("%d arguments without a name, and the program takes %d", given, len(names))
	if len(names) > 0 {
		why += fmt.Sprintf(": %.200s", strings.Join(names, ", "))
	}
	if len(keywords.Children) > 0 {
		why += fmt.Sprintf("; give %.200s by name, in the last argument: pt2.Keywords{%.60q: …}", strings.Join(keywords.Keys, ", "), keywords.Keys[0])
	}
	return errors.New(why)
}

// fixed returns the leaves of an argument, which begin at leaf `from`, if the program accepts one
// value only for each.
func (s *Signature) fixed(c *tree, from int) (leaves []any, ok bool) {
	for _, v := range s.Inputs[from : from+c.leaves()] {
		if v.Tensor || v.Bounds != nil {
			return nil, false
		}
		leaves = append(leaves, v.Fixed)
	}
	return leaves, true
}

// position returns the name of a positional argument, as far as the file has names.
func (s *Signature) position(i int) string {
	if i < len(s.positions) {
		return s.positions[i]
	}
	return fmt.Sprintf("argument %d", i)
}
