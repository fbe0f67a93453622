// Package mistakes guesses at mistakes of a program: Dos that grow, leaves that are in no
// optimizer, and Dos that wait for each other. It only reports. Package cgotorch tells it what Dos
// do, by observers, and knows nothing of how it guesses.
package mistakes

import (
	"sync"
	"sync/atomic"
)

// Process is what is known of all Dos of a process. The zero value knows nothing. Any goroutine may
// use it.
type Process struct {
	patience atomic.Int64 // nanoseconds: see SetPatience; 0 means usualPatience
	late     sync.Map     // uint64 -> waiter: goroutines that have waited longer than that
	locks    sync.Map     // string -> struct{}: the pairs of places of locks that were told
	grown    sync.Map     // string -> struct{}: the functions of the program of whose growth was told
	dump     dump
}
