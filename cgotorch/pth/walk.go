package pth

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/internal/pickle"
)

// walker gives names to the tensors and values of an object.
type walker struct {
	file  *File
	path  map[any]bool // the objects around the present one
	seen  int
	names int // bytes of all names
}

func (w *walker) walk(name string, v any, depth int) error {
	if w.seen++; w.seen > mostValues {
		return fmt.Errorf("it has more than %d values", mostValues)
	}
	if w.names += len(name); w.names > mostNames {
		return fmt.Errorf("the names of its values have more than %d bytes", mostNames)
	}
	switch v.(type) {
	case *pickle.Dict, *pickle.List, *pickle.Object:
		if depth > mostDepth || w.path[v] {
			return fmt.Errorf("%s: an object that holds itself, or more than %d objects inside each other", name, mostDepth)
		}
		w.path[v] = true
		defer delete(w.path, v)
	}
	switch v := v.(type) {
	case *tensor:
		if i, twice := w.file.index[name]; twice {
			v = refuse("ambiguous", nil, "two tensors of the file get this name: save one state dict of them")
			w.file.views[name], w.file.tensors[i] = v, v.info(name)
			return nil
		}
		w.file.views[name], w.file.index[name] = v, len(w.file.tensors)
		w.file.tensors = append(w.file.tensors, v.info(name))
	case *pickle.Dict:
		for i, key := range v.Keys {
			if err := w.walk(join(name, text(key, i)), v.Values[i], depth+1); err != nil {
				return err
			}
		}
	case *pickle.List:
		for i, item := range v.Items {
			if err := w.walk(join(name, strconv.Itoa(i)), item, depth+1); err != nil {
				return err
			}
		}
	case *pickle.Object:
		if state, ok := v.State.(*pickle.Dict); ok {
			if _, ok := state.Get("_parameters").(*pickle.Dict); ok {
				return w.module(name, state, depth)
			}
			if w.file.program && strings.HasPrefix(v.Class, "__torch__.") {
				return w.walk(name, state, depth+1)
			}
		}
		w.file.values[name] = Object{Class: v.Class}
		if v.Items != nil {
			return w.walk(name, v.Items, depth+1)
		}
	case string, int64, float64, bool, nil:
		w.file.values[name] = v
	case pickle.Global:
		w.file.values[name] = Object{Class: string(v)}
	case *storage:
		w.file.values[name] = Object{Class: "storage"}
	}
	return nil
}

// module gives the tensors of a whole module the names of its state dict.
func (w *walker) module(name string, state *pickle.Dict, depth int) error {
	var hidden []any
	if l, ok := state.Get("_non_persistent_buffers_set").(*pickle.List); ok {
		hidden = l.Items
	}
	for _, part := range []string{"_parameters", "_buffers", "_modules"} {
		d, ok := state.Get(part).(*pickle.Dict)
		if !ok {
			continue
		}
		for i, key := range d.Keys {
			if d.Values[i] == nil || part == "_buffers" && slices.ContainsFunc(hidden, func(h any) bool { return h == key }) {
				continue
			}
			if err := w.walk(join(name, text(key, i)), d.Values[i], depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func join(name, part string) string {
	if name == "" {
		return part
	}
	return name + "." + part
}

// text returns the part of a name for key number i of a dict. A key that is neither text nor
// number, such as a tuple, gives the number of the key.
func text(key any, i int) string {
	switch key := key.(type) {
	case string:
		return key
	case int64, float64, bool:
		return fmt.Sprint(key)
	}
	return "#" + strconv.Itoa(i)
}
