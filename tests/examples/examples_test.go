//go:build !windows

// Package examples builds the programs of examples/ and runs them as a user does.
package examples

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/must"
)

var bin string // the folder of the built programs

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	bin = dir
	os.Setenv("OMP_NUM_THREADS", "1") // threads of several programs would mostly wait for each other
	build := exec.Command("go", "build", "-o", dir, "github.com/streamtorch/streamtorch/examples/...")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s\n%v\n", out, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

const cifar = "../../examples/train/data/cifar10-10k.tgz"

// tgz opens a .tgz for reading. The end of the test closes it.
func tgz(t *testing.T, path string) *tar.Reader {
	t.Helper()
	f := must.Get(os.Open(path))(t)
	t.Cleanup(func() { f.Close() })
	z := must.Get(gzip.NewReader(f))(t)
	return tar.NewReader(z)
}

// part writes an archive of some CIFAR-10 images. It takes the first `train` training images and
// the first `test` test images. The function `change`, unless it is nil, gets each member and
// returns its new bytes. If `change` returns nil, the member is left out.
func part(t *testing.T, train, test int, change func(name string, data []byte) []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "part.tgz")
	out := must.Get(os.Create(path))(t)
	defer out.Close()
	z := gzip.NewWriter(out)
	w := tar.NewWriter(z)
	left := map[string]int{"train": train, "test": test}
	for r := tgz(t, cifar); left["train"]+left["test"] > 0; {
		h := must.Get(r.Next())(t)
		data := must.Get(io.ReadAll(r))(t)
		first, _, _ := strings.Cut(h.Name, "/")
		if h.Typeflag != tar.TypeReg || left[first] == 0 {
			continue
		}
		left[first]--
		if change != nil {
			if data = change(h.Name, data); data == nil {
				continue
			}
		}
		h.Size = int64(len(data))
		must.Do(t, w.WriteHeader(h))
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	must.Do(t, errors.Join(w.Close(), z.Close()))
	return path
}

// run runs a program and returns its output and exit status.
func run(t *testing.T, program string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, program), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// mustRun fails the test unless the program succeeds. It returns standard output.
func mustRun(t *testing.T, program string, args ...string) string {
	t.Helper()
	stdout, stderr, status := run(t, program, args...)
	if status != 0 {
		t.Fatalf("%s %s: exit status %d\n%s%s", program, strings.Join(args, " "), status, stdout, stderr)
	}
	return stdout
}

func TestQuickstart(t *testing.T) {
	if out := mustRun(t, "quickstart", part(t, 300, 0, nil)); !strings.Contains(out, "batch 0: loss 2.") {
		t.Errorf("quickstart printed %q", out)
	}
}

func TestDCGAN(t *testing.T) {
	out := t.TempDir()
	text := mustRun(t, "dcgan", "-epochs", "1", "-out", out, part(t, 150, 0, nil))
	// The example has no seed. The discriminator's first loss was between 1.2 and 1.9 in 100 runs, and
	// 2.2 in another one.
	if !regexp.MustCompile(`(?m)^epoch 0, batch 0: discriminator [0-4]\.[0-9]+, generator [0-9]\.[0-9]+$`).MatchString(text) {
		t.Errorf("dcgan printed %q", text)
	}
	file := must.Get(os.Open(filepath.Join(out, "epoch0.png")))(t)
	defer file.Close()
	if c, err := png.DecodeConfig(file); err != nil || c.Width != 8*34+2 || c.Height != c.Width {
		t.Errorf("the picture has %dx%d pixels, %v", c.Width, c.Height, err)
	}
}

// mnist writes the files of MNIST with images whose bright rows tell the digit, and one image of
// the digit 7 as a picture.
func mnist(t *testing.T) (folder, picture string) {
	t.Helper()
	folder = t.TempDir()
	const side, n = 28, 200
	pixels, labels := make([]byte, n*side*side), make([]byte, n)
	for i := range n {
		labels[i] = byte(i % 10)
		for p := range 3 * side {
			pixels[i*side*side+2*(i%10)*side+p] = 255
		}
	}
	for _, part := range []string{"train", "t10k"} {
		images := append([]byte{0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, side, 0, 0, 0, side}, pixels...)
		err := os.WriteFile(filepath.Join(folder, part+"-images-idx3-ubyte"), images, 0o644)
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, part+"-labels-idx1-ubyte"), append([]byte{0, 0, 8, 1, 0, 0, 0, n}, labels...), 0o644))
		must.Do(t, err)
	}
	var text bytes.Buffer
	picture = filepath.Join(folder, "seven.png")
	err := png.Encode(&text, &image.Gray{Pix: pixels[7*side*side:][:side*side], Stride: side, Rect: image.Rect(0, 0, side, side)})
	must.Do(t, errors.Join(err, os.WriteFile(picture, text.Bytes(), 0o644)))
	return folder, picture
}

func TestMNIST(t *testing.T) {
	folder, picture := mnist(t)
	model := filepath.Join(t.TempDir(), "model.safetensors")
	if out := mustRun(t, "mnist", "train", "-data", folder, "-model", model, "-steps", "250"); !strings.Contains(out, "step 250: 100.00 % of 200 test images") {
		t.Errorf("mnist train printed %q", out)
	}
	if out := mustRun(t, "mnist", "predict", "-model", model, picture); out != picture+": 7\n" {
		t.Errorf("mnist predict printed %q", out)
	}
	drawn := mustRun(t, "mnist", "train", "-model", model, "-steps", "400")
	var percent float64
	if _, err := fmt.Sscanf(drawn[max(0, strings.LastIndex(drawn, "step")):], "step 400: %f %%", &percent); err != nil || percent < 90 {
		t.Errorf("of drawn digits %v %% are right: %q, %v", percent, drawn, err)
	}
	for want, args := range map[string][]string{
		"usage":             {},
		"train-images-idx3": {"train", "-data", t.TempDir()},
		"none.safetensors":  {"predict", "-model", "none.safetensors", picture},
		"none.png":          {"predict", "-model", model, "none.png"},
	} {
		if _, stderr, status := run(t, "mnist", args...); status != 1 || !strings.Contains(stderr, want) || strings.Contains(stderr, "goroutine ") {
			t.Errorf("mnist %v: status %d, want 1; standard error must name %q:\n%s", args, status, want, stderr)
		}
	}
}

// trainArgs returns the flags of a short run.
func trainArgs(data, out string, more ...string) []string {
	return append([]string{"-data", data, "-out", out, "-model", "mlp", "-batch", "32", "-epochs", "3", "-lr", "0.02", "-device", "cpu", "-log-steps"}, more...)
}

// losses reads the loss of each step from the log in the folder `out`.
func losses(t *testing.T, out string) map[int]float64 {
	t.Helper()
	f := must.Get(os.Open(filepath.Join(out, "log.jsonl")))(t)
	defer f.Close()
	all := map[int]float64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		var line struct {
			Step *int
			Loss *float64
		}
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			t.Fatalf("log.jsonl: %q: %v", s.Text(), err)
		}
		if line.Loss != nil {
			all[*line.Step] = *line.Loss
		}
	}
	return all
}

func TestTrain(t *testing.T) {
	data, out := part(t, 200, 64, nil), filepath.Join(t.TempDir(), "run")
	stdout := mustRun(t, "train", trainArgs(data, out)...)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines on standard output, want one an epoch and one more:\n%s", len(lines), stdout)
	}
	var last map[string]any
	if err := json.Unmarshal([]byte(lines[3]), &last); err != nil {
		t.Fatalf("the last line is %q: %v", lines[3], err)
	}
	for key, limits := range map[string][2]float64{"top1": {0, 1}, "top5": {0.2, 1}, "images_per_second": {1, 1e7}, "data_wait_share": {0, 1}, "epoch": {3, 3}} {
		if v, ok := last[key].(float64); !ok || v < limits[0] || v > limits[1] {
			t.Errorf("%s is %v in %s, want %v", key, v, lines[3], limits)
		}
	}
	if got := losses(t, out); len(got) != 21 || !(got[20] < got[0]) {
		t.Errorf("losses %v: want 21 that fall", got)
	}

	t.Run("predict", func(t *testing.T) {
		image := firstImage(t, data)
		stdout := mustRun(t, "predict", "-checkpoint", filepath.Join(out, "checkpoint.safetensors"), "-device", "cpu", image)
		if !strings.Contains(stdout, image) || strings.Count(stdout, "%") != 5 {
			t.Errorf("predict printed %q, want the file and five classes", stdout)
		}
		_, stderr, status := run(t, "predict", "-checkpoint", filepath.Join(out, "checkpoint.safetensors"), filepath.Join(out, "log.jsonl"))
		if status == 0 || !strings.Contains(stderr, "log.jsonl") {
			t.Errorf("predict on a file that is no image: status %d, %q", status, stderr)
		}
	})
}

// weightsOf writes the tensors of a checkpoint's model to a file of weights alone.
func weightsOf(t *testing.T, checkpoint string) string {
	t.Helper()
	from := must.Get(safetensors.Open(checkpoint))(t)
	defer from.Close()
	var tensors []safetensors.Tensor
	for _, info := range from.Tensors() {
		if !strings.Contains(info.Name, "/") {
			tensors = append(tensors, safetensors.Tensor{Name: info.Name, DType: info.DType, Shape: info.Shape, Read: func() ([]byte, error) { return from.Read(info.Name) }})
		}
	}
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	must.Do(t, safetensors.WriteFile(path, tensors, nil))
	return path
}

// With -evaluate the results are those of the training's own test, and no file changes.
func TestTrain_Evaluate(t *testing.T) {
	data, out := part(t, 96, 64, nil), filepath.Join(t.TempDir(), "run")
	results := func(stdout string) (r struct {
		Top1, Top5 float64
		TestLoss   float64 `json:"test_loss"`
		Images     int
	}) {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
			t.Fatalf("the last line is %q: %v", lines[len(lines)-1], err)
		}
		return r
	}
	want := results(mustRun(t, "train", trainArgs(data, out, "-epochs", "1")...))
	want.Images = 64
	log := must.Get(os.ReadFile(filepath.Join(out, "log.jsonl")))(t)
	checkpoint := filepath.Join(out, "checkpoint.safetensors")
	weights := weightsOf(t, checkpoint)
	for name, args := range map[string][]string{
		"checkpoint":    {"-evaluate", checkpoint, "-device", "cpu"},
		"weights alone": {"-evaluate", weights, "-data", data, "-model", "mlp", "-size", "32", "-device", "cpu", "-batch", "7"},
	} {
		stdout := mustRun(t, "train", args...)
		got := results(stdout)
		if got.Images != want.Images || got.Top1 != want.Top1 || got.Top5 != want.Top5 || math.Abs(got.TestLoss-want.TestLoss) > 1e-5 || !strings.Contains(stdout, "top-5") {
			t.Errorf("%s: got %+v, want %+v:\n%s", name, got, want, stdout)
		}
	}
	if got := results(mustRun(t, "train", "-evaluate", checkpoint, "-device", "cpu", "-test-part", "train")); got.Images != 96 {
		t.Errorf("%d images of the part train, want 96", got.Images)
	}
	if now, err := os.ReadFile(filepath.Join(out, "log.jsonl")); err != nil || !bytes.Equal(now, log) {
		t.Errorf("the log of the run has changed: %v", err)
	}
	for name, c := range map[string]struct {
		args []string
		want string // in standard error
	}{
		"no such file":      {[]string{"-evaluate", "none.safetensors"}, "none.safetensors"},
		"another model":     {[]string{"-evaluate", checkpoint, "-model", "resnet20"}, "as a -model resnet20"},
		"weights, no model": {[]string{"-evaluate", weights, "-data", data}, "-model"},
		"weights, misfit":   {[]string{"-evaluate", weights, "-data", data, "-model", "resnet20"}, "-evaluate"},
		"no such part":      {[]string{"-evaluate", checkpoint, "-device", "cpu", "-test-part", "val"}, "-test-part"},
	} {
		if stdout, stderr, status := run(t, "train", c.args...); status != 1 || !strings.Contains(stderr, c.want) || len(stderr) > 500 || stdout != "" {
			t.Errorf("%s: status %d, want 1; standard error must name %q:\n%s%s", name, status, c.want, stdout, stderr)
		}
	}
}

