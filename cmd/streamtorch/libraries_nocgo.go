//go:build !cgo

package main

var withLibraries []command

// devices tries nothing: a program without cgo opens no library.
func (d *doctor) devices() {}
