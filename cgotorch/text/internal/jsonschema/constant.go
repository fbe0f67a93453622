package jsonschema

import (
	"encoding/json"
	"math/big"
	"slices"
)

// enumSet returns the canonical texts of a list's values.
func (c *compiler) enumSet(e enum) map[string]bool {
	set, ok := c.enumSets[e.at]
	if !ok {
		set = map[string]bool{}
		for _, v := range e.values {
			c.spend(1)
			set[canonical(v)] = true
		}
		c.enumSets[e.at] = set
	}
	return set
}

// enumNodes returns nodes of the values of an enum that fit a spec.
func (c *compiler) enumNodes(s *spec) (found []int32) {
	var fitting []any
	for _, v := range s.enums[0].values {
		if c.fitsSpec(s, v, 0) {
			fitting = append(fitting, v)
		}
	}
	return c.constants(fitting)
}

// constants returns nodes of values.
func (c *compiler) constants(values []any) (found []int32) {
	var strings, plain []string
	for _, value := range values {
		switch v := value.(type) {
		case nil:
			plain = append(plain, "null")
		case bool:
			plain = append(plain, map[bool]string{true: "true", false: "false"}[v])
		case json.Number:
			plain = append(plain, string(v))
			if r, ok := rationalOf(v); ok && r.IsInt() && new(big.Int).Abs(r.Num()).Cmp(big.NewInt(mostInteger)) <= 0 {
				plain = append(plain, r.RatString())
			}
		case string:
			strings = append(strings, v)
		case []any:
			n := node{kind: nodeArray, least: int32(len(v)), most: int32(len(v)), items: nodeNull}
			for _, item := range v {
				n.prefix = append(n.prefix, c.constant(item))
			}
			found = append(found, c.add(n))
		case *object:
			n := node{kind: nodeObject, most: none, items: -1}
			for _, key := range v.keys {
				n.properties = append(n.properties, property{key, c.constant(v.of[key]), true})
			}
			found = append(found, c.add(n))
		}
	}
	if len(plain) > 0 {
		slices.Sort(plain)
		found = append(found, c.add(node{kind: nodeDFA, dfa: c.literals(plain)}))
	}
	if len(strings) > 0 {
		found = append(found, c.add(node{kind: nodeText, dfa: c.literals(strings)}))
	}
	return found
}

func (c *compiler) constant(value any) int32 {
	return c.add(node{kind: nodeAny, parts: c.constants([]any{value})})
}
