package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// now is the clock of makechat.py.
var now = time.Date(2026, 3, 7, 8, 5, 9, 0, time.UTC)

func render(source string, data *Dict) (string, error) {
	t, err := Parse(source)
	if err != nil {
		return "", err
	}
	return t.Render(data, now)
}

// Each snippet gives the text or the failure that it gives in Python.
func TestRender_LikePython(t *testing.T) {
	snippets := strings.Split(string(must.Get(os.ReadFile("testdata/snippets.txt"))(t)), "\n----\n")
	var file struct {
		Data json.RawMessage
		Want []struct{ Text, Error string }
	}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile("testdata/want.json"))(t), &file))
	if len(snippets) != len(file.Want) || len(snippets) < 120 {
		t.Fatalf("there are %d snippets and %d results", len(snippets), len(file.Want))
	}
	data := must.Get(FromJSON(file.Data))(t).(*Dict)
	for i, source := range snippets {
		got, err := render(source, data)
		var e *Error
		if want := file.Want[i]; (err != nil) != (want.Error != "") || err == nil && got != want.Text {
			t.Errorf("%s\n got %q, %v\nwant %q, %s", source, got, err, want.Text, want.Error)
		} else if err != nil && !errors.As(err, &e) {
			t.Errorf("%s: %v is no Error", source, err)
		}
	}
}

// A template that takes too much fails soon, in bounded memory.
func TestRender_Hostile(t *testing.T) {
	deep := "{% set ns = namespace(v=[]) %}{% for i in range(100000) %}{% set ns.v = [ns.v] %}{% endfor %}"
	double := "{% set ns = namespace(s='ab,', l=[1, 2]) %}{% for i in range(60) %}"
	long := "{% set s = '\x01a ' * 20000000 %}"
	again := strings.Repeat("x", 900_000)
	for name, source := range map[string]string{
		"loops":            "{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}",
		"loops that write": "{% for i in range(100000) %}{% for i in range(100000) %}xxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
		"range":            "{{ range(10 ** 18) }}",
		"text times":       "{{ 'ab' * 10 ** 18 }}",
		"list times":       "{{ [1, 2] * (10 ** 18) }}",
		"number times":     "{{ 10 ** 18 * 10 ** 18 }}",
		"power":            "{{ 7 ** 7 ** 7 ** 7 }}",
		"power of -1":      "{{ (-1) ** (10 ** 18) }}",
		"texts double":     double + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
		"texts add":        double + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"lists double":     double + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
		"replaced":         double + "{% set ns.s = ns.s | replace('a', ns.s) %}{% endfor %}",
		"joined":           double + "{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% endfor %}",
		"formatted":        double + "{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
		"formats":          double + "{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}",
		"indented":         double + "{% set ns.s = ('\n' ~ ns.s) | indent(ns.s) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
		"set by a block":   double + "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
		"width":            "{{ '%999999999d' % 1 }}",
		"precision":        "{{ '%.999999999f' % 1 }}",
		"width of format":  "{{ '{:999999999d}'.format(1) }}",
		"center":           "{{ 'a'.center(10 ** 18) }}",
		"zfill":            "{{ 'a'.zfill(10 ** 10) }}",
		"indent":           "{{ 'a' | indent(10 ** 12, true) }}",
		"indent of JSON":   "{{ [1] | tojson(indent=10 ** 12) }}",
		"batch":            "{{ [1] | batch(10 ** 12, 0) | list }}",
		"escapes":          long + "{{ s | tojson }}",
		"repr":             long + "{{ [s] }}",
		"split":            long + "{{ s.split('a') | length }}",
		"split at spaces":  long + "{{ s.split() | length }}",
		"characters":       long + "{{ s | list | length }}",
		"slice":            long + "{{ s[::-1] | length }}",
		"keys":             long + "{% for i in range(100000) %}{{ {s: 1}[s] }}{% endfor %}",
		"comparisons":      long + "{% set u = s ~ 'x' %}{% for i in range(100000) %}{{ s ~ '' == u }}{{ s < u }}{{ 'q' in s }}{% endfor %}",
		"strip":            long + "{% for i in range(100000) %}{{ s.strip(s) }}{% endfor %}",
		"lists compared":   "{% set l = range(100000) | list %}{% for i in l %}{{ l == l + [] }}{% endfor %}",
		"searched":         "{% set l = range(100000) | list %}{% for i in l %}{{ -1 in l }}{% endfor %}",
		"sorted":           "{% for i in range(100000) %}{{ range(100000) | sort(reverse=true) | first }}{% endfor %}",
		"recursion":        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"two macros":       "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
		"many calls":       "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
		"default":          "{% macro m(a=m()) %}{% endmacro %}{{ m() }}",
		"caller":           "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
		"deep text":        deep + "{{ ns.v }}",
		"deep JSON":        deep + "{{ ns.v | tojson }}",
		"deep equality":    deep + "{{ ns.v == [ns.v] }}",
		"deep order":       deep + "{{ ns.v < [ns.v] }}",
		"parentheses":      "{{ " + strings.Repeat("(", 400_000),
		"lists":            "{{ " + strings.Repeat("[", 400_000),
		"targets":          "{% set " + strings.Repeat("(", 400_000),
		"not":              "{{ " + strings.Repeat("not ", 200_000) + "1 }}",
		"signs":            "{{ 1 " + strings.Repeat("-", 800_000) + "1 }}",
		"attributes":       "{{ d" + strings.Repeat(".d", 400_000) + " }}",
		"sums":             "{{ 1" + strings.Repeat("+1", 400_000) + " }}",
		"filters":          "{{ 1" + strings.Repeat("|e", 400_000) + " }}",
		"far names":        strings.Repeat("{% for i in [0] %}", 180) + "{% for i in range(100000) %}{{ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x }}{% endfor %}" + strings.Repeat("{% endfor %}", 180),
		"ifs":              strings.Repeat("{% if 1 %}", 90_000),
		"elifs":            "{% if 0 %}" + strings.Repeat("{% elif 0 %}", 80_000) + "{% endif %}",
		"conditions":       "{{ " + strings.Repeat("1 if 0 else ", 80_000) + "1 }}",
		"source":           again + again,
		"tokens":           "{{ " + strings.Repeat("'' ", 300_000) + " + }}",
		"comment":          "{#" + again,
		"raw":              "{% raw %}" + strings.Repeat("{% ", 300_000),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, err := render(source, NewDict())
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		made := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%s: %v, after %v and %d MiB", name, err, took.Round(time.Millisecond), made)
		if err == nil || made > 1024 || took > 20*time.Second { // a second alone on a machine
			t.Errorf("%s: %v, after %v and %d MiB", name, err, took, made)
		}
	}
}

