// Package safetensors reads and writes safetensors files: named tensors as raw bytes behind a header of JSON, and a map of
// strings. It is written in Go alone and knows no device.
//
// A file is 8 bytes that hold the header's length, little end first; the header; and the tensors' elements, row-major and
// little end first, one behind the other without a gap. Reading checks all of that, so that a file which is cut short or
// padded is an error; a changed element is not seen, since the format has no checksums.
package safetensors
