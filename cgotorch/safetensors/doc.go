// Package safetensors reads and writes safetensors files: named tensors as raw bytes behind a
// header of JSON, and a map of strings. It is written in Go alone and knows no device.
//
// A file holds the header's length in 8 bytes, little end first, then the header, then the tensors'
// elements. Elements are row-major and little end first, without gaps. Reading checks all of that,
// so a file that is cut short or padded is an error. The format has no checksums, so a changed
// element goes unnoticed.
package safetensors
