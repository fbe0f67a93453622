package main

import (
	"regexp"
	"strings"
	"text/template"
	"unicode"
)

const width = 100 // columns of a comment

// text is the Go source of an entry.
var text = template.Must(template.New("entry").Parse(`
{{- if .Go}}
{{.Go}}
{{else if .Args}}
{{if .Fields}}{{.OptionsComment}}
type {{.OptionsType}} struct {
{{template "fields" .}}}
{{end}}
{{.Comment}}
func {{.Name}}(x *cgotorch.Exec, {{.Arguments}} *cgotorch.Tensor, o {{.OptionsType}}) *cgotorch.Tensor {
{{range .AllChecks}}	{{.}}
{{end}}{{template "calls" .}}}
{{else}}
{{.Comment}}
type {{.Name}} struct{ {{- if .Fields}}
{{template "fields" .}}{{end}}}

{{.ForwardComment}}
func (m *{{.Name}}) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
{{range .AllChecks}}	{{.}}
{{end}}{{template "calls" .}}}
{{end}}

{{- define "fields"}}{{range .Fields}}	{{.Source}}
{{end}}{{end}}

{{- define "calls"}}{{$e := .}}{{range .Calls}}{{if .Condition}}	if {{$e.Expand .Condition}} {
		return {{$e.Expand .Value}}
	}
{{else}}	return {{$e.Expand .Value}}
{{end}}{{end}}{{end}}`))

// wrap returns a comment of lines that are at most `width` columns wide.
func wrap(sentences string) string {
	var lines []string
	line := "//"
	for _, word := range strings.Fields(sentences) {
		if len(line)+1+len(word) > width {
			lines, line = append(lines, line), "//"
		}
		line += " " + word
	}
	return strings.Join(append(lines, line), "\n")
}

// Comment returns the comment of the layer or the loss.
func (e *entry) Comment() string { return wrap(e.Doc) }

// OptionsComment returns the comment of a loss's options.
func (e *entry) OptionsComment() string {
	return wrap(e.OptionsType() + " are the options of [" + e.Name + "].")
}

// ForwardComment returns the comment of the method Forward.
func (e *entry) ForwardComment() string {
	doc := "Forward returns a tensor of the shape of `in`."
	if e.Shape != "" {
		doc = "Forward maps " + e.Shape + "."
	}
	if e.has("Eval") {
		doc += " In training it draws random numbers from LibTorch's generator."
	}
	return wrap(doc + " " + e.More)
}

func (e *entry) has(name string) bool {
	for _, f := range e.Fields {
		if f.Name == name {
			return true
		}
	}
	return false
}

// Arguments returns the names of a loss's tensors, as Go lists them.
func (e *entry) Arguments() string { return strings.Join(e.Args, ", ") }

// OptionsType returns the Go type of a loss's options.
func (e *entry) OptionsType() string {
	if e.Options != "" {
		return e.Options
	}
	return e.Name + "Options"
}

// AllChecks returns the statements before the call.
func (e *entry) AllChecks() []string {
	var checks []string
	for i := 1; i < len(e.Args); i++ {
		a, b := e.Args[i-1], e.Args[i]
		checks = append(checks, "checkOpen(x, where, \""+spaced(a)+"\", "+a+", \""+spaced(b)+"\", "+b+")")
	}
	if e.has("Eval") {
		checks = append(checks, "dependsOnMode(x, where, &Eval)")
	}
	checks = append(checks, e.Checks...)
	for i, check := range checks {
		checks[i] = e.Expand(check)
	}
	return checks
}

// spaced returns a name in words: "log probabilities" for logProbabilities.
func spaced(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteRune(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

var word = regexp.MustCompile(`"[^"]*"|[\w.]+:?`)

// Expand returns an expression of the table in Go: fields with their defaults.
func (e *entry) Expand(expression string) string {
	owner := "m."
	if e.Args != nil {
		owner = "o."
	}
	return word.ReplaceAllStringFunc(expression, func(w string) string {
		if w == "where" {
			return `"nn.` + e.Name + `"`
		}
		for _, f := range e.Fields {
			if f.Name == w {
				return f.value(owner)
			}
		}
		return w
	})
}

// goTypes are the Go types of fields whose types have names of their own in the table.
var goTypes = map[string]string{
	"window1": "int", "window2": "Size", "window3": "Volume",
	"Scalar": "cgotorch.Scalar", "Tensor": "*cgotorch.Tensor", "Reduction": "cgotorch.Reduction",
	"Opt[float64]": "cgotorch.Opt[float64]", "Opt[int]": "cgotorch.Opt[int]",
}

// unset are the words for the zero value of a type.
var unset = map[string]string{
	"window1": "0", "window2": "0x0", "window3": "0x0x0", "int": "0", "float64": "0",
	"Scalar": "nil", "Tensor": "nil", "Opt[float64]": "unset", "Opt[int]": "unset",
}

// ones are the defaults of a window's numbers, in Go and in words.
var ones = map[string][2]string{"window1": {"1", "1"}, "window2": {"Square(1)", "1x1"}, "window3": {"Cube(1)", "1x1x1"}}

// Source returns the line of a struct for a field.
func (f field) Source() string {
	goType := f.Type
	if t, ok := goTypes[f.Type]; ok {
		goType = t
	}
	comment := f.Comment
	if f.Default != "" {
		means := f.Default
		if one, ok := ones[f.Type]; ok && means == "1" {
			means = one[1]
		}
		if comment != "" {
			comment += "; "
		}
		comment += unset[f.Type] + " means " + strings.ReplaceAll(means, ".0/", "/")
	}
	line := f.Name + " " + goType
	switch {
	case comment == "":
		return line
	case len(line)+len(comment) > width-8:
		return wrap(comment) + "\n" + line
	}
	return line + " // " + comment
}

// value returns the Go expression of a field, with its default.
func (f field) value(owner string) string {
	name := owner + f.Name
	switch {
	case strings.HasPrefix(f.Type, "window"):
		switch f.Default {
		case "":
			return "ints(" + name + ")"
		case "1":
			return "ints(cmp.Or(" + name + ", " + ones[f.Type][0] + "))"
		}
		return "ints(cmp.Or(" + name + ", " + owner + f.Default + "))"
	case f.Default == "" || f.Type == "Scalar" || f.Type == "Tensor":
		return name
	case strings.HasPrefix(f.Type, "Opt"):
		return name + ".Or(" + f.Default + ")"
	}
	return "cmp.Or(" + name + ", " + f.Default + ")"
}
