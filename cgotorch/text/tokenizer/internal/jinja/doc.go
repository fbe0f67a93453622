// Package jinja renders Jinja templates as Python does for chats: with trimmed blocks, without
// escaping, in an immutable sandbox.
//
// A template reads nothing but the variables it is given. It cannot load other templates. Its
// steps, memory and depth are bounded: see Note [Bounds]. What this package does not know, it
// refuses by name.
package jinja
