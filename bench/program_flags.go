package main

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// programFlags adds the flags of the rows program/.
func (c *config) programFlags() {
	c.models, c.batches, c.packages = programModels, batchList{1, 8, 32}, batchList{1, 8, 32}
	flag.StringVar(&c.programs, "programs", "", "the folder in which program/ keeps what PyTorch exports and compiles; if empty, a temporary one")
	flag.Var(&c.models, "models", "models of program/make, separated by commas")
	flag.Var(&c.batches, "batches", "batch sizes of program/MODEL, separated by commas")
	flag.Var(&c.packages, "packages", "those of -batches for which program/MODEL measures packages of AOTInductor; if empty, none")
}

// batchList is a flag with batch sizes.
type batchList []int

func (l *batchList) String() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(*l), "[]"), " ", ",")
}

func (l *batchList) Set(text string) error {
	*l = nil
	for part := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > 64 {
			return fmt.Errorf("%q is no batch size from 1 to 64", part)
		}
		*l = append(*l, n)
	}
	return nil
}

// modelList is a flag with names of programModels.
type modelList []string

func (l *modelList) String() string { return strings.Join(*l, ",") }

func (l *modelList) Set(text string) error {
	*l = strings.Split(text, ",")
	for _, name := range *l {
		if !slices.Contains(programModels, name) {
			return fmt.Errorf("%q is none of %s", name, strings.Join(programModels, ", "))
		}
	}
	return nil
}

// programBatches returns the batch sizes of program/MODEL.
func (c *config) programBatches() []int {
	if c.brief {
		return []int{2}
	}
	return c.batches
}

// packageBatches returns the batch sizes for which packages of AOTInductor are measured too.
func (c *config) packageBatches() (batches []int) {
	if c.brief && len(c.packages) > 0 {
		return []int{2}
	}
	for _, batch := range c.batches {
		if slices.Contains(c.packages, batch) {
			batches = append(batches, batch)
		}
	}
	return batches
}

// kindsOfFiles returns the batch sizes for which each kind of files is needed. The kinds are the
// names of the requests that make them. An export is for all batches.
func (c *config) kindsOfFiles() map[string][]int {
	kinds := map[string][]int{"export": {0}, "package": c.packageBatches()}
	if c.compile {
		kinds["compile"] = c.programBatches()
	}
	return kinds
}
