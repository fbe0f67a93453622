// Package mistakes guesses at mistakes of a program: Dos that grow, leaves that are in no
// optimizer, and Dos that wait for each other. It returns or logs what it finds. Package cgotorch
// tells it what Dos do, by observers, and decides whether a call fails.
package mistakes

import (
	"sync"
	"sync/atomic"
)

// Process is what is known of all Dos of a process. The zero value knows nothing. Any goroutine may
// use it.
type Process struct {
	patience atomic.Int64 // nanoseconds: see SetPatience
	late     sync.Map     // uint64 -> waiter: goroutines that have waited longer than patience
	locks    sync.Map     // string -> struct{}: the pairs of places of locks that were told
	grown    sync.Map     // string -> struct{}: the functions whose growth was reported
	dump     dump
}
