// Program mutation removes the edges of the library, one at a time. An edge is a wait, a record
// or a free. Without the edge, the test that its mark names must fail. If the test passes, no
// test guards the edge.
//
//	make mutations                       all edges that a CPU shows
//	go run ./tests/mutation -run refill  the edges whose name matches
//	go run ./tests/mutation -list        prints the table of the edges
//	go run ./tests/mutation -bundle DIR  prepares DIR with the edges that only a GPU shows
//
// On a machine with a GPU, DIR/run.sh tries the edges of DIR.
//
// Each edge in Go and in C++ has a mark. The mark is a comment at the end of the first line of a
// statement. It may also stand alone on a line above the statement.
//
//	//edge:NAME TEST          the test fails without the statement, on a CPU
//	//edge:NAME TEST checked  the same, and the test turns the stream checker on
//	//edge:NAME TEST gpu      only a GPU shows that the test fails
//	//edge:NAME also          the statement goes too, with one above it in the same function
//
// The word `also` marks one more statement of an edge. All statements of an edge are in one
// function and are removed together.
//
// TEST is the name of a Go test, or Suite.Name of a GoogleTest. A test in the package of the
// marked file is preferred. If several other folders have a test of that name, write FOLDER.TEST.
// The statements of a few edges are replaced and not removed: see replacements.go.
//
// The program changes no file of the tree. It replaces Go files by the option -overlay of go
// build. It replaces C++ files in a copy of csrc, under build/mutation. There one or two files
// are compiled for each edge. Run the program in the root of the tree, after make libraries.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	run := flag.String("run", "", "a regular expression: only edges whose name matches")
	bundle := flag.String("bundle", "", "prepare this folder with the edges that only a GPU shows")
	list := flag.Bool("list", false, "print the table of the edges")
	verbose := flag.Bool("v", false, "print what each test says")
	jobs := flag.Int("jobs", runtime.NumCPU(), "files compiled at a time")
	flag.Parse()
	if err := mutate(*run, *bundle, *jobs, *list, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func mutate(run, bundle string, jobs int, list, verbose bool) error {
	names, err := regexp.Compile(run)
	if err != nil {
		return err
	}
	all, err := load(".")
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(e edge) bool { return !names.MatchString(e.name) })
	if list {
		return print(all)
	}
	w, err := newWorkshop(jobs)
	if err != nil {
		return err
	}
	if bundle != "" {
		return w.bundle(bundle, all)
	}
	if err := w.control(all); err != nil {
		return err
	}
	guarded, gpu := 0, 0
	for _, e := range all {
		if e.device == onGPU {
			guarded++
			gpu++
			fmt.Printf("GPU     %s\n", e.name)
			continue
		}
		began := time.Now()
		caught, output, err := w.try(e)
		result := "MISSED"
		switch {
		case err != nil:
			result, output = "BROKEN", err.Error() // the program still tries the other edges
		case caught:
			result = "caught"
			guarded++
		}
		fmt.Printf("%s  %s  (%s, %.0f s)\n", result, e.name, e.test, time.Since(began).Seconds())
		if !caught || verbose {
			fmt.Println(strings.TrimRight(output, "\n"))
		}
	}
	fmt.Printf("%d of %d edges are guarded by a test (%d need a GPU)\n", guarded, len(all), gpu)
	if guarded < len(all) {
		return fmt.Errorf("%d edges are not guarded", len(all)-guarded)
	}
	return nil
}

func print(all []edge) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, e := range all {
		test := e.test
		if !e.isGoogleTest() {
			test = e.folder + "." + test
		}
		fmt.Fprintf(w, "%s\t%s:%d\t%s\t%s\t%s\n", e.name, e.file, e.line, e.function, test, e.device)
	}
	return w.Flush()
}
