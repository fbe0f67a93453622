package inference

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/streamtorch/streamtorch/internal/must"
)

// The Go file has the messages, fields, values and methods of inference.proto.
func TestProto_IsGenerated(t *testing.T) {
	text := must.Get(os.ReadFile("inference.proto"))(t)
	var want []string
	var scope []string // names of the blocks around a line
	open := regexp.MustCompile(`^(message|enum|service|oneof) (\w+) \{(\})?$`)
	field := regexp.MustCompile(`^(repeated )?(\w+|map<\w+, \w+>) (\w+) = (\d+);$`)
	value := regexp.MustCompile(`^(\w+) = (\d+);$`)
	method := regexp.MustCompile(`^rpc (\w+)\((\w+)\) returns \((\w+)\);$`)
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimSpace(line)
		at := strings.Join(slices.DeleteFunc(slices.Clone(scope), func(s string) bool { return s == "" }), ".")
		if m := open.FindStringSubmatch(line); m != nil {
			if m[1] == "oneof" { // its fields belong to the message
				m[2] = ""
			}
			if m[1] == "message" {
				want = append(want, strings.TrimPrefix(at+"."+m[2], "."))
			}
			if m[3] == "" {
				scope = append(scope, m[2])
			}
		} else if m := field.FindStringSubmatch(line); m != nil {
			want = append(want, fmt.Sprintf("%s: %s%s %s = %s", at, m[1], m[2], m[3], m[4]))
		} else if m := value.FindStringSubmatch(line); m != nil {
			want = append(want, fmt.Sprintf("%s: %s = %s", at, m[1], m[2]))
		} else if m := method.FindStringSubmatch(line); m != nil {
			want = append(want, fmt.Sprintf("%s: %s %s %s", at, m[1], m[2], m[3]))
		} else if line == "}" {
			scope = scope[:len(scope)-1]
		} else if line != "" && !strings.HasPrefix(line, "syntax ") && !strings.HasPrefix(line, "package ") && !strings.HasPrefix(line, "option ") {
			t.Errorf("the test does not understand %q", line)
		}
	}
	got := described()
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < 100 || !slices.Equal(got, want) {
		t.Errorf("generate the Go files again, as doc.go says: they have\n%s\n\nand inference.proto has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// described lists what the generated file has.
func described() (list []string) {
	var messages func(all protoreflect.MessageDescriptors)
	messages = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			m := all.Get(i)
			if m.IsMapEntry() {
				continue
			}
			name := strings.TrimPrefix(string(m.FullName()), "inference.")
			list = append(list, name)
			for k := range m.Fields().Len() {
				f := m.Fields().Get(k)
				kind := kindOf(f)
				if f.IsMap() {
					kind = fmt.Sprintf("map<%s, %s>", kindOf(f.MapKey()), kindOf(f.MapValue()))
				} else if f.IsList() {
					kind = "repeated " + kind
				}
				list = append(list, fmt.Sprintf("%s: %s %s = %d", name, kind, f.Name(), f.Number()))
			}
			messages(m.Messages())
		}
	}
	file := File_inference_proto
	messages(file.Messages())
	for i := range file.Enums().Len() {
		e := file.Enums().Get(i)
		for k := range e.Values().Len() {
			list = append(list, fmt.Sprintf("%s: %s = %d", e.Name(), e.Values().Get(k).Name(), e.Values().Get(k).Number()))
		}
	}
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		for k := range s.Methods().Len() {
			m := s.Methods().Get(k)
			list = append(list, fmt.Sprintf("%s: %s %s %s", s.Name(), m.Name(), m.Input().Name(), m.Output().Name()))
		}
	}
	return list
}

func kindOf(f protoreflect.FieldDescriptor) string {
	if f.Message() != nil {
		return string(f.Message().Name())
	}
	if f.Enum() != nil {
		return string(f.Enum().Name())
	}
	return f.Kind().String()
}
