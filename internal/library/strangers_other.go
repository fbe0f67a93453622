//go:build !linux

package library

// openToStrangers is for Linux: nothing is opened elsewhere.
func openToStrangers(string, string, ...string) string { return "" }
