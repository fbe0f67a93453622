// Program mutation takes each edge of the library away, one at a time, and requires that the test named for it fails: a wait, a
// record or a free that no test misses is not guarded.
//
//	make mutations                             all edges that a CPU shows; writes docs/edges.md
//	go run ./tests/mutation -run refill        those whose name matches
//	go run ./tests/mutation -bundle DIR        prepares DIR with those that only a GPU shows; on a machine with one: DIR/run.sh
//
// Nothing in the tree is changed: Go files are replaced by go build's -overlay, and C++ files in a copy of csrc, under
// build/mutation, of which each mutation compiles one file or two. It is run in the root of the tree, after make libraries.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	run := flag.String("run", "", "a regular expression: only edges whose name matches")
	bundle := flag.String("bundle", "", "prepare this folder with the edges that only a GPU shows")
	verbose := flag.Bool("v", false, "print what each test says")
	jobs := flag.Int("jobs", runtime.NumCPU(), "files compiled at a time")
	flag.Parse()
	if err := mutate(*run, *bundle, *jobs, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func mutate(run, bundle string, jobs int, verbose bool) error {
	names, err := regexp.Compile(run)
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(edges(), func(e edge) bool { return !names.MatchString(e.name) })
	w, err := newWorkshop(jobs)
	if err != nil {
		return err
	}
	for _, e := range all {
		if _, err := e.mutated(w.root); err != nil {
			return err
		}
	}
	if bundle != "" {
		return w.bundle(bundle, all)
	}
	if err := w.control(all); err != nil {
		return err
	}
	guarded, gpu := 0, 0
	for _, e := range byFile(all) {
		if e.device == onGPU {
			guarded++
			gpu++
			fmt.Printf("GPU     %s\n", e.name)
			continue
		}
		began := time.Now()
		caught, output, err := w.try(e)
		if err != nil {
			return err
		}
		result := "MISSED"
		if caught {
			result = "caught"
			guarded++
		}
		fmt.Printf("%s  %s  (%s, %.0f s)\n", result, e.name, e.test, time.Since(began).Seconds())
		if !caught || verbose {
			fmt.Println(strings.TrimRight(output, "\n"))
		}
	}
	if err := os.WriteFile(documentPath, []byte(document(edges())), 0o644); err != nil {
		return err
	}
	fmt.Printf("%d of %d edges are guarded by a test (%d need a GPU)\n", guarded, len(all), gpu)
	if guarded < len(all) {
		return fmt.Errorf("%d edges are not guarded", len(all)-guarded)
	}
	return nil
}

// byFile puts edges of one C++ file next to each other, so that it alone is compiled from one to the next.
func byFile(all []edge) []edge {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b edge) int {
		switch {
		case a.isGo() && b.isGo():
			return 0
		case a.isGo() != b.isGo():
			return map[bool]int{true: -1, false: 1}[a.isGo()]
		}
		return strings.Compare(a.file, b.file)
	})
	return all
}
