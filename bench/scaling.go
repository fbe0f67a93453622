package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A scaledStep is a row of distributed/ whose rates a scaling has, and how table and picture show
// it.
type scaledStep struct{ row, text, colour string }

// scaledSteps are in the order of the table.
var scaledSteps = []scaledStep{
	{"scaling", "ours", "#0b62a4"},
	{"scaling-overlapped", "ours, with an Overlap on several GPUs", "#3aa0d8"},
	{"scaling-plain", "ours, LibTorch's kernels", "#5b8c5a"},
	{"scaling-ddp-graph", "PyTorch, DDP captured by hand", "#c46210"},
	{"scaling-ddp-compile", "PyTorch, DDP with torch.compile", "#8a4fbf"},
	{"scaling-ddp-eager", "PyTorch, DDP eager", "#888888"},
}

// scaledShares are rows of distributed/ that are shares, or whose ratio is one, and their texts in
// the table.
var scaledShares = []struct{ row, text string }{
	{"fed", "fed from one .tgz, of the resident rate"},
	{"fed-first", "its first epoch, with the index that it makes"},
	{"sharded", "sharded Adam, of the rate with Adam on each rank"},
	{"sharded-reduced", "the same, gradients reduced by Gradients"},
	{"hidden/all", "hidden of the reductions, on the worst rank"},
	{"hidden/but-the-last", "the same, without the last one of a step"},
}

// A scaling has the images a second of steps of one batch size a GPU, by the row of scaledSteps
// and by the number of GPUs. It has the shares by the row of scaledShares.
type scaling struct {
	model  string
	batch  int
	rates  map[string]map[int]float64
	shares map[string]map[int]float64
}

var (
	scaledRow   = regexp.MustCompile(`^distributed/([^/]+)/(\d+)/(.+)$`)
	rankInRow   = regexp.MustCompile(`/rank\d+`)
	ranksInNote = regexp.MustCompile(`; (\d+) ranks[;,]`)
)

// writeScaling writes the table and the picture of a file of rows.
func writeScaling(path string, table io.Writer) error {
	rows, err := os.Open(path)
	if err != nil {
		return err
	}
	defer rows.Close()
	all, err := readScalings(rows)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(all) == 0 {
		return fmt.Errorf("%s: no row is one of distributed/MODEL/BATCH/scaling", path)
	}
	writeScalingTable(table, all)
	var picture bytes.Buffer
	writeScalingPicture(&picture, all)
	return os.WriteFile(strings.TrimSuffix(path, filepath.Ext(path))+".svg", picture.Bytes(), 0o644)
}

// readScalings reads rows of distributed/ of runs with several numbers of GPUs. Of rows with one
// name and number the last one counts. The rate of one GPU is that of the run with the most GPUs.
func readScalings(from io.Reader) ([]scaling, error) {
	found := map[string]*scaling{} // by model and batch
	most := map[string]int{}       // by row, the GPUs of the run that gave the rate of one GPU
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		name, ranks := scaledRow.FindStringSubmatch(r.Name), ranksInNote.FindStringSubmatch(r.Note)
		if name == nil || ranks == nil {
			continue
		}
		model, step := name[1], rankInRow.ReplaceAllString(name[3], "")
		batch, _ := strconv.Atoi(name[2])
		gpus, _ := strconv.Atoi(ranks[1])
		key := model + "/" + name[2]
		if found[key] == nil {
			found[key] = &scaling{model, batch, map[string]map[int]float64{}, map[string]map[int]float64{}}
		}
		if slices.ContainsFunc(scaledShares, func(s struct{ row, text string }) bool { return s.row == step }) {
			found[key].share(step, gpus, r, step != name[3])
			continue
		}
		if r.Value <= 0 || !slices.ContainsFunc(scaledSteps, func(s scaledStep) bool { return s.row == step }) {
			continue
		}
		rates := found[key].rates
		if rates[step] == nil {
			rates[step] = map[int]float64{}
		}
		perSecond := func(ms number) float64 { return float64(batch) * 1e3 / float64(ms) }
		rates[step][gpus] = float64(gpus) * perSecond(r.Value)
		// The peer of the compiled step is a captured one, which is no share of it.
		if step != "scaling-ddp-compile" && r.PeerValue != nil && gpus >= most[r.Name] {
			most[r.Name], rates[step][1] = gpus, perSecond(*r.PeerValue)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	var all []scaling
	for _, s := range found {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b scaling) int { return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(b.batch, a.batch)) })
	return all, nil
}

// share takes a row of scaledShares. Of the ranks of a run the lowest share counts.
func (s *scaling) share(name string, gpus int, r row, ofRank bool) {
	share := float64(r.Value)
	if r.Ratio != nil {
		share = float64(*r.Ratio)
	}
	if s.shares[name] == nil {
		s.shares[name] = map[int]float64{}
	}
	if other, known := s.shares[name][gpus]; known && ofRank {
		share = min(share, other)
	}
	s.shares[name][gpus] = share
}

