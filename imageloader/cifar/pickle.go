package cifar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Note [Pickles]
//
// A pickle is a program for a machine with a stack. The function unpickle knows the instructions
// that build dicts, lists, tuples, numbers, texts and arrays of numpy. It knows a few functions by
// name, and calls none of Python's. Everything else is an error. Memory is bounded by the size of
// the file, because each instruction pushes at most one value.
//
// Source: https://github.com/python/cpython/blob/3.13/Lib/pickletools.py

// These are the values of a pickle that are not int64, float64, bool, string or nil. Texts and
// bytes are both strings.
type (
	dict   struct{ pairs map[string]any } // only pairs whose key is a string
	list   struct{ values []any }
	tuple  []any
	global string // "module name"
	array  struct {
		shape   []int
		dtype   dtype
		columns bool // the elements are in the order of columns, as in Fortran
		data    string
	}
	dtype struct{ name, order string } // order is that of the bytes: <, > or |
	mark  struct{}
)

func (d *dict) get(key string) any { return d.pairs[key] }

// unpickler is the machine.
type unpickler struct {
	text  []byte
	at    int
	stack []any
	memo  map[int64]any

	encoded int // bytes of the strings that were encoded
}

var errCut = errors.New("the pickle is cut short")

// unpickle returns the value in a pickle of protocol 0 to 5.
func unpickle(text []byte) (any, error) {
	u := &unpickler{text: text, memo: map[int64]any{}}
	for {
		op, err := u.take(1)
		if err != nil {
			return nil, err
		}
		if op[0] == '.' {
			return u.pop()
		}
		if err := u.step(op[0]); err != nil {
			return nil, fmt.Errorf("instruction %q at byte %d: %w", op[0], u.at, err)
		}
	}
}

// take returns the next n bytes.
func (u *unpickler) take(n int64) ([]byte, error) {
	if n < 0 || n > int64(len(u.text)-u.at) {
		return nil, errCut
	}
	part := u.text[u.at : u.at+int(n)]
	u.at += int(n)
	return part, nil
}

// number returns a number of n bytes, with the low byte first.
func (u *unpickler) number(n int64) (int64, error) {
	part, err := u.take(n)
	if err != nil {
		return 0, err
	}
	var whole [8]byte
	copy(whole[:], part)
	return int64(binary.LittleEndian.Uint64(whole[:])), nil
}

func (u *unpickler) line() (string, error) {
	n := slices.Index(u.text[u.at:], '\n')
	if n < 0 {
		return "", errCut
	}
	part, err := u.take(int64(n) + 1)
	return strings.TrimSuffix(string(part), "\n"), err
}

func (u *unpickler) push(v any) error {
	u.stack = append(u.stack, v)
	return nil
}

func (u *unpickler) pop() (any, error) {
	if len(u.stack) == 0 {
		return nil, errors.New("the stack is empty")
	}
	v := u.stack[len(u.stack)-1]
	u.stack = u.stack[:len(u.stack)-1]
	return v, nil
}

// popMark returns the values above the last mark, and removes the mark.
func (u *unpickler) popMark() ([]any, error) {
	for i := len(u.stack) - 1; i >= 0; i-- {
		if _, ok := u.stack[i].(mark); ok {
			values := slices.Clone(u.stack[i+1:])
			u.stack = u.stack[:i]
			return values, nil
		}
	}
	return nil, errors.New("there is no mark")
}

// popN returns the last n values.
func (u *unpickler) popN(n int) ([]any, error) {
	if n > len(u.stack) {
		return nil, errors.New("the stack is too short")
	}
	values := slices.Clone(u.stack[len(u.stack)-n:])
	u.stack = u.stack[:len(u.stack)-n]
	return values, nil
}

// These are the instructions that push a text or bytes, and the number of bytes of their lengths.
var texts = map[byte]int64{'U': 1, 'T': 4, 'X': 4, 'C': 1, 'B': 4, 0x8c: 1, 0x8d: 8, 0x8e: 8, 0x96: 8}

