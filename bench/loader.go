package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/imageloader"
)

// server is our side of a comparison, in a process of its own. It answers the same requests as the
// Python files.
type server struct {
	loader *imageloader.Loader
	rank   rank
}

// request holds the arguments of every kind of request.
type request struct {
	Do              string
	Archive, Recipe string
	Batch           int
	Count           int
	Load            loadRequest
	Rank            rankRequest
	Bytes           int // of an all-reduce
}

// answerRequests writes answers to requests until the input ends. Each request is a JSON object.
func answerRequests(in io.Reader, out io.Writer) error {
	s := &server{}
	defer s.close()
	requests, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r request
		if err := requests.Decode(&r); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		reply, err := s.answer(r)
		if err != nil {
			reply = map[string]any{"error": err.Error()}
		}
		if err := replies.Encode(reply); err != nil {
			return err
		}
	}
}

func (s *server) answer(r request) (any, error) {
	switch r.Do {
	case "start":
		return map[string]any{"versions": runtime.Version()}, nil
	case "open":
		return s.open(r)
	case "epochs":
		rate, err := s.epochs(r.Count)
		return map[string]any{"images_per_second": rate}, err
	case "load":
		return load(r.Load)
	case "rank":
		return s.rank.open(r.Rank)
	case "steps":
		ms, err := s.rank.step.block(r.Count)
		return map[string]any{"milliseconds": ms}, err
	case "epoch":
		return s.rank.epoch()
	case "reduce":
		return s.rank.reduce(r.Bytes, r.Count)
	}
	return nil, fmt.Errorf("%q is no request", r.Do)
}

// open opens an archive. The loader has one decode thread for each core that this process may
// use.
func (s *server) open(r request) (map[string]any, error) {
	recipe, ok := map[string]recipe{cifar.name: cifar, imagenet.name: imagenet}[r.Recipe]
	if !ok {
		return nil, fmt.Errorf("%q is no recipe", r.Recipe)
	}
	var err error
	s.loader, err = recipe.open(&config{threads: runtime.NumCPU()}, r.Archive, 1, r.Batch)
	if err != nil {
		return nil, err
	}
	return map[string]any{"images": s.loader.Len()}, nil
}

// epoch reads the next epoch and returns the number of images in it.
func (s *server) epoch() (int, error) {
	images := 0
	for batch, err := range s.loader.Epoch(context.Background()) {
		if err != nil {
			return 0, err
		}
		images += batch.N
		batch.Release()
	}
	if images != s.loader.Len() {
		return 0, fmt.Errorf("an epoch had %d images, want %d", images, s.loader.Len())
	}
	return images, nil
}

// epochs reads one epoch and then `count` more epochs. It returns the images per second of the
// later epochs. The clock starts at the end of the first epoch and stops at the end of the last
// epoch. The time between two epochs is therefore part of the measurement. Reading ahead before
// the clock starts is not part of it.
func (s *server) epochs(count int) (float64, error) {
	if _, err := s.epoch(); err != nil {
		return 0, err
	}
	began, images := time.Now(), 0
	for range count {
		n, err := s.epoch()
		if err != nil {
			return 0, err
		}
		images += n
	}
	rate := float64(images) / time.Since(began).Seconds()
	return rate, quiet()
}

func (s *server) close() {
	if s.loader != nil {
		s.loader.Close()
	}
	s.rank.close()
}

// quiet waits until this process is idle. Otherwise its reading ahead would slow down the process
// that is measured next.
func quiet() error {
	const look = 20 * time.Millisecond
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		before := cpuTime()
		time.Sleep(look)
		if cpuTime()-before < look/10 {
			return nil
		}
	}
	return errors.New("the process is still busy 10 s after its last epoch")
}

// peakMiB returns the largest resident memory of this process since the last resetPeak.
func peakMiB() float64 {
	kib, _ := strconv.ParseFloat(strings.TrimSuffix(processStatus("VmHWM"), " kB"), 64)
	return kib / 1024
}

// processStatus returns the line of this name in /proc/self/status.
func processStatus(name string) string {
	text, _ := os.ReadFile("/proc/self/status")
	_, line, _ := strings.Cut(string(text), "\n"+name+":")
	line, _, _ = strings.Cut(line, "\n")
	return strings.TrimSpace(line)
}

// resetPeak begins to count the peak of resident memory anew.
func resetPeak() error { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }
