// Package pythonjson finds what Python writes into JSON for a float that is no number.
package pythonjson

import "regexp"

// tokens matches texts, and the numbers of Python that are not JSON.
var tokens = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?Infinity\b|\bNaN\b`)

// Replace returns JSON in which the results of `with` replace each NaN, Infinity and -Infinity that
// is no part of a text.
func Replace(json []byte, with func(number []byte) []byte) []byte {
	return tokens.ReplaceAllFunc(json, func(token []byte) []byte {
		if token[0] == '"' {
			return token
		}
		return with(token)
	})
}
