package pickle

import (
	"encoding/binary"
	"math"
	"math/big"
	"strconv"
)

// lengths are the instructions that push a text or bytes, with the number of bytes of the length.
var lengths = map[byte]int{'U': 1, 'C': 1, 0x8c: 1, 'T': 4, 'B': 4, 'X': 4, 0x8d: 8, 0x8e: 8, 0x96: 8}

// constants are the instructions that push a constant.
var constants = map[byte]any{'N': nil, 0x88: true, 0x89: false, '(': mark{}}

// step runs one instruction, and reports whether it was the last.
func (u *unpickler) step() (done bool) {
	u.spend(1)
	op := u.take(1)[0]
	if n := lengths[op]; n > 0 {
		u.push(string(u.take(u.uint(n))))
		return false
	}
	if v, ok := constants[op]; ok {
		u.push(v)
		return false
	}
	switch op {
	case '.':
		return true
	case 0x80: // PROTO
		if v := u.take(1)[0]; v > 5 {
			u.fail("it is of protocol %d", v)
		}
	case 0x95: // FRAME
		u.take(8)
	case '0':
		if _, ok := u.top().(mark); ok {
			u.stack = u.stack[:len(u.stack)-1]
		} else {
			u.pop()
		}
	case '1':
		u.group()
	case '2':
		u.push(u.top())
	case 'q', 'r', 'p', 0x94, 'h', 'j', 'g':
		u.remember(op)
	case 'J', 'K', 'M', 0x8a, 0x8b, 'I', 'L', 'F', 'G', 'V', 'S':
		u.push(u.scalar(op))
	case 'c', 0x93, 'Q', 'R', 0x81, 0x92, 'i', 'o', 'b':
		u.construct(op)
	case 0x97, 0x98:
		u.fail("its arrays are in buffers beside the pickle: dump it without buffer_callback")
	default:
		u.collect(op)
	}
	return false
}

// scalar reads a number, or a line of text.
func (u *unpickler) scalar(op byte) any {
	switch op {
	case 'J':
		return int64(int32(binary.LittleEndian.Uint32(u.take(4))))
	case 'K':
		return int64(u.uint(1))
	case 'M':
		return int64(u.uint(2))
	case 0x8a:
		return u.long(u.uint(1))
	case 0x8b:
		return u.long(u.uint(4))
	case 'G':
		return math.Float64frombits(binary.BigEndian.Uint64(u.take(8)))
	}
	line := u.line()
	switch op {
	case 'F':
		v, err := strconv.ParseFloat(line, 64)
		if err != nil {
			u.fail("%.20q is not a number", line)
		}
		return v
	case 'V':
		return unescaped(line)
	case 'S':
		text, err := unquoted(line)
		if err != nil {
			u.fail("%w", err)
		}
		return text
	}
	return u.textInteger(line)
}

// remember stores the last value under a number, or pushes a stored value.
func (u *unpickler) remember(op byte) {
	key := 0
	switch op {
	case 'q', 'h':
		key = u.uint(1)
	case 'r', 'j':
		key = u.uint(4)
	case 0x94:
		key = len(u.memo)
	default:
		key = u.index(u.line())
	}
	if op == 'h' || op == 'j' || op == 'g' {
		u.push(u.recall(key))
	} else {
		u.memo[key] = u.top()
	}
}

// collect makes lists and dicts, and fills them.
func (u *unpickler) collect(op byte) {
	switch op {
	case ')', ']', 0x8f:
		u.push(&List{})
	case '}':
		u.push(&Dict{})
	case 't', 'l', 0x91:
		u.push(&List{u.group()})
	case 0x85, 0x86, 0x87:
		items := make([]any, op-0x84)
		for i := len(items) - 1; i >= 0; i-- {
			items[i] = u.pop()
		}
		u.push(&List{items})
	case 'd':
		d := &Dict{}
		u.fill(d, u.group())
		u.push(d)
	case 'a':
		v := u.pop()
		u.extend(v)
	case 'e', 0x90:
		u.extend(u.group()...)
	case 's':
		value := u.pop()
		u.fillTop(u.pop(), value)
	case 'u':
		u.fillTop(u.group()...)
	default:
		u.fail("an unknown instruction %#x", op)
	}
}

// construct names classes and functions, and calls them.
func (u *unpickler) construct(op byte) {
	switch op {
	case 'c':
		module := u.line()
		u.push(u.global(module, u.line()))
	case 0x93:
		name, ok := u.pop().(string)
		module, ok2 := u.pop().(string)
		if !ok || !ok2 {
			u.fail("a class without a name")
		}
		u.push(u.global(module, name))
	case 'Q':
		id, ok := u.pop().(*List)
		if !ok || u.build.Storage == nil {
			u.fail("a persistent id that is no tuple, or that is not expected")
		}
		s, err := u.build.Storage(id.Items)
		if err != nil {
			u.fail("%w", err)
		}
		u.push(s)
	case 'R', 0x81:
		args := u.pop()
		u.push(u.call(u.pop(), args))
	case 0x92:
		u.pop()
		args := u.pop()
		u.push(u.call(u.pop(), args))
	case 'b':
		u.setState(u.pop())
	case 'i': // INST and OBJ, of Python 2
		module := u.line()
		of := u.global(module, u.line())
		u.push(u.call(of, &List{u.group()}))
	case 'o':
		values := u.group()
		if len(values) == 0 {
			u.fail("a class without a name")
		}
		u.push(u.call(values[0], &List{values[1:]}))
	}
}

// long reads an integer in two's complement.
func (u *unpickler) long(n int) any {
	b := u.take(n)
	if n <= 8 {
		var v int64
		for i := n - 1; i >= 0; i-- {
			v = v<<8 | int64(b[i])
		}
		if n > 0 && n < 8 && b[n-1] >= 0x80 {
			v -= 1 << (8 * n)
		}
		return v
	}
	return &Object{Class: "int of " + strconv.Itoa(n) + " bytes"}
}

func (u *unpickler) textInteger(text string) any {
	switch text {
	case "00":
		return false
	case "01":
		return true
	}
	if n := len(text); n > 0 && text[n-1] == 'L' {
		text = text[:n-1]
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err == nil {
		return v
	}
	if _, ok := new(big.Int).SetString(text[:min(len(text), 100)], 10); !ok {
		u.fail("%q is no integer", text[:min(len(text), 20)])
	}
	return &Object{Class: "int of many digits"}
}

func (u *unpickler) index(text string) int {
	v, err := strconv.Atoi(text)
	if err != nil || v < 0 {
		u.fail("%q is no index", text)
	}
	return v
}