// gpus returns the numbers of GPUs, ascending.
func (s scaling) gpus() []int {
	all := map[int]bool{}
	for _, rows := range []map[string]map[int]float64{s.rates, s.shares} {
		for _, byGPUs := range rows {
			for n := range byGPUs {
				all[n] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// writeScalingTable writes images a second, and behind them the share of so many times the rate of
// one GPU.
func writeScalingTable(to io.Writer, all []scaling) {
	for _, s := range all {
		fmt.Fprintf(to, "## %s, batch %d a GPU\n\nImages/s, and the share of so many times one GPU's rate.\n\n| step |", s.model, s.batch)
		for _, n := range s.gpus() {
			fmt.Fprintf(to, " %d %s |", n, [...]string{"GPU", "GPUs"}[min(n-1, 1)])
		}
		fmt.Fprint(to, "\n| --- |", strings.Repeat(" --- |", len(s.gpus())), "\n")
		for _, step := range scaledSteps {
			rates := s.rates[step.row]
			if rates == nil {
				continue
			}
			fmt.Fprintf(to, "| %s |", step.text)
			for _, n := range s.gpus() {
				switch {
				case rates[n] == 0:
					fmt.Fprint(to, " |")
				case n == 1 || rates[1] == 0:
					fmt.Fprintf(to, " %.0f |", rates[n])
				default:
					fmt.Fprintf(to, " %.0f, %.3f |", rates[n], rates[n]/(float64(n)*rates[1]))
				}
			}
			fmt.Fprintln(to)
		}
		for _, share := range scaledShares {
			if s.shares[share.row] == nil {
				continue
			}
			fmt.Fprintf(to, "| %s |", share.text)
			for _, n := range s.gpus() {
				if v, known := s.shares[share.row][n]; known {
					fmt.Fprintf(to, " %.3f |", v)
				} else {
					fmt.Fprint(to, " |")
				}
			}
			fmt.Fprintln(to)
		}
		fmt.Fprintln(to)
	}
}

// writeScalingPicture writes an SVG with a chart for each batch size: images a second over the
// number of GPUs, and a dashed line for so many times our rate on one GPU.
func writeScalingPicture(to io.Writer, all []scaling) {
	const width, height, left, top, gap = 420, 300, 70, 40, 110
	fmt.Fprintf(to, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", len(all)*(width+gap), height+top+60+18*len(scaledSteps))
	fmt.Fprintln(to, `<rect width="100%" height="100%" fill="white"/>`)
	for i, s := range all {
		gpus := s.gpus()
		if len(s.rates) == 0 {
			continue
		}
		last := gpus[len(gpus)-1]
		highest := float64(last) * s.rates["scaling"][1]
		for _, rates := range s.rates {
			for _, r := range rates {
				highest = max(highest, r)
			}
		}
		x := func(n int) float64 {
			return float64(i*(width+gap)+left) + float64(width)*float64(n-1)/float64(max(last-1, 1))
		}
		y := func(rate float64) float64 { return top + height*(1-rate/(1.05*highest)) }
		fmt.Fprintf(to, `<text x="%.0f" y="22" font-size="14">%s, batch %d a GPU: images/s over GPUs</text>`+"\n", x(1), s.model, s.batch)
		fmt.Fprintf(to, `<path d="M%.0f,%d V%d H%.0f" fill="none" stroke="black"/>`+"\n", x(1), top, top+height, x(last))
		for _, n := range gpus {
			fmt.Fprintf(to, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(n), top+height+18, n)
		}
		for _, part := range []float64{0.25, 0.5, 0.75, 1} {
			fmt.Fprintf(to, `<text x="%.1f" y="%.1f" text-anchor="end">%.0f</text>`+"\n", x(1)-8, y(part*highest)+4, part*highest)
		}
		if one := s.rates["scaling"][1]; one > 0 {
			fmt.Fprintf(to, `<path d="M%.1f,%.1f L%.1f,%.1f" stroke="#0b62a4" stroke-dasharray="4 4"/>`+"\n", x(1), y(one), x(last), y(float64(last)*one))
		}
		line := 0
		for _, step := range scaledSteps {
			rates := s.rates[step.row]
			var points []string
			for _, n := range slices.Sorted(maps.Keys(rates)) {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(n), y(rates[n])))
				fmt.Fprintf(to, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(n), y(rates[n]), step.colour)
			}
			if len(points) == 0 {
				continue
			}
			fmt.Fprintf(to, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), step.colour)
			fmt.Fprintf(to, `<text x="%.0f" y="%d" fill="%s">%s</text>`+"\n", x(1), top+height+44+18*line, step.colour, step.text)
			line++
		}
	}
	fmt.Fprintln(to, "</svg>")
}