// These are the instructions that push a whole number, and their numbers of bytes.
var integers = map[byte]int64{'K': 1, 'M': 2}

// These are the instructions that push a constant.
var constants = map[byte]any{'N': nil, 0x88: true, 0x89: false, '(': mark{}}

// step runs one instruction.
func (u *unpickler) step(op byte) error {
	if size, ok := texts[op]; ok {
		n, err := u.number(size)
		if err != nil {
			return err
		}
		part, err := u.take(n)
		if err != nil {
			return err
		}
		return u.push(string(part))
	}
	if size, ok := integers[op]; ok {
		n, err := u.number(size)
		if err != nil {
			return err
		}
		return u.push(n)
	}
	if v, ok := constants[op]; ok {
		return u.push(v)
	}
	switch op {
	case 0x80: // the protocol
		n, err := u.number(1)
		if err == nil && n > 5 {
			err = fmt.Errorf("protocol %d, want at most 5", n)
		}
		return err
	case 0x95: // a frame
		_, err := u.take(8)
		return err
	case '}':
		return u.push(&dict{map[string]any{}})
	case ']':
		return u.push(&list{})
	case ')':
		return u.push(tuple{})
	case 'J', 0x8a, 'I', 'L', 'F', 'G':
		return u.pushNumber(op)
	case 'S', 'V':
		line, err := u.line()
		if err == nil && op == 'S' {
			line, err = unquoted(line)
		} else if err == nil {
			line = unescaped(line)
		}
		if err != nil {
			return err
		}
		return u.push(line)
	case 0x97, 0x98:
		return errors.New("its arrays are in buffers beside the pickle: dump it without buffer_callback")
	case 'q', 'r', 'p', 0x94, 'h', 'j', 'g':
		return u.remember(op)
	case 't', 0x85, 0x86, 0x87, 'd', 'l', 's', 'u', 'a', 'e', '0':
		return u.collect(op)
	case 'c', 0x93, 'R', 'b':
		return u.construct(op)
	}
	return errors.New("it is not for data")
}

// pushNumber pushes a number whose form differs from those of `integers`.
func (u *unpickler) pushNumber(op byte) error {
	switch op {
	case 'J':
		n, err := u.number(4)
		if err != nil {
			return err
		}
		return u.push(int64(int32(n)))
	case 'G':
		part, err := u.take(8)
		if err != nil {
			return err
		}
		return u.push(math.Float64frombits(binary.BigEndian.Uint64(part)))
	case 0x8a:
		size, err := u.number(1)
		if err != nil {
			return err
		}
		n, err := u.number(size)
		if err == nil && size > 8 {
			err = errors.New("a number of more than 8 bytes")
		}
		if err != nil {
			return err
		}
		if size > 0 && size < 8 && n>>(8*size-1) != 0 { // negative
			n -= 1 << (8 * size)
		}
		return u.push(n)
	}
	text, err := u.line()
	if err != nil {
		return err
	}
	if op == 'F' {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%.20q is not a number", text)
		}
		return u.push(f)
	}
	if op == 'I' && (text == "00" || text == "01") {
		return u.push(text == "01")
	}
	n, ok := new(big.Int).SetString(strings.TrimSuffix(text, "L"), 10)
	if !ok || !n.IsInt64() {
		return fmt.Errorf("%.20q is not a number", text)
	}
	return u.push(n.Int64())
}

// remember stores the last value under a number, or pushes a stored value.
func (u *unpickler) remember(op byte) error {
	var key int64
	var err error
	switch op {
	case 'q', 'h':
		key, err = u.number(1)
	case 'r', 'j':
		key, err = u.number(4)
	case 0x94:
		key = int64(len(u.memo))
	default:
		var text string
		if text, err = u.line(); err == nil {
			_, err = fmt.Sscanf(text, "%d", &key)
		}
	}
	if err != nil {
		return err
	}
	if op == 'h' || op == 'j' || op == 'g' {
		v, ok := u.memo[key]
		if !ok {
			return fmt.Errorf("nothing is stored under %d", key)
		}
		return u.push(v)
	}
	v, err := u.pop()
	if err != nil {
		return err
	}
	u.memo[key] = v
	return u.push(v)
}

