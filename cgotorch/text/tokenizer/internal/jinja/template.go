package jinja

import (
	"fmt"
	"strings"
	"time"
)

// Note [Bounds]
//
// A template is a program of somebody else's. Each node that is evaluated takes a step. Each value
// that is made takes its size, in bytes, from a sum that is never given back. Loops of built-in
// functions take steps for each element. Depth bounds calls of macros, nested expressions and
// nested values, so that Go's stack stays small.
const (
	maxSteps  = 5_000_000 // about half a second
	maxBytes  = 128 << 20 // made by one rendering, garbage included
	maxSource = 1 << 20   // bytes of a template's text
	maxDepth  = 1000      // nested evaluations; Python's limit is near
	maxNested = 200       // nested statements and parentheses of a source
	maxRange  = 100_000   // elements of a range, as in Jinja's sandbox
	maxWidth  = 10_000    // the largest width of a format
	sizeValue = 16        // bytes of a value in a list
	sizeNode  = 64        // bytes of an object, about
)

// Template is a parsed template. It does not change, so several goroutines may use it.
type Template struct{ body []statement }

// Error tells why a template cannot be parsed or rendered.
type Error struct {
	Line int    // of the template; the first is 1
	Text string // of a call of raise_exception, its message
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text) }

// Parse reads a template. Bytes that are not UTF-8 count as U+FFFD. It fails with an [*Error].
func Parse(source string) (t *Template, err error) {
	defer catch(&err)
	if len(source) > maxSource {
		fail(1, "the template has %d bytes, and at most %d are read", len(source), maxSource)
	}
	p := &parser{tokens: lex(strings.ToValidUTF8(source, "\uFFFD"))}
	return &Template{p.statements()}, nil
}

// Render returns the text of a template with variables, whose values are those of [Value]. `now` is
// the time for strftime_now. It fails with an [*Error].
func (t *Template) Render(variables *Dict, now time.Time) (text string, err error) {
	defer catch(&err)
	r := &run{steps: maxSteps, bytes: maxBytes, now: now, out: &strings.Builder{}, line: 1}
	root := &scope{}
	for i, key := range variables.keys {
		root.set(r, key.(string), variables.values[i])
	}
	r.block(t.body, root.child())
	return r.out.String(), nil
}

// fail ends the parsing or the rendering. The package's functions hand no errors to each other: an
// error is a panic with an *Error, which Parse and Render return.
func fail(line int, format string, args ...any) {
	panic(&Error{line, fmt.Sprintf(format, args...)})
}

func catch(err *error) {
	switch e := recover().(type) {
	case nil:
	case *Error:
		*err = e
	default:
		panic(e)
	}
}

// run is the state of one rendering.
type run struct {
	steps, bytes int // what is left
	depth        int
	line         int // of the node that is evaluated
	now          time.Time
	out          *strings.Builder
}

func (r *run) fail(format string, args ...any) { fail(r.line, format, args...) }

// spend takes n steps.
func (r *run) spend(n int) {
	if r.steps -= n; r.steps < 0 {
		r.fail("the template takes more than %d steps; it loops for ever, or the conversation is too long", maxSteps)
	}
}

// use takes n bytes.
func (r *run) use(n int) {
	r.spend(n / 1024)
	if r.bytes -= n; r.bytes < 0 {
		r.fail("the template makes more than %d bytes", maxBytes)
	}
}

// enter begins a nested evaluation. The caller calls leave.
func (r *run) enter() {
	if r.depth++; r.depth > maxDepth {
		r.fail("the template nests more than %d deep: a macro calls itself for ever, or a value holds itself", maxDepth)
	}
}

func (r *run) leave() { r.depth-- }

func (r *run) write(text string) {
	r.use(len(text))
	r.out.WriteString(text)
}