// A trace has the steps of the first epoch, and a mark for each step. The run leaves no temporary
// file beside the trace.
func TestTrain_Trace(t *testing.T) {
	for name, c := range map[string]struct{ images, first, steps int }{
		"a short epoch": {200, 0, 7},
		"a long epoch":  {32 * 33, 10, 20},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, "trace.json")
			_, stderr, status := run(t, "train", trainArgs(part(t, c.images, 32, nil), filepath.Join(folder, "run"), "-epochs", "2", "-trace", path)...)
			if want := fmt.Sprintf("trace.json: %d steps, for ui.perfetto.dev; marks alone", c.steps); status != 0 || !strings.Contains(stderr, want) {
				t.Errorf("status %d, standard error must say %q:\n%s", status, want, stderr)
			}
			text := must.Get(os.ReadFile(path))(t)
			var file struct {
				TraceEvents []struct {
					Name     string  `json:"name"`
					Phase    string  `json:"ph"`
					Duration float64 `json:"dur"`
				} `json:"traceEvents"`
			}
			must.Do(t, json.Unmarshal(text, &file))
			marks := 0
			for _, e := range file.TraceEvents {
				if e.Phase == "X" {
					if want := fmt.Sprintf("step %d", c.first+marks); e.Name != want || e.Duration <= 0 {
						t.Errorf("mark %d is %q of %v us, want %q", marks, e.Name, e.Duration, want)
					}
					marks++
				}
			}
			if marks != c.steps {
				t.Errorf("%d marks, want %d", marks, c.steps)
			}
			if entries, _ := os.ReadDir(folder); len(entries) != 2 {
				t.Errorf("%d files, want the trace and the run", len(entries))
			}
		})
	}
}

func firstImage(t *testing.T, archive string) string {
	t.Helper()
	r := tgz(t, archive)
	h := must.Get(r.Next())(t)
	data := must.Get(io.ReadAll(r))(t)
	path := filepath.Join(t.TempDir(), filepath.Base(h.Name))
	must.Do(t, os.WriteFile(path, data, 0o644))
	return path
}

// startTrain starts a run. It returns when the log in the folder `out` has the given number of
// lines, or after a minute.
func startTrain(t *testing.T, out string, lines int, args []string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "train"), args...)
	must.Do(t, cmd.Start())
	written := func() int {
		text, _ := os.ReadFile(filepath.Join(out, "log.jsonl"))
		return len(strings.Split(string(text), "\n"))
	}
	for deadline := time.Now().Add(time.Minute); written() < lines && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	return cmd
}

// interrupt sends the signals. The run must end with the exit status of an interrupted run.
func interrupt(t *testing.T, cmd *exec.Cmd, signals ...os.Signal) {
	t.Helper()
	for _, s := range signals {
		_ = cmd.Process.Signal(s)
	}
	_ = cmd.Wait()
	want := 128 + int(signals[0].(syscall.Signal)) // as shells count
	if code := cmd.ProcessState.ExitCode(); code != want {
		t.Fatalf("an interrupted run ended with status %d, want %d", code, want)
	}
}

// An interrupted run saves a checkpoint. The resumed run has the same losses as a run without an
// interruption.
func TestTrain_InterruptAndResume(t *testing.T) {
	data := part(t, 1500, 32, nil)
	whole, halves := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "halves")
	mustRun(t, "train", trainArgs(data, whole)...)
	want := losses(t, whole)

	interrupt(t, startTrain(t, halves, 10, trainArgs(data, halves)), os.Interrupt)
	before := len(losses(t, halves))
	if before >= len(want) {
		t.Fatal("the run was over before it could be interrupted")
	}
	mustRun(t, "train", "-out", halves, "-resume", "-log-steps", "-device", "cpu")
	sameLosses(t, halves, want)
}

// A new run in the folder of an earlier one keeps its checkpoint, from which the run goes on.
func TestTrain_KeepsPrevious(t *testing.T) {
	data, out := part(t, 1500, 32, nil), filepath.Join(t.TempDir(), "run")
	interrupt(t, startTrain(t, out, 10, trainArgs(data, out)), os.Interrupt)
	before := len(losses(t, out))
	path := filepath.Join(out, "checkpoint.safetensors")
	mustRun(t, "train", trainArgs(data, out, "-limit", "64", "-epochs", "1")...)
	must.Do(t, os.Rename(path+".previous", path))
	mustRun(t, "train", "-out", out, "-resume", "-log-steps", "-device", "cpu")
	t.Logf("%d steps, and then %d", before, len(losses(t, out)))
}

