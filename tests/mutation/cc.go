package main

import (
	"cmp"
	"errors"
	"regexp"
	"strings"
)

var (
	ccToken   = regexp.MustCompile(`(?s)^(?://(?:\\\n|[^\n])*|#(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\d(?:'?[\w.])*|\w+)`)
	ccRaw     = regexp.MustCompile(`^(?:u8|[uUL])?R"([^(]*)\(`)
	ccKeyword = regexp.MustCompile(`^(?:if|else|for|while|switch|try|catch)\b`)
	ccCalled  = regexp.MustCompile(`([\w:~]+)\s*\(`)
)

const blanks = " \t\n"

// ccSource reads C++. It does not understand macros that contain half a statement.
func ccSource(text string) *source {
	s := &source{text: text}
	// In `code`, blanks replace comments and lines of the preprocessor. Underscores replace literals.
	code := []byte(text)
	for i, end := 0, 0; i < len(text); i = end {
		token := ccToken.FindString(text[i:])
		if raw := ccRaw.FindStringSubmatch(text[i:]); raw != nil {
			token, _, _ = strings.Cut(text[i:], ")"+raw[1]+`"`)
			token = text[i:min(len(text), i+len(token)+len(raw[1])+2)]
		}
		end = i + max(len(token), 1)
		with := byte('_')
		switch {
		case strings.HasPrefix(token, "//"):
			s.comments = append(s.comments, comment{i, token})
			with = ' '
		case strings.HasPrefix(token, "/*"), strings.HasPrefix(token, "#"):
			with = ' '
		case !strings.ContainsAny(token, `"'`):
			continue
		}
		for j := range code[i:end] {
			code[i+j] = with
		}
	}
	s.statement = func(start int) (end int, function string, err error) {
		before := strings.TrimRight(string(code[:start]), blanks)
		end = ccStatement(string(code), start)
		if !strings.ContainsAny(before[max(0, len(before)-1):], ";{}:") || !strings.ContainsAny(text[end-1:end], ";}") {
			err = errors.New("no statement begins there, or it does not end")
		}
		return end, ccFunction(before), err
	}
	return s
}

// ccFunction returns the name of the function in which the code ends.
func ccFunction(code string) (function string) {
	var open []string // for each open brace its function, or ""
	header := 0
	for i, c := range []byte(code) {
		switch c {
		case '{':
			called := ccCalled.FindStringSubmatch(code[header:i])
			open = append(open, append(called, "", "")[min(1, len(called))])
		case '}':
			open = open[:max(0, len(open)-1)]
		case ';':
		default:
			continue
		}
		header = i + 1
	}
	return cmp.Or(open...)
}

// ccStatement returns the end of the statement that begins at i, or after blanks at i.
func ccStatement(code string, i int) int {
	// next moves i past blanks. It returns the keyword that follows, or "".
	next := func() string {
		i = len(code) - len(strings.TrimLeft(code[i:], blanks))
		return ccKeyword.FindString(code[i:])
	}
	switch word := next(); word {
	case "if", "for", "while", "switch":
		i = ccStatement(code, ccGroup(code, i+strings.Index(code[i:], "("))) // the search for "(" also passes constexpr
		if end := i; word != "if" || next() != "else" {
			return end
		}
		return ccStatement(code, i+len("else"))
	case "try":
		for i = ccStatement(code, i+len("try")); ; {
			if end := i; next() != "catch" {
				return end
			}
			i = ccStatement(code, ccGroup(code, i+strings.Index(code[i:], "(")))
		}
	}
	switch {
	case strings.HasPrefix(code[i:], "[["):
		return ccStatement(code, ccGroup(code, i))
	case strings.HasPrefix(code[i:], "{"):
		return ccGroup(code, i)
	}
	for i < len(code) && code[i] != ';' {
		switch code[i] {
		case '(', '[', '{':
			i = ccGroup(code, i)
		case ')', ']', '}':
			return len(code)
		default:
			i++
		}
	}
	return min(i+1, len(code))
}

// ccGroup returns the end of the first brackets that open at i or later.
func ccGroup(code string, i int) int {
	for depth := 0; i < len(code); i++ {
		switch code[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return i
}
