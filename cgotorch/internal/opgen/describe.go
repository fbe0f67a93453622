package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// A description is what -describe prints of one typed operator. With it tests/parity/operators
// writes calls of the Go function and of PyTorch's operator with equal arguments.
type description struct {
	Go       string            `json:"go"`       // such as linalg.SVD
	Operator string            `json:"operator"` // such as aten::linalg_svd
	Schema   string            `json:"schema"`
	Params   []described       `json:"params"`  // the parameters in Go's order
	Options  []described       `json:"options"` // the fields of the options struct
	Fixed    map[string]string `json:"fixed"`   // arguments with a value of their own
}

// A described argument has its name in the schema, and its name and type in Go.
type described struct {
	Argument string `json:"argument"`
	Go       string `json:"go"`
	Type     string `json:"type"`
	Kind     string `json:"kind"` // the type in the schema
	Inverted bool   `json:"inverted,omitempty"`
	Zero     bool   `json:"zero,omitempty"`     // 0 means the default
	All      bool   `json:"all,omitempty"`      // an empty list means all dimensions
	Fallback string `json:"fallback,omitempty"` // the default, if it is not that of the schema
}

// The function `describe` prints the descriptions of all entries of a list as JSON.
func describe(listPath, schemaPath string) error {
	text, err := os.ReadFile(listPath)
	if err != nil {
		return fmt.Errorf("opgen: %w", err)
	}
	list, err := parseList(listPath, string(text))
	if err != nil {
		return err
	}
	if text, err = os.ReadFile(schemaPath); err != nil {
		return fmt.Errorf("opgen: %w", err)
	}
	schemas, err := parseSchemas(schemaPath, string(text))
	if err != nil {
		return err
	}
	methods, err := joinAll(list, schemaPath, schemas)
	if err != nil {
		return err
	}
	all := []description{}
	for _, m := range methods {
		d := description{Go: m.qualified(m.entry.goName), Operator: m.schema.name, Schema: m.schema.text,
			Params: []described{}, Options: []described{}, Fixed: make(map[string]string)}
		for i, it := range m.entry.positional {
			d.Params = append(d.Params, m.described(it, m.params[i]))
		}
		for i, it := range m.entry.options {
			d.Options = append(d.Options, m.described(it, m.options[i]))
		}
		for _, it := range m.entry.fixed {
			d.Fixed[it.argument] = it.fallback
		}
		all = append(all, d)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	return out.Encode(all)
}

func (m *method) described(it item, v variable) described {
	return described{Argument: it.argument, Go: v.name, Type: v.goType, Kind: m.schema.find(it.argument).kind,
		Inverted: it.inverted, Zero: it.zero, All: it.all, Fallback: it.fallback}
}