func sameLosses(t *testing.T, out string, want map[int]float64) {
	t.Helper()
	got := losses(t, out)
	if len(got) != len(want) {
		t.Fatalf("%d losses, want %d", len(got), len(want))
	}
	for step, loss := range want {
		if math.Abs(got[step]-loss) > 1e-6*loss {
			t.Fatalf("the loss of step %d is %v, want %v", step, got[step], loss)
		}
	}
}

// A run that is interrupted before its first step can be resumed too. While it runs, no other run
// may write to its folder.
func TestTrain_InterruptBeforeTheFirstStep(t *testing.T) {
	data := part(t, 1500, 32, nil)
	args := func(out string) []string { return trainArgs(data, out, "-batch", "700", "-epochs", "1", "-seed", "5") }
	whole, early := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "early")
	mustRun(t, "train", args(whole)...)

	cmd := startTrain(t, early, 2, args(early))
	_ = cmd.Process.Signal(syscall.SIGSTOP)
	_, stderr, status := run(t, "train", args(early)...)
	if status != 1 || !strings.Contains(stderr, "another run is writing") {
		t.Errorf("a second run in one folder: status %d, %s", status, stderr)
	}
	interrupt(t, cmd, syscall.SIGTERM, syscall.SIGCONT)
	t.Logf("interrupted after %d steps", len(losses(t, early)))
	mustRun(t, "train", "-out", early, "-resume", "-log-steps", "-device", "cpu")
	sameLosses(t, early, losses(t, whole))
}

// A killed run is resumed from its last checkpoint. The steps that its log has after the
// checkpoint are removed.
func TestTrain_ResumeForgetsLostSteps(t *testing.T) {
	data, out := part(t, 200, 32, nil), filepath.Join(t.TempDir(), "run")
	mustRun(t, "train", trainArgs(data, out, "-epochs", "1")...)
	want := losses(t, out)
	log := must.Get(os.OpenFile(filepath.Join(out, "log.jsonl"), os.O_APPEND|os.O_WRONLY, 0))(t)
	fmt.Fprintf(log, "{\"step\":%d,\"loss\":9}\n{\"epoch\":2}\n{\"st", len(want))
	log.Close()
	mustRun(t, "train", "-out", out, "-resume", "-log-steps", "-device", "cpu", "-epochs", "2", "-test-data", part(t, 0, 32, nil)) // the test data may have moved
	got := losses(t, out)
	if len(got) != 2*len(want) || got[len(want)] == 9 || got[0] != want[0] {
		t.Errorf("losses %v, first those of %v", got, want)
	}
}

// A run can have its last checkpoint and be killed before it says so. Started again with -resume it
// prints its summary and succeeds, so that a launcher that waits for success ends too.
func TestTrain_ResumeOfAnEndedRun(t *testing.T) {
	data, out := part(t, 64, 32, nil), filepath.Join(t.TempDir(), "run")
	last := func(stdout string) string {
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		return lines[len(lines)-1]
	}
	want := last(mustRun(t, "train", trainArgs(data, out, "-epochs", "1")...))
	trace := filepath.Join(t.TempDir(), "trace.json")
	for _, more := range [][]string{nil, {"-epochs", "1"}, {"-log-steps"}, {"-trace", trace}} {
		stdout, stderr, status := run(t, "train", append([]string{"-out", out, "-resume", "-device", "cpu"}, more...)...)
		if status != 0 || last(stdout) != want || !strings.HasPrefix(want, "{") || !strings.Contains(stderr, "raise -epochs to go on") {
			t.Errorf("%q: status %d, summary %q, want %q\n%s", more, status, last(stdout), want, stderr)
		}
	}
	if info, err := os.Stat(filepath.Join(out, "log.jsonl")); err != nil || info.Size() == 0 {
		t.Errorf("log.jsonl: %v", err)
	}
	mustRun(t, "train", "-out", out, "-resume", "-device", "cpu", "-epochs", "2")
	if _, stderr, status := run(t, "train", "-out", out, "-resume", "-device", "cpu", "-epochs", "1"); status != 1 || !strings.Contains(stderr, "has had 2 epochs, and -epochs is 1") {
		t.Errorf("fewer epochs than the run has had: status %d, %s", status, stderr)
	}
}