// collect makes tuples, and fills dicts and lists.
func (u *unpickler) collect(op byte) error {
	var values []any
	var err error
	switch op {
	case 't', 'd', 'l', 'u', 'e':
		values, err = u.popMark()
	case 0x85, 0x86, 0x87:
		values, err = u.popN(int(op) - 0x84)
	case 's':
		values, err = u.popN(2)
	case 'a', '0':
		values, err = u.popN(1)
	}
	if err != nil || op == '0' {
		return err
	}
	switch op {
	case 't', 0x85, 0x86, 0x87:
		return u.push(tuple(values))
	case 'l':
		return u.push(&list{values})
	case 'd':
		u.push(&dict{map[string]any{}})
	}
	if len(u.stack) == 0 {
		return errors.New("the stack is empty")
	}
	switch into := u.stack[len(u.stack)-1].(type) {
	case *list:
		if op != 'a' && op != 'e' {
			return errors.New("pairs for a list")
		}
		into.values = append(into.values, values...)
	case *dict:
		if op == 'a' || op == 'e' || len(values)%2 != 0 {
			return errors.New("no pairs for a dict")
		}
		for i := 0; i < len(values); i += 2 {
			if key, ok := values[i].(string); ok {
				into.pairs[key] = values[i+1]
			}
		}
	default:
		return fmt.Errorf("a %T cannot be filled", into)
	}
	return nil
}

// construct finds the functions of numpy by name, and does their work.
func (u *unpickler) construct(op byte) error {
	switch op {
	case 'c':
		module, err := u.line()
		if err != nil {
			return err
		}
		name, err := u.line()
		if err != nil {
			return err
		}
		return u.push(global(module + " " + name))
	case 0x93:
		values, err := u.popN(2)
		if err != nil {
			return err
		}
		module, isModule := values[0].(string)
		name, isName := values[1].(string)
		if !isModule || !isName {
			return fmt.Errorf("a function named by a %T and a %T, want two strings", values[0], values[1])
		}
		return u.push(global(module + " " + name))
	}
	values, err := u.popN(2)
	if err != nil {
		return err
	}
	arguments, ok := values[1].(tuple)
	if !ok {
		return fmt.Errorf("a %T, want a tuple", values[1])
	}
	if op == 'b' {
		return u.setState(values[0], arguments)
	}
	return u.call(values[0], arguments)
}

// call pushes what a function returns.
func (u *unpickler) call(function any, arguments tuple) error {
	switch function {
	case global("numpy.core.multiarray _reconstruct"), global("numpy._core.multiarray _reconstruct"):
		return u.push(&array{})
	case global("numpy dtype"):
		if len(arguments) > 0 {
			if name, ok := arguments[0].(string); ok {
				return u.push(dtype{name: name})
			}
		}
	case global("numpy.core.multiarray scalar"), global("numpy._core.multiarray scalar"):
		if len(arguments) == 2 {
			var one array
			if err := one.fill(tuple{int64(1)}, arguments[0], false, true, arguments[1]); err != nil {
				return err
			}
			n, err := wholeNumbers(&one)
			if err != nil {
				return err
			}
			return u.push(n[0])
		}
	case global("numpy.core.numeric _frombuffer"), global("numpy._core.numeric _frombuffer"): // protocol 5
		if len(arguments) == 4 {
			order, _ := arguments[3].(string)
			return u.pushArray(arguments[2], arguments[1], order == "F", order == "F" || order == "C", arguments[0])
		}
	case global("_codecs encode"): // how Python 3 writes bytes in protocol 2
		if len(arguments) > 0 {
			if text, ok := arguments[0].(string); ok {
				return u.pushLatin1(text)
			}
		}
	}
	return fmt.Errorf("it wants %v(%d arguments), which is not for data", function, len(arguments))
}

