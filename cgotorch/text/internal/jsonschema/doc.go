// Package jsonschema tells which tokens of a vocabulary may come next in a JSON value that a JSON
// schema accepts.
//
// [Compile] makes a [Grammar] of a schema. [NewVocabulary] sorts the bytes of tokens. [Masks] has
// the automaton of both, and [Answer] is the way of one text through it.
package jsonschema

// Note [Form]
//
// The automaton writes a part of the values that a schema accepts, each in few ways:
//   - Keys come in the order of properties, and other keys behind them. No key comes twice.
//   - At most one space stands behind a colon and a comma, and none elsewhere.
//   - Integers are at most 2^53-1 in magnitude. Other numbers have at most 15 digits, and an
//     exponent of at most two digits if the schema does not bound them. Every such decimal is a
//     float64 of its own, so that a reader that rounds sees the same order.
//   - Strings are UTF-8. Any character may be an escape.

// Note [States]
//
// A frame is a place in the grammar with its counts. A state is a set of frames. Each has the state
// to which the text returns when the frame's value ends. Two equal frames of a state become one,
// whose way back is the union of both. So a state has at most as many frames as the grammar has
// places, however many ways of reading a text there are. The compiler takes out what has no finite
// value, so each state can be completed.

// Note [Masks]
//
// What a frame does with a token depends on the frame alone while its value lasts. So a frame has
// one mask, whatever stands around it, and a list of exits: nodes of the vocabulary's trie at which
// the value has ended. The mask of a state joins the masks of its frames, and walks on from the
// exits with the states around. Counts of characters that no token can exhaust share a mask.

// Note [Characters]
//
// A character of a string comes in several bytes, as UTF-8 or as an escape. The frame's part has
// the bits so far. The character é has the bytes C3 and A9. Behind C3 the frame is at lexBytes1,
// and its part is 3. A9 makes it the character 3<<6 | 0x29, which is E9.
//
// In a string without a pattern, all characters that begin with C3 lead to one place. The frame
// takes this place behind C3, and is at lexRest1: the byte that is missing tells nothing. So one
// frame stands for all 64 characters, and their masks are one.

// Note [Numerals]
//
// A numeral compares its digits with the bounds while they come. Take the range from 12.5 to 130.
// Behind "1" low and high are 0: the digits equal those of both bounds so far. Behind "13" low is
// 1, because 3 is above 2, and high is still 0. The text may end there: it has fewer digits than
// 130, so it is less. Behind "12" low is 0, and the text may not end, because the bound has a
// fraction. Behind "12." and a digit, low compares it with 5. A longer whole part is always the
// greater one.
