package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// A description is what -describe prints of one typed operator. With it tests/parity/operators
// writes calls of the Go function and of PyTorch's operator with equal arguments. Package pt2 holds
// the descriptions without schemas, and writes calls in Go source with them.
type description struct {
	Go       string            `json:"go"`       // such as linalg.SVD
	Operator string            `json:"operator"` // such as aten::linalg_svd
	Schema   string            `json:"schema,omitempty"`
	Struct   string            `json:"struct,omitempty"` // the options struct, such as linalg.SVDOptions
	Params   []described       `json:"params"`           // the parameters in Go's order
	Options  []described       `json:"options"`          // the fields of the options struct
	Fixed    map[string]string `json:"fixed"`            // arguments with a value of their own
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

// describe prints the descriptions of all entries of a list as JSON.
func describe(listPath, schemaPath string) error {
	all, err := descriptions(listPath, schemaPath)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	return out.Encode(all)
}

// writeDescriptions writes the descriptions without schemas to a file, one operator a line.
func writeDescriptions(listPath, schemaPath, path string) error {
	all, err := descriptions(listPath, schemaPath)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for i := range all {
		all[i].Schema = ""
		line, err := json.Marshal(all[i])
		if err != nil {
			return fmt.Errorf("opgen: %w", err)
		}
		b.WriteString(map[bool]string{true: "[", false: ",\n"}[i == 0])
		b.Write(line)
	}
	b.WriteString("]\n")
	return writeIfChanged(path, b.Bytes())
}

// descriptions returns the descriptions of all entries of a list.
func descriptions(listPath, schemaPath string) ([]description, error) {
	text, err := os.ReadFile(listPath)
	if err != nil {
		return nil, fmt.Errorf("opgen: %w", err)
	}
	list, err := parseList(listPath, string(text))
	if err != nil {
		return nil, err
	}
	if text, err = os.ReadFile(schemaPath); err != nil {
		return nil, fmt.Errorf("opgen: %w", err)
	}
	schemas, err := parseSchemas(schemaPath, string(text))
	if err != nil {
		return nil, err
	}
	methods, err := joinAll(list, schemaPath, schemas)
	if err != nil {
		return nil, err
	}
	all := []description{}
	for _, m := range methods {
		d := description{Go: m.qualified(m.entry.goName), Operator: m.schema.Name, Schema: m.schema.Text,
			Params: []described{}, Options: []described{}, Fixed: make(map[string]string)}
		if len(m.options) > 0 {
			d.Struct = m.qualified(m.structName())
		}
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
	return all, nil
}

func (m *method) described(it item, v variable) described {
	return described{Argument: it.argument, Go: v.name, Type: v.goType, Kind: m.schema.Find(it.argument).Kind,
		Inverted: it.inverted, Zero: it.zero, All: it.all, Fallback: it.fallback}
}