// A template reaches nothing but its variables.
func TestRender_Sandbox(t *testing.T) {
	for _, source := range []string{
		"{{ ''.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ ''['__class__'] }}", "{{ '' | attr('__class__') }}",
		"{{ [''] | map(attribute='__class__') | list }}", "{{ [] | attr('__init__') }}", "{{ range.__globals__ }}",
		"{{ namespace(x=1).__init__ }}", "{% macro m() %}{% endmacro %}{{ m.__code__ }}", "{{ [''] | selectattr('__class__') | list }}",
		"{% include 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% extends 'x' %}", "{% block x %}{% endblock %}",
		"{{ '{0.__class__}'.format('') }}", "{{ '{x[0]}'.format(x='') }}", "{{ lipsum() }}", "{{ self.x }}", "{{ open('/etc/passwd') }}",
		"{{ loop.__class__ }}", "{{ joiner.__call__ }}", "{{ {}.update(x=1) }}", "{{ [].append(1) }}", "{{ {}.setdefault('x', 1) }}",
	} {
		if got, err := render(source, NewDict()); err == nil {
			t.Errorf("%s: got %q", source, got)
		}
	}
}

// No template and no variables make the package panic.
func FuzzRender(f *testing.F) {
	for _, source := range strings.Split(string(must.Get(os.ReadFile("testdata/snippets.txt"))(f)), "\n----\n") {
		f.Add(source, `{"s": "x", "n": 7, "list": [3, 1], "d": {"a": {"b": 1.5}}, "people": [{"name": "Bo"}]}`)
	}
	f.Fuzz(func(t *testing.T, source, data string) {
		v, err := FromJSON([]byte(data))
		variables, ok := v.(*Dict)
		if err != nil || !ok {
			variables = NewDict()
		}
		var e *Error
		if _, err := render(source, variables); err != nil && !errors.As(err, &e) {
			t.Errorf("%v is no Error", err)
		}
	})
}
