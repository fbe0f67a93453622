package pickle

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// unquoted returns the text of a quoted string of Python 2, with the escapes of that.
func unquoted(line string) (string, error) {
	if len(line) < 2 || line[0] != line[len(line)-1] || line[0] != '\'' && line[0] != '"' {
		return "", fmt.Errorf("%.20q is not a quoted string", line)
	}
	quoted, out := line[1:len(line)-1], make([]byte, 0, len(line))
	for i := 0; i < len(quoted); i++ {
		c := quoted[i]
		if c != '\\' {
			out = append(out, c)
			continue
		}
		if i++; i == len(quoted) {
			return "", errors.New("a text ends early")
		}
		switch c = quoted[i]; c {
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case '\\', '\'', '"':
			out = append(out, c)
		case 'x':
			n, err := strconv.ParseUint(quoted[min(i+1, len(quoted)):min(i+3, len(quoted))], 16, 8)
			if err != nil {
				return "", fmt.Errorf("%.20q is not an escape", quoted[i-1:])
			}
			out = append(out, byte(n))
			i += 2
		default:
			return "", fmt.Errorf("%.20q is not an escape", quoted[i-1:])
		}
	}
	return string(out), nil
}

// unescaped returns the text of a line in Latin-1, in which a character may be written as \u and
// its number.
func unescaped(line string) string {
	var out strings.Builder
	for i := 0; i < len(line); i++ {
		digits := 0
		if line[i] == '\\' && i+1 < len(line) {
			digits = map[byte]int{'u': 4, 'U': 8}[line[i+1]]
		}
		if n, err := strconv.ParseUint(line[min(i+2, len(line)):min(i+2+digits, len(line))], 16, 32); digits > 0 && err == nil {
			out.WriteRune(rune(n))
			i += 1 + digits
			continue
		}
		out.WriteRune(rune(line[i]))
		if line[i] == '\\' && i+1 < len(line) { // two backslashes are no escape
			i++
			out.WriteRune(rune(line[i]))
		}
	}
	return out.String()
}
