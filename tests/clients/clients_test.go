// Package clients calls examples/serve with clients that others have written, of the Open Inference
// Protocol and of OpenAI's interface. README.md has what each call gave.
package clients

import (
	"bufio"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

var update = flag.Bool("update", false, "write the table of README.md anew")

// python names the variable with a Python that has the clients.
const python = "STREAMTORCH_CLIENTS"

// build returns the program of the server.
func build(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "serve")
	if out, err := exec.Command("go", "build", "-o", program, "../../examples/serve").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// start runs the server with some flags, and returns its ports in the order in which it tells them.
func start(t *testing.T, program string, want int, args ...string) (ports []string) {
	t.Helper()
	cmd := exec.Command(program, append([]string{"-device", "cpu", "-listen", "localhost:0", "-admin", "localhost:0"}, args...)...)
	lines := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	port := regexp.MustCompile(`:(\d+)(/|$)`)
	for from := bufio.NewReader(lines); len(ports) < want; {
		line, err := from.ReadString('\n')
		m := port.FindStringSubmatch(strings.TrimSpace(line))
		if err != nil || m == nil {
			t.Fatalf("the server says %q, %v", line, err)
		}
		if !slices.Contains(ports, m[1]) { // HTTP has a line for each interface
			ports = append(ports, m[1])
		}
	}
	return ports
}

// Each client gets what README.md says. A line whose client is not installed is left as it is.
func TestClients(t *testing.T) {
	if os.Getenv(python) == "" {
		t.Skipf("%s does not name a Python with tritonclient and kserve", python)
	}
	readme := must.Get(os.ReadFile("README.md"))(t)
	const begin, end = "<!-- the table begins -->\n", "<!-- the table ends -->\n"
	head, rest, found := strings.Cut(string(readme), begin)
	old, tail, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatal("README.md has no table")
	}
	ports := start(t, build(t), 3, "-models", "../../examples/serve/models", "-grpc", "localhost:0")
	table := "\n| call | client | result |\n| --- | --- | --- |\n"
	for _, group := range []string{"tritonclient", "kserve", "programs"} {
		cmd := exec.Command(os.Getenv(python), "clients.py", group, ports[0], ports[1], ports[2], "../../examples/serve/frog.jpg", "../../examples/serve/inference/inference.proto")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v", group, err)
		}
		known := strings.Split(old, "\n")
		for line := range strings.Lines(string(out)) {
			if !*update && !strings.Contains(line, "| not run: ") && !slices.Contains(known, strings.TrimSpace(line)) {
				t.Errorf("README.md does not have %s", line)
			}
		}
		table += string(out)
	}
	if *update {
		must.Do(t, os.WriteFile("README.md", []byte(head+begin+table+"\n"+end+tail), 0o666))
	}
}
