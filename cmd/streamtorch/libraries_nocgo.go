//go:build !cgo

package main

var withLibraries []command

// try tries nothing: a program without cgo opens no library.
func (d *doctor) try(core, decoder bool) {}
