//go:build !windows

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
	"strings"
	"syscall"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// The first class of a checkpoint's answer is also in the output of examples/predict. An
// interrupted server ends without an error.
func TestServe(t *testing.T) {
	data, out := part(t, 200, 64, nil), filepath.Join(t.TempDir(), "run")
	mustRun(t, "train", trainArgs(data, out, "-model", "resnet20", "-epochs", "1")...)
	checkpoint := filepath.Join(out, "checkpoint.safetensors")
	file := firstImage(t, data)
	picture := must.Get(os.ReadFile(file))(t)

	cmd := exec.Command(filepath.Join(bin, "serve"), "-checkpoint", checkpoint, "-device", "cpu", "-listen", "localhost:0")
	pipe := must.Get(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	must.Do(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(pipe).ReadString('\n')
	address, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !found {
		t.Fatalf("serve printed %q, %v", line, err)
	}
	response := must.Get(http.Post(address+"/models/resnet20/classify", "application/octet-stream", bytes.NewReader(picture)))(t)
	defer response.Body.Close()
	first := must.Get(io.ReadAll(response.Body))(t)
	type answer struct {
		Class string
		Score float64
	}
	var answers []answer
	if err := json.Unmarshal(first, &answers); err != nil || response.StatusCode != http.StatusOK || len(answers) != 5 {
		t.Fatalf("status %d, %v: %s", response.StatusCode, err, first)
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

	must.Do(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("an interrupted server: %v", err)
	}
}

// `make serve` prints two commands. One shows what the model in the repository makes of a picture,
// and the other what the model of `make chat` answers.
func TestServe_Make(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	free := must.Get(net.Listen("tcp", "localhost:0"))(t)
	address := free.Addr().String()
	free.Close()
	cmd := exec.Command("make", "-C", "../..", "serve", "LISTEN="+address, "CHAT="+filepath.Join(t.TempDir(), "chat"), "CHATTIME=2s", "ARGS=-device cpu")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	pipe := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	})
	var commands []string
	lines := bufio.NewScanner(pipe)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "listening on ") {
		if strings.HasPrefix(lines.Text(), "curl ") {
			commands = append(commands, lines.Text())
		}
	}
	var classes []struct{ Class string }
	var answer struct {
		Choices []struct {
			Message struct{ Role, Content string }
			Reason  string `json:"finish_reason"`
		}
	}
	if len(commands) != 2 {
		t.Fatalf("the commands are %q", commands)
	}
	for i, to := range []any{&classes, &answer} {
		run := exec.Command("sh", "-c", commands[i])
		run.Dir = filepath.Join("..", "..")
		out, err := run.Output()
		if err != nil || json.Unmarshal(out, to) != nil {
			t.Errorf("%q gave %s, %v", commands[i], out, err)
		}
	}
	if len(classes) != 5 || classes[0].Class != "frog" {
		t.Errorf("%q gave %+v", commands[0], classes)
	}
	if c := answer.Choices; len(c) != 1 || c[0].Message.Role != "assistant" || c[0].Reason != "stop" && c[0].Reason != "length" {
		t.Errorf("%q gave %+v", commands[1], answer)
	}
	must.Check(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM))
}
