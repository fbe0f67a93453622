package jinja

// scope holds the variables of a block.
type scope struct {
	few    [3]variable // the first; a loop's body seldom has more
	more   map[string]any
	parent *scope
}

type variable struct {
	name  string
	value any
}

func (s *scope) child() *scope { return &scope{parent: s} }

func (s *scope) set(r *run, name string, v any) {
	for i := range s.few {
		if few := &s.few[i]; few.name == name || few.name == "" {
			*few = variable{name, v}
			return
		}
	}
	if s.more == nil {
		s.more = map[string]any{}
	}
	r.use(sizeNode)
	s.more[name] = v
}

func (s *scope) get(r *run, name string) (any, bool) {
	for i := 1; s != nil; s, i = s.parent, i+1 {
		if i%8 == 0 {
			r.spend(1)
		}
		for i := range s.few {
			if s.few[i].name == name {
				return s.few[i].value, true
			}
		}
		if v, ok := s.more[name]; ok {
			return v, true
		}
	}
	return nil, false
}

// filtered is the name under which a block's text waits for the block's filters.
const filtered = "|"

func (s *scope) with(text any) *scope {
	return &scope{few: [3]variable{{filtered, text}}, parent: s}
}
