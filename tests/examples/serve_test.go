package examples

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// startServe starts examples/serve on a free port and waits until it listens. The function `post`
// sends one body and returns the answer and its status. The end of the test kills the server.
func startServe(t *testing.T, checkpoint string) (cmd *exec.Cmd, post func(body []byte) (answer string, status int)) {
	t.Helper()
	cmd = exec.Command(filepath.Join(bin, "serve"), "-checkpoint", checkpoint, "-device", "cpu", "-listen", "localhost:0")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(pipe).ReadString('\n')
	address, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !found {
		t.Fatalf("serve printed %q, %v", line, err)
	}
	address += "/models/resnet20/classify"
	return cmd, func(body []byte) (answer string, status int) {
		response, err := http.Post(address, "application/octet-stream", bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return "", 0
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Error(err)
		}
		return string(text), response.StatusCode
	}
}

// Many requests at the same time all get the answer that a single request gets. The first class
// of this answer is also in the output of examples/predict. A body that is no picture gets status
// 400. An interrupted server ends without an error.
func TestServe(t *testing.T) {
	data, out := part(t, 200, 64, nil), filepath.Join(t.TempDir(), "run")
	mustRun(t, "train", trainArgs(data, out, "-model", "resnet20", "-epochs", "1")...)
	checkpoint := filepath.Join(out, "checkpoint.safetensors")
	file := firstImage(t, data)
	picture, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	cmd, post := startServe(t, checkpoint)
	first, status := post(picture)
	type answer struct {
		Class string
		Score float64
	}
	var answers []answer
	if err := json.Unmarshal([]byte(first), &answers); err != nil || status != http.StatusOK || len(answers) != 5 {
		t.Fatalf("status %d, %v: %s", status, err, first)
	}
	sum := 0.0
	for i, a := range answers {
		sum += a.Score
		if i > 0 && a.Score > answers[i-1].Score {
			t.Errorf("the answers are not in order: %s", first)
		}
	}
	if sum > 1+1e-5 || math.IsNaN(sum) {
		t.Errorf("the probabilities sum to %v: %s", sum, first)
	}
	if stdout := mustRun(t, "predict", "-checkpoint", checkpoint, "-device", "cpu", "-top", "1", file); !strings.Contains(stdout, answers[0].Class) {
		t.Errorf("serve says %s, and predict\n%s", answers[0].Class, stdout)
	}

	var requests sync.WaitGroup
	for range 8 {
		requests.Add(1)
		go func() {
			defer requests.Done()
			for range 5 {
				text, status := post(picture)
				var got []answer
				err := json.Unmarshal([]byte(text), &got)
				same := slices.EqualFunc(got, answers, func(a, b answer) bool { // batches of other sizes round differently
					return a.Class == b.Class && math.Abs(a.Score-b.Score) < 1e-5
				})
				if err != nil || !same || status != http.StatusOK {
					t.Errorf("status %d, %s, want %s", status, text, first)
				}
			}
		}()
	}
	requests.Wait()

	if text, status := post([]byte("no picture")); status != http.StatusBadRequest {
		t.Errorf("a body that is no picture: status %d, %s", status, text)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("an interrupted server: %v", err)
	}
}

// `make serve` prints a command, which shows what the model in the repository makes of a picture.
func TestServe_Make(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	free, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	cmd := exec.Command("make", "-C", "../..", "serve", "LISTEN="+address, "ARGS=-device cpu")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	})
	command, lines := "", bufio.NewScanner(pipe)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "listening on ") {
		if strings.HasPrefix(lines.Text(), "curl ") {
			command = lines.Text()
		}
	}
	run := exec.Command("sh", "-c", command)
	run.Dir = filepath.Join("..", "..")
	out, err := run.Output()
	var classes []struct{ Class string }
	if err != nil || json.Unmarshal(out, &classes) != nil || len(classes) != 5 || classes[0].Class != "frog" {
		t.Errorf("%q gave %s, %v", command, out, err)
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