// pushLatin1 pushes the bytes whose numbers are the characters of a text.
func (u *unpickler) pushLatin1(text string) error {
	// A file encodes each of its strings once, so the results together are no longer than the file.
	if u.encoded += len(text); u.encoded > 2*len(u.text) {
		return errors.New("a string is encoded again and again")
	}
	b := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			return errors.New("a character that is no byte")
		}
		b = append(b, byte(r))
	}
	return u.push(string(b))
}

// setState gives an array its elements, and a dtype its order of bytes.
func (u *unpickler) setState(of any, state tuple) error {
	switch of := of.(type) {
	case dtype:
		if len(state) > 1 {
			of.order, _ = state[1].(string)
		}
		return u.push(of)
	case *array:
		if len(state) != 5 {
			break
		}
		columns, isOrder := state[3].(bool)
		if n, ok := state[3].(int64); ok {
			columns, isOrder = n != 0, true
		}
		if err := of.fill(state[1], state[2], columns, isOrder, state[4]); err != nil {
			return err
		}
		return u.push(of)
	}
	return fmt.Errorf("a %T cannot get the state of %d values", of, len(state))
}

// pushArray pushes a new array.
func (u *unpickler) pushArray(shape, kind any, columns, isOrder bool, data any) error {
	a := &array{}
	if err := a.fill(shape, kind, columns, isOrder, data); err != nil {
		return err
	}
	return u.push(a)
}

// fill gives an array its shape and its elements. isOrder is false if the order of the elements is
// not known.
func (a *array) fill(shape, kind any, columns, isOrder bool, data any) error {
	sizes, isShape := shape.(tuple)
	of, isKind := kind.(dtype)
	text, isData := data.(string)
	if !isShape || !isKind || !isOrder || !isData {
		return fmt.Errorf("an array of a %T, a %T and a %T", shape, kind, data)
	}
	*a = array{dtype: of, columns: columns, data: text}
	size := 1
	for _, v := range sizes {
		n, ok := v.(int64)
		if !ok || n < 0 || n > math.MaxInt32 || n > 0 && size > math.MaxInt32/int(n) {
			return errors.New("an array of impossible sizes")
		}
		a.shape = append(a.shape, int(n))
		size *= int(n)
	}
	if width := of.width(); width > 0 && size*width != len(text) {
		return fmt.Errorf("an array %v of %s with %d bytes", a.shape, of.name, len(text))
	}
	return nil
}

// width returns the number of bytes of a whole number, or 0 for another dtype.
func (d dtype) width() int {
	if len(d.name) == 2 && (d.name[0] == 'i' || d.name[0] == 'u') && strings.Contains("1248", d.name[1:]) {
		return int(d.name[1] - '0')
	}
	return 0
}

// wholeNumbers returns the elements of a list, or of an array of whole numbers in one dimension.
func wholeNumbers(value any) ([]int64, error) {
	switch v := value.(type) {
	case *list:
		all := make([]int64, len(v.values))
		for i, n := range v.values {
			whole, ok := n.(int64)
			if !ok {
				return nil, fmt.Errorf("it holds a %T", n)
			}
			all[i] = whole
		}
		return all, nil
	case *array:
		width := v.dtype.width()
		if width == 0 || len(v.shape) != 1 {
			return nil, fmt.Errorf("it is an array %v of %s", v.shape, v.dtype.name)
		}
		all := make([]int64, v.shape[0])
		for i := range all {
			var whole [8]byte // with the low byte first
			copy(whole[:], v.data[i*width:][:width])
			if v.dtype.order == ">" {
				slices.Reverse(whole[:width])
			}
			n := int64(binary.LittleEndian.Uint64(whole[:]))
			if shift := 64 - 8*width; v.dtype.name[0] == 'i' {
				n = n << shift >> shift
			}
			all[i] = n
		}
		return all, nil
	}
	return nil, fmt.Errorf("it is a %T", value)
}

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
			return "", errCut
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
