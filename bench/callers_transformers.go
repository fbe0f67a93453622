package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
)

// benchTransformers measures callers in a closed loop beside transformers' continuous batching,
// with the same lengths of prompts and answers. A round has four requests a caller, at least 8 and
// at most 512.
func benchTransformers(c *config, emit func(row)) error {
	return benchBatcher(c, emit, (*callersRun).transformers)
}

// callersRound is what callers_transformers.py takes for a number of callers.
type callersRound struct {
	Callers  int      `json:"callers"`
	Requests [][2]int `json:"requests"` // tokens of each prompt, and of its answer
}

func (r *callersRun) transformers() error {
	counts, shapes := []int{1, 16, 64, 256}, maps.Clone(llamas["8b"])
	if r.c.brief {
		counts, shapes = []int{2}, maps.Clone(llamas["tiny"])
	}
	var rounds []callersRound
	ours := map[int]float64{} // tokens a second
	for _, n := range counts {
		all := r.requests(min(max(4*n, 8), 512), uint64(n))
		if r.c.brief { // Triton's interpreter is slow
			all = []textRequest{{[]int64{1, 2, 3}, 2}, {[]int64{4, 5}, 3}}
		}
		b, err := r.batcher(min(n, 128), 0)
		if err != nil {
			return err
		}
		_, _, err = r.serveAll(b, r.requests(max(n/2, 4), 99), n) // makes graphs
		if err == nil {
			var seconds float64
			var tokens int
			seconds, tokens, err = r.serveAll(b, all, n)
			ours[n] = float64(tokens) / seconds
		}
		if err := errors.Join(err, b.Close()); err != nil {
			return err
		}
		round := callersRound{Callers: n}
		for _, q := range all {
			round.Requests = append(round.Requests, [2]int{len(q.prompt), q.most})
		}
		rounds = append(rounds, round)
	}
	best, notes, err := r.c.batchedByTransformers(shapes, rounds)
	if err != nil {
		return err
	}
	for i, n := range counts {
		r.emit(against(fmt.Sprintf("text/transformers-8b/%d", n), ours[n], "tokens/s", "transformers' continuous batching", best[n], higher,
			fmt.Sprintf("%d requests, prompts of 200 to 2,000 tokens, answers of 50 to 500; its faster one of two schedulers; %s; %s", len(rounds[i].Requests), notes[n], r.note)))
	}
	return nil
}

// batchedByTransformers returns the tokens a second of the faster scheduler for each number of
// callers, and what the script tells of it.
func (c *config) batchedByTransformers(shapes map[string]any, rounds []callersRound) (best map[int]float64, notes map[int]string, err error) {
	for _, key := range []string{"architectures", "model_type", "torch_dtype", "eos_token_id", "bos_token_id"} {
		delete(shapes, key)
	}
	asked, err := json.Marshal(map[string]any{"shapes": shapes, "tiny": c.brief, "rounds": rounds})
	if err != nil {
		return nil, nil, err
	}
	command, folder, err := c.script("callers_transformers.py")
	defer os.RemoveAll(folder)
	if err != nil {
		return nil, nil, err
	}
	command.Stdin, command.Stderr = bytes.NewReader(asked), os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("callers_transformers.py: %w; PEER_PYTHON is to be a Python that has PyTorch, Triton and transformers 5", err)
	}
	best, notes = map[int]float64{}, map[int]string{}
	for _, line := range strings.Split(string(out), "\n") {
		var callers int
		var rate float64
		if n, _ := fmt.Sscanf(line, "PEER callers=%d tokens_s=%g", &callers, &rate); n == 2 && rate > best[callers] {
			_, notes[callers], _ = strings.Cut(line, " scheduler=")
			best[callers] = rate
		}
	}
	if len(best) != len(rounds) {
		return nil, nil, fmt.Errorf("callers_transformers.py told %d rates, want %d: %s", len(best), len(rounds), out)
	}
	return best, notes, nil
}
