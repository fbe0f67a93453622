package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A point is one comparison of branches side by side with one after another.
type point struct {
	family   string // of layers: conv or gemm
	branches int
	batch    float64 // images; 0 for gemm
	blocks   float64 // of a kernel
	speedup  float64
}

// A bar is a kernel of a block, as it ran.
type bar struct {
	way         string // in-turn or side-by-side
	stream      int
	start, time float64 // microseconds
	name        string
}

var (
	waveName  = regexp.MustCompile(`^parallel/waves/((conv)/.*/batch=(\d+)|(gemm)/.*)/branches=(\d+)/(blocks|side-by-side)$`)
	blockName = regexp.MustCompile(`^parallel/block/([a-z-]+)/kernel=\d+$`)
	blockNote = regexp.MustCompile(`^stream (\d+) from ([\d.]+) us, \d+ blocks: (.*)$`)
)

// drawFile prints the picture of a file of results, of an H200.
func drawFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	points, bars, err := readPicture(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	const multiprocessors = 132
	_, err = fmt.Print(draw(points, bars, multiprocessors))
	return err
}

// readPicture finds the rows of parallel/waves among those of a result file.
func readPicture(r io.Reader) (points []point, bars []bar, err error) {
	at := map[string]int{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var row struct {
			Name, Note   string
			Value, Ratio float64
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, nil, fmt.Errorf("%w: %q", err, lines.Text())
		}
		if m := waveName.FindStringSubmatch(row.Name); m != nil {
			key := strings.TrimSuffix(row.Name, m[6])
			i, ok := at[key]
			if !ok {
				i = len(points)
				at[key] = i
				branches, _ := strconv.Atoi(m[5])
				batch, _ := strconv.ParseFloat(m[3], 64)
				points = append(points, point{family: m[2] + m[4], branches: branches, batch: batch})
			}
			if m[6] == "blocks" {
				points[i].blocks = row.Value
			} else {
				points[i].speedup = row.Ratio
			}
		}
		if m := blockName.FindStringSubmatch(row.Name); m != nil {
			note := blockNote.FindStringSubmatch(row.Note)
			if note == nil {
				return nil, nil, fmt.Errorf("the note of %s says not when and where the kernel ran: %q", row.Name, row.Note)
			}
			stream, _ := strconv.Atoi(note[1])
			start, _ := strconv.ParseFloat(note[2], 64)
			bars = append(bars, bar{m[1], stream, start, row.Value, note[3]})
		}
	}
	points = slices.DeleteFunc(points, func(p point) bool { return p.blocks == 0 || p.speedup == 0 })
	if err := lines.Err(); err != nil || len(points) == 0 || len(bars) == 0 {
		return nil, nil, errors.Join(err, errors.New("the file has no rows of parallel/waves from a GPU"))
	}
	return points, bars, nil
}

// A canvas is an SVG that grows.
type canvas struct{ strings.Builder }

func (c *canvas) text(x, y float64, anchor, text string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(text))
}

func (c *canvas) line(x1, y1, x2, y2 float64, style string) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x1, y1, x2, y2, style)
}

var (
	colours = map[string]string{"conv2": "#1f77b4", "conv4": "#d62728", "gemm2": "#17becf", "gemm4": "#ff7f0e"}
	titles  = map[string]string{"conv2": "two branches of convolutions", "conv4": "four", "gemm2": "two branches of matrix products", "gemm4": "four"}
)

