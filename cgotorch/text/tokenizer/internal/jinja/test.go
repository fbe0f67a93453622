package jinja

// test returns v is name(a).
func (r *run) test(name string, v any, a *arguments) bool {
	op := name
	switch name {
	case "eq", "equalto":
		op = "=="
	case "ne":
		op = "!="
	case "lt", "lessthan":
		op = "<"
	case "gt", "greaterthan":
		op = ">"
	case "le":
		op = "<="
	case "ge":
		op = ">="
	}
	switch op {
	case "==", "!=", "<", "<=", ">", ">=", "in":
		o := a.take(r, name, "other")
		if o[0] == (absent{}) {
			r.fail("the test %s wants something to compare with", name)
		}
		return r.compare(op, v, o[0])
	case "sameas":
		o := a.take(r, name, "other")
		switch v.(type) {
		case bool, int64, Integer, float64, string, Markup:
			return typeName(v) == typeName(o[0]) && r.equal(v, o[0])
		}
		return v == o[0]
	case "divisibleby":
		o := a.take(r, name, "num")
		return r.equal(r.binary("%", v, o[0]), int64(0))
	}
	a.take(r, name)
	switch name {
	case "odd":
		return r.equal(r.binary("%", v, int64(2)), int64(1))
	case "even":
		return r.equal(r.binary("%", v, int64(2)), int64(0))
	case "lower", "upper":
		s := r.str(v)
		r.use(len(s))
		if name == "lower" {
			return cased(s) && lower(s) == s
		}
		return cased(s) && upper(s) == s
	}
	holds, ok := typeTest(name, v)
	if !ok {
		r.fail("no test named '%s'", name)
	}
	return holds
}

// typeTest has the tests that look at a value's type alone.
func typeTest(name string, v any) (holds, ok bool) {
	_, isUndefined := v.(*undefined)
	_, isText := asText(v)
	_, isDict := v.(*Dict)
	l, isList := v.(*list)
	_, isBool := v.(bool)
	_, isReal := real(v)
	switch name {
	case "defined":
		return !isUndefined, true
	case "undefined":
		return isUndefined, true
	case "none":
		return v == nil, true
	case "boolean":
		return isBool, true
	case "true":
		return v == true, true
	case "false":
		return v == false, true
	case "string":
		return isText, true
	case "number":
		return isReal, true
	case "integer":
		return typeName(v) == "int", true
	case "float":
		return typeName(v) == "float", true
	case "mapping":
		return isDict, true
	case "sequence":
		return isText || isDict || isUndefined || isList && l.kind.indexed(), true
	case "iterable":
		return isText || isDict || isUndefined || isList, true
	case "callable":
		return typeName(v) == "function" || isUndefined, true
	case "escaped":
		return typeName(v) == "Markup", true
	}
	return false, false
}