// One class is nothing to learn. All parts together are images to train on if the flag says so.
func TestTrain_Parts(t *testing.T) {
	data := part(t, 64, 32, nil)
	cats := part(t, 200, 0, func(name string, data []byte) []byte {
		if !strings.Contains(name, "/cat/") {
			return nil
		}
		return data
	})
	if _, stderr, status := run(t, "train", trainArgs(cats, t.TempDir(), "-epochs", "1", "-test-part", "")...); status != 1 || !strings.Contains(stderr, "there is only one class, cat") {
		t.Errorf("one class: status %d, %s", status, stderr)
	}
	_, stderr, status := run(t, "train", trainArgs(data, t.TempDir(), "-epochs", "1", "-train-part", "", "-test-part", "test")...)
	if status != 0 || !strings.Contains(stderr, ": 96 images of ") {
		t.Errorf("all parts: status %d, %s", status, stderr)
	}
}

func TestTrain_WithoutATest(t *testing.T) {
	bad := part(t, 100, 0, func(name string, data []byte) []byte {
		if strings.HasSuffix(name, "0.jpg") {
			return data[:len(data)/2]
		}
		return data
	})
	stdout := mustRun(t, "train", trainArgs(bad, t.TempDir(), "-test-part", "", "-epochs", "1", "-skip-rate", "0.5")...)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	var last struct {
		Top1    *float64 `json:"top1"`
		Skipped int      `json:"skipped"`
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Top1 != nil || last.Skipped < 1 {
		t.Errorf("%v; got %s, want no top1 and what was skipped", err, stdout)
	}
	if !strings.Contains(lines[0], fmt.Sprintf("%d unreadable images skipped", last.Skipped)) {
		t.Errorf("the epoch's line is %q", lines[0])
	}
}

func TestTrain_Refuses(t *testing.T) {
	good := part(t, 64, 32, nil)
	truncated := filepath.Join(t.TempDir(), "truncated.tgz")
	text := must.Get(os.ReadFile(good))(t)
	must.Do(t, os.WriteFile(truncated, text[:len(text)/2], 0o644))
	damaged := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(damaged, "checkpoint.safetensors"), []byte("\x10\x00\x00\x00\x00\x00\x00\x00{\"half\": writ"), 0o644))
	resumable := t.TempDir()
	mustRun(t, "train", trainArgs(good, resumable, "-epochs", "1")...)
	badImage := part(t, 64, 32, func(name string, data []byte) []byte {
		if strings.HasPrefix(name, "train/") {
			return data[:len(data)-200]
		}
		return data
	})
	for name, c := range map[string]struct {
		args []string
		want string // in standard error
	}{
		"missing archive":          {trainArgs("no/such.tgz", t.TempDir()), "no/such.tgz"},
		"truncated archive":        {trainArgs(truncated, t.TempDir()), "truncated.tgz"},
		"bad images":               {trainArgs(badImage, t.TempDir()), ".jpg"},
		"no such part":             {trainArgs(good, t.TempDir(), "-train-part", "val"), "val"},
		"unknown model":            {trainArgs(good, t.TempDir(), "-model", "resnet51"), "resnet50"},
		"unknown device":           {trainArgs(good, t.TempDir(), "-device", "tpu"), "tpu"},
		"absent device":            {trainArgs(good, t.TempDir(), "-device", "cuda:63"), "cuda"},
		"learning rate of 0":       {trainArgs(good, t.TempDir(), "-lr", "0"), "-lr 0"},
		"clip norm of NaN":         {trainArgs(good, t.TempDir(), "-clip-norm", "NaN"), "-clip-norm NaN"},
		"dtype of no autocast":     {trainArgs(good, t.TempDir(), "-dtype", "float64"), "float64"},
		"negative batch":           {trainArgs(good, t.TempDir(), "-batch", "-1"), "-batch -1"},
		"no folder for the trace":  {trainArgs(good, t.TempDir(), "-trace", "no/such/trace.json"), "-trace"},
		"folder for the trace":     {trainArgs(good, t.TempDir(), "-trace", t.TempDir()), "is no file"},
		"nothing to resume":        {[]string{"-resume", "-out", t.TempDir()}, "checkpoint.safetensors"},
		"model of a resumed":       {[]string{"-resume", "-out", resumable, "-model", "resnet20"}, "do not fit"},
		"damaged checkpoint":       {[]string{"-resume", "-out", damaged}, "checkpoint.safetensors"},
		"missing weights":          {trainArgs(good, t.TempDir(), "-weights", "no.safetensors"), "no.safetensors"},
		"weights of another model": {trainArgs(good, t.TempDir(), "-model", "mobilenet_v2", "-weights", filepath.Join(resumable, "checkpoint.safetensors")), "do not fit"},
		"diverged":                 {trainArgs(good, t.TempDir(), "-lr", "1e30"), "diverged"},
		"stray argument":           {trainArgs(good, t.TempDir(), "epochs=3"), "epochs=3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, stderr, status := run(t, "train", c.args...)
			if status != 1 || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "goroutine ") || strings.Contains(stderr, "Options.") || strings.Count(stderr, "-skip-rate") > 1 {
				t.Errorf("status %d, want 1; standard error must name %q:\n%s", status, c.want, stderr)
			}
		})
	}
}