// plot draws speedups over x, which is logarithmic, from least to most.
func (c *canvas) plot(left, top float64, title string, least, most float64, ticks []float64, points []point, x func(p point) float64) {
	const width, height, peak = 360.0, 220.0, 4.0
	across := func(v float64) float64 { return left + width*math.Log2(v/least)/math.Log2(most/least) }
	up := func(v float64) float64 { return top + height*(1-v/peak) }
	c.text(left+width/2, top-12, "middle", title)
	for v := 0.0; v <= peak; v++ {
		style := `stroke="#ddd"`
		if v == 1 {
			style = `stroke="#888"`
		}
		c.line(left, up(v), left+width, up(v), style)
		c.text(left-6, up(v)+4, "end", fmt.Sprint(v))
	}
	for _, v := range ticks {
		c.line(across(v), top+height, across(v), top+height+4, `stroke="#888"`)
		c.text(across(v), top+height+17, "middle", fmt.Sprint(v))
	}
	var kinds []string
	of := map[string][]point{}
	for _, p := range points {
		kind := fmt.Sprint(p.family, p.branches)
		if of[kind] == nil {
			kinds = append(kinds, kind)
		}
		of[kind] = append(of[kind], p)
	}
	slices.Sort(kinds)
	for i, kind := range kinds {
		line := of[kind]
		slices.SortFunc(line, func(a, b point) int { return int(1e6 * (x(a) - x(b))) })
		var path []string
		for _, p := range line {
			path = append(path, fmt.Sprintf("%.1f,%.1f", across(x(p)), up(p.speedup)))
			fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", across(x(p)), up(p.speedup), colours[kind])
		}
		fmt.Fprintf(c, `<polyline points="%s" fill="none" stroke="%s"/>`+"\n", strings.Join(path, " "), colours[kind])
		fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="10" height="10" fill="%s"/>`+"\n", left+width-210, top+8+16*float64(i), colours[kind])
		c.text(left+width-195, top+17+16*float64(i), "start", titles[kind])
	}
}

// draw is the picture of docs/side-by-side.md: speedups over the batch and over the blocks of a kernel, and one block's kernels on their streams.
func draw(points []point, bars []bar, multiprocessors float64) string {
	c := &canvas{}
	const left, top = 50.0, 40.0
	convs := slices.DeleteFunc(slices.Clone(points), func(p point) bool { return p.batch == 0 })
	c.plot(left, top, "speedup over the batch", 1, 128, []float64{1, 2, 4, 8, 16, 32, 64, 128}, convs, func(p point) float64 { return p.batch })
	c.plot(left+430, top, "speedup over the blocks of a kernel", 16, 512, []float64{16, 32, 64, multiprocessors, 256, 512}, points,
		func(p point) float64 { return p.blocks })
	y := top + 300
	end := 0.0
	for _, b := range bars {
		end = max(end, b.start+b.time)
	}
	scale := 790 / end
	for _, way := range []string{"in-turn", "side-by-side"} {
		c.text(left, y-6, "start", map[string]string{"in-turn": "a block of GoogLeNet, one image, its branches in turn (us)", "side-by-side": "side by side, a stream each"}[way])
		rows := 0
		for _, b := range bars {
			if b.way != way {
				continue
			}
			rows = max(rows, b.stream+1)
			fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="14" fill="%s" stroke="white"><title>%s, %.1f us</title></rect>`+"\n",
				left+b.start*scale, y+18*float64(b.stream), b.time*scale, colourOf(b.name), html.EscapeString(b.name), b.time)
		}
		y += 18*float64(rows) + 30
	}
	for v := 0.0; v <= end; v += 5 {
		c.line(left+v*scale, y-28, left+v*scale, y-24, `stroke="#888"`)
		c.text(left+v*scale, y-12, "middle", fmt.Sprint(v))
	}
	for i, kind := range []string{"convolution", "pooling", "concatenation"} {
		fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="10" height="10" fill="%s"/>`+"\n", left+120*float64(i), y, kernelColours[kind])
		c.text(left+15+120*float64(i), y+9, "start", kind)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="870" height="%.0f" font-family="sans-serif" font-size="12">`+"\n"+
		`<rect width="100%%" height="100%%" fill="white"/>`+"\n%s</svg>\n", y+25, c.String())
}

var kernelColours = map[string]string{"convolution": "#1f77b4", "pooling": "#2ca02c", "concatenation": "#ff7f0e"}

func colourOf(kernel string) string {
	switch {
	case strings.Contains(kernel, "CatArray"):
		return kernelColours["concatenation"]
	case strings.HasPrefix(kernel, "max_") || strings.Contains(kernel, "pool"):
		return kernelColours["pooling"]
	}
	return kernelColours["convolution"]
}
