// Package safetensors reads and writes safetensors files. Such a file has a header of JSON, and
// then named tensors as raw bytes. The header can also hold a map of strings. The package is
// plain Go and does not use any device.
//
// A file begins with the length of the header, in 8 bytes. Then come the header and the elements
// of the tensors. Elements are row-major and have no gaps between them. All numbers have their
// low byte first. Reading checks all of this, so a file that is cut short or padded gives an
// error. The format has no checksums, so a reader cannot detect a changed element.
package safetensors