// Weights that were trained on other classes are loaded, except for the last layer.
func TestTrain_WeightsOfOtherClasses(t *testing.T) {
	first, data := t.TempDir(), part(t, 64, 32, nil)
	mustRun(t, "train", trainArgs(data, first, "-epochs", "1")...)
	fewer := part(t, 64, 32, func(name string, data []byte) []byte {
		if strings.Contains(name, "/cat/") {
			return nil
		}
		return data
	})
	weights := filepath.Join(first, "checkpoint.safetensors")
	for _, data := range []string{data, fewer} {
		mustRun(t, "train", trainArgs(data, t.TempDir(), "-epochs", "1", "-weights", weights)...)
	}
}

// On a full disk the run ends with an error, and the last checkpoint is unchanged.
func TestTrain_FullDisk(t *testing.T) {
	data, out := part(t, 64, 32, nil), filepath.Join(t.TempDir(), "run")
	mustRun(t, "train", trainArgs(data, out, "-epochs", "1")...)
	checkpoint := filepath.Join(out, "checkpoint.safetensors")
	before := must.Get(os.ReadFile(checkpoint))(t)
	// A limit on the size of files replaces the full disk. Writes beyond the limit fail.
	script := fmt.Sprintf("ulimit -f 1000; trap '' XFSZ; exec %s -out %s -resume -device cpu -epochs 2", filepath.Join(bin, "train"), out)
	cmd := exec.Command("bash", "-c", script)
	text, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(text), "checkpoint.safetensors") {
		t.Errorf("status %v:\n%s", cmd.ProcessState, text)
	}
	after, err := os.ReadFile(checkpoint)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the last checkpoint has changed: %v", err)
	}
	entries, _ := os.ReadDir(out)
	for _, e := range entries {
		switch e.Name() {
		case "checkpoint.safetensors", "log.jsonl":
		default:
			t.Errorf("%s is left behind", e.Name())
		}
	}
}

func TestInspect_Status(t *testing.T) {
	good := part(t, 20, 10, nil)
	bad := part(t, 20, 10, func(name string, data []byte) []byte {
		if strings.HasPrefix(name, "test/") {
			return []byte{}
		}
		return data
	})
	notGzip := filepath.Join(t.TempDir(), "text.tgz")
	must.Do(t, os.WriteFile(notGzip, []byte("no gzip, and no tar either"), 0o644))
	for path, want := range map[string]int{good: 0, bad: 1, notGzip: 2, "no/such.tgz": 2} {
		stdout, stderr, status := run(t, "inspect", path)
		if status != want || strings.Contains(stderr, "goroutine ") {
			t.Errorf("inspect %s: status %d, want %d\n%s%s", filepath.Base(path), status, want, stdout, stderr)
		}
	}
}
