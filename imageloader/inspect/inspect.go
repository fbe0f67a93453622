// Package inspect is the command that prints what is in an archive of labelled images: classes,
// images and sizes, and each member that training could not use.
package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/imageloader"
)

const (
	usable     = 0
	badMembers = 1
	unreadable = 2 // the archive cannot be read or has no usable image, or the command line is wrong
)

// Run inspects the archive that args name. It returns the exit code: 0 if all images are usable, 1
// if some are not, and 2 if no image is usable, if the archive cannot be read, or if args are
// wrong.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("inspect", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: inspect [-json] ARCHIVE")
		flags.PrintDefaults()
	}
	asJSON := flags.Bool("json", false, "print one JSON object")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return usable
	} else if err != nil {
		return unreadable
	}
	if flags.NArg() != 1 {
		flags.Usage()
		return unreadable
	}
	report, err := imageloader.Scan(ctx, flags.Arg(0), 0)
	out := bufio.NewWriter(stdout)
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		encoder.Encode(report)
	} else if report.Members > 0 {
		print(out, report, err)
	}
	if lost := out.Flush(); lost != nil {
		fmt.Fprintln(stderr, "inspect:", lost)
		return unreadable
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return unreadable
	}
	switch {
	case report.Images == 0:
		return unreadable
	case len(report.Bad) > 0:
		return badMembers
	}
	return usable
}

// print writes the report as text for people. err is the error of the scan.
func print(w io.Writer, r imageloader.Report, err error) {
	fmt.Fprintf(w, "%s\n\n", printable(r.Path))
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-9s"+format+"\n", append([]any{name}, args...)...)
	}
	row("archive", "%s, %s members", r.Format, grouped(r.Members))
	row("images", "%s usable in %s classes, %s", grouped(r.Images), grouped(len(r.Classes)), bytesOf(r.Bytes))
	if len(r.Splits) > 0 {
		row("splits", "%s", list(r.Splits))
	}
	if r.Images > 0 {
		row("formats", "%s", list(r.Formats))
		row("pixels", "%s smallest, %s median, %s largest", size(r.Smallest), size(r.Median), size(r.Largest))
		row("files", "%s smallest, %s median, %s largest", bytesOf(r.FileSize.Min), bytesOf(r.FileSize.Median), bytesOf(r.FileSize.Max))
	}
	if len(r.Ignored) > 0 {
		row("ignored", "%s", list(r.Ignored))
	}
	if len(r.Classes) > 0 {
		fmt.Fprintln(w, "\nclasses")
		printCounts(w, r.Classes)
	}
	fmt.Fprintln(w)
	if len(r.Classes) == 1 {
		fmt.Fprintf(w, "There is only one class, %s: no model can learn from it to tell classes apart.\n", printable(r.Classes[0].Name))
	}
	switch {
	case errors.Is(err, imageloader.ErrUnknownClass):
		fmt.Fprintln(w, "It is not clear where the labels are from.")
	case err != nil:
		fmt.Fprintln(w, "This is what was found before the archive could be read no further.")
	case len(r.Bad) == 0:
		fmt.Fprintln(w, "All images are usable.")
	}
	if len(r.Bad) == 0 {
		return
	}
	fmt.Fprintf(w, "%s of %s images cannot be used\n", grouped(len(r.Bad)), grouped(len(r.Bad)+r.Images))
	for _, bad := range r.Bad {
		fmt.Fprintf(w, "  member %d (%s): %s\n", bad.Member, printable(bad.Name), bad.Reason)
	}
}

// printCounts writes one line for each count, with a bar.
func printCounts(w io.Writer, counts []imageloader.Count) {
	const bar = 30
	longest, most := 0, 1
	for _, c := range counts {
		longest, most = max(longest, len([]rune(printable(c.Name)))), max(most, c.Count)
	}
	for _, c := range counts {
		line := fmt.Sprintf("  %-*s %9s %s", longest, printable(c.Name), grouped(c.Count), strings.Repeat("▇", (c.Count*bar+most-1)/most))
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

func list(counts []imageloader.Count) string {
	parts := make([]string, len(counts))
	for i, c := range counts {
		parts[i] = printable(c.Name) + " " + grouped(c.Count)
	}
	return strings.Join(parts, ", ")
}

func size(s imageloader.Size) string { return fmt.Sprintf("%dx%d", s.Width, s.Height) }

// grouped puts commas between groups of three digits: 12345 becomes 12,345.
func grouped(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// bytesOf returns a number of bytes with its unit: 1234567 becomes 1.2 MB.
func bytesOf(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1000, 0
	for value >= 999.95 && unit < 3 {
		value, unit = value/1000, unit+1
	}
	return fmt.Sprintf("%.1f %cB", value, "kMGT"[unit])
}

// printable returns the name. If a character of the name could disturb the terminal, it quotes
// the name.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted[1:len(quoted)-1] != name {
		return quoted
	}
	return name
}
