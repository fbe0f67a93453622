package main

import (
	"fmt"
	"html"
	"io"
	"math"
)

// These measures are in pixels of a picture that is 900 pixels wide.
const (
	width      = 900
	margin     = 20
	top        = 48 // y of the first lane; the legend and the names of the steps are above it
	laneName   = 18
	laneHeight = 26
	laneGap    = 14
	narrowest  = 0.6 // the least width of a box
	closest    = 0.3 // two boxes with a gap of at most this width are drawn as one
)

const (
	kernelColour = "#4472a8"
	copyColour   = "#e07a2e"
)

// draw writes the picture of the window w. It leaves out lanes that have no work in the window.
func (t *trace) draw(out io.Writer, w span, caption string) {
	var shown []*lane
	for _, l := range t.lanes {
		if len(l.in(w, false))+len(l.in(w, true)) > 0 {
			shown = append(shown, l)
		}
	}
	scale := (width - 2*margin) / w.length()
	x := func(ms float64) float64 { return margin + (ms-w.start)*scale }
	bottom := top + len(shown)*(laneName+laneHeight+laneGap)
	height := bottom + 68
	if caption == "" {
		behind, total := t.hidden(w)
		caption = fmt.Sprintf("%.1f ms of a trace. Copies take %.2f ms", w.length(), total)
		if total > 0 {
			caption += fmt.Sprintf(", %.0f %% of it while kernels of other streams run", 100*behind/total)
		}
		caption += "."
	}

	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="13" fill="#222">`+"\n", width, height, width, height)
	fmt.Fprintf(out, "<title>%s</title>\n", html.EscapeString(caption))
	fmt.Fprintf(out, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	for i, entry := range []struct{ colour, name string }{{kernelColour, "kernels"}, {copyColour, "copies"}} {
		at := width - margin - 160 + 86*i
		fmt.Fprintf(out, `<rect x="%d" y="8" width="12" height="12" fill="%s"/><text x="%d" y="18">%s</text>`+"\n", at, entry.colour, at+18, entry.name)
	}

	for _, m := range t.marks {
		if m.start < w.start-1e-9 || m.start >= w.end {
			continue
		}
		fmt.Fprintf(out, `<line x1="%.2f" y1="30" x2="%.2f" y2="%d" stroke="#999" stroke-dasharray="3 3"/>`, x(m.start), x(m.start), bottom)
		fmt.Fprintf(out, `<text x="%.2f" y="40" fill="#666">%s</text>`+"\n", x(m.start)+4, html.EscapeString(m.name))
	}

	for i, l := range shown {
		y := top + i*(laneName+laneHeight+laneGap)
		fmt.Fprintf(out, `<text x="%d" y="%d">%s</text>`+"\n", margin+4, y+laneName-5, html.EscapeString(l.name))
		fmt.Fprintf(out, `<rect x="%d" y="%d" width="%d" height="%d" fill="#f1f3f5"/>`+"\n", margin, y+laneName, width-2*margin, laneHeight)
		for _, copies := range []bool{false, true} {
			colour := kernelColour
			if copies {
				colour = copyColour
			}
			boxes := joined(l.in(w, copies), closest/scale)
			if len(boxes) == 0 {
				continue
			}
			fmt.Fprintf(out, `<g fill="%s">`, colour)
			for _, b := range boxes {
				fmt.Fprintf(out, `<rect x="%.2f" y="%d" width="%.2f" height="%d"/>`, x(b.start), y+laneName, max(b.length()*scale, narrowest), laneHeight)
			}
			fmt.Fprintln(out, "</g>")
		}
	}

	step := tick(w.length())
	for n := 0; float64(n)*step <= w.length(); n++ {
		ms := float64(n) * step
		fmt.Fprintf(out, `<line x1="%.2f" y1="%d" x2="%.2f" y2="%d" stroke="#444"/>`, x(w.start+ms), bottom, x(w.start+ms), bottom+5)
		fmt.Fprintf(out, `<text x="%.2f" y="%d" text-anchor="middle">%g</text>`+"\n", x(w.start+ms), bottom+19, math.Round(ms*1e6)/1e6)
	}
	fmt.Fprintf(out, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#444"/>`, margin, bottom, width-margin, bottom)
	fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="end">ms</text>`+"\n", width-margin, bottom+34)
	fmt.Fprintf(out, `<text x="%d" y="%d">%s</text>`+"\n</svg>\n", margin, bottom+54, html.EscapeString(caption))
}

// tick returns the distance between two ticks of the time axis, for an axis of the given length.
// The distance is 1, 2 or 5 times a power of ten, and the axis has at most ten such distances.
func tick(length float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(length/10)))
	for _, n := range []float64{1, 2, 5} {
		if n*unit*10 >= length {
			return n * unit
		}
	}
	return 10 * unit
}
