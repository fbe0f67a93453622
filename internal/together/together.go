// Package together runs a function of a test on several goroutines.
package together

import "sync"

// Run calls fn with 0 to n-1, each on a goroutine of its own. It waits for all of them.
func Run(n int, fn func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			fn(i)
		}()
	}
	all.Wait()
}
