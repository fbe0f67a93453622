package deploy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// server is a running program of a bundle.
type server struct {
	cmd *exec.Cmd
	url string // such as http://127.0.0.1:40001
}

// start starts a server and waits until its models are loaded. The end of the test kills it.
func start(t *testing.T, cmd *exec.Cmd) server {
	t.Helper()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.Do(t, err)
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(pipe).ReadString('\n')
	url, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !found {
		cmd.Wait()
		t.Fatalf("%v printed %q, %v\n%s", cmd, line, err, errs.String())
	}
	return server{cmd, strings.TrimSuffix(url, "/v2")}
}

// stop ends the server as a supervisor does, and fails the test unless its status is 0.
func (s server) stop(t *testing.T) {
	t.Helper()
	must.Do(t, s.cmd.Process.Signal(syscall.SIGTERM))
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, s.cmd.Stderr)
	}
}

// ask sends a request and returns the status and the answer. A body makes it a POST.
func (s server) ask(t *testing.T, path, token string, body []byte) (status int, answer string) {
	t.Helper()
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	request := must.Get(http.NewRequest(method, s.url+path, bytes.NewReader(body)))(t)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response := must.Get(http.DefaultClient.Do(request))(t)
	defer response.Body.Close()
	text := must.Get(io.ReadAll(response.Body))(t)
	return response.StatusCode, string(text)
}

// classifies fails the test unless the server calls the frog a frog.
func (s server) classifies(t *testing.T, token string) {
	t.Helper()
	frog := must.Get(os.ReadFile("../../examples/serve/frog.jpg"))(t)
	status, text := s.ask(t, "/v2/models/cifar10/classify", token, frog)
	var classes []struct{ Class string }
	if err := json.Unmarshal([]byte(text), &classes); err != nil || status != http.StatusOK || len(classes) == 0 || classes[0].Class != "frog" {
		t.Errorf("status %d, %v: %s", status, err, text)
	}
}

// mapped returns the files that the process has mapped into its memory.
func (s server) mapped(t *testing.T) (files []string) {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "maps")))(t)
	for line := range strings.Lines(string(text)) {
		if _, path, found := strings.Cut(line, "/"); found {
			files = append(files, "/"+strings.TrimSpace(path))
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// forTest changes arguments so that the server takes a free port and the CPU.
func forTest(args []string) []string {
	port := regexp.MustCompile(`^(-listen=)?:8080$`)
	changed := slices.Clone(args)
	for i, arg := range changed {
		changed[i] = port.ReplaceAllString(arg, "${1}127.0.0.1:0")
	}
	return append(changed, "-device=cpu") // the last one counts
}

// flagOf returns the value of a flag.
func flagOf(t *testing.T, args []string, name string) string {
	t.Helper()
	for i, arg := range args {
		if value, found := strings.CutPrefix(arg, "-"+name+"="); found {
			return value
		}
		if arg == "-"+name && i+1 < len(args) {
			return args[i+1]
		}
	}
	t.Fatalf("%v has no -%s", args, name)
	return ""
}

// seconds returns a duration such as 10s.
func seconds(t *testing.T, text string) float64 {
	t.Helper()
	d := must.Get(time.ParseDuration(text))(t)
	return d.Seconds()
}

const folder = "../../examples/serve/deploy/"

// keys returns the values of each key in the lines of a Dockerfile or a unit of systemd.
func keys(t *testing.T, file, separator string) map[string][]string {
	t.Helper()
	text := must.Get(os.ReadFile(folder + file))(t)
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), separator); found && !strings.HasPrefix(line, "#") {
			all[key] = append(all[key], value)
		}
	}
	return all
}

// list returns the words of a list in JSON.
func list(t *testing.T, text string) (words []string) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &words); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return words
}

// One bundle of examples/serve runs as a container, a service and a pod do.
func TestServe(t *testing.T) {
	bundle := makeBundle(t, "./examples/serve")
	models := filepath.Join(root(t), "examples/serve/models")
	checkLibraries(t, bundle)
	t.Run("Dockerfile", func(t *testing.T) { testDockerfile(t, bundle, models) })
	t.Run("Systemd", func(t *testing.T) { testSystemd(t, bundle, models) })
	t.Run("Kubernetes", func(t *testing.T) { testKubernetes(t, bundle, models) })
}

// The image has only what is in the bundle. Its command runs in an empty root, where each mapped
// file is one of the bundle's.
func testDockerfile(t *testing.T, bundle, models string) {
	lines := keys(t, "Dockerfile", " ")
	if lines["FROM"][0] != "scratch" || lines["COPY"][0] != ". /" || lines["EXPOSE"][0] != "8080" {
		t.Errorf("FROM %v, COPY %v, EXPOSE %v", lines["FROM"], lines["COPY"], lines["EXPOSE"])
	}
	if user := lines["USER"][0]; !regexp.MustCompile(`^[1-9][0-9]*:[1-9][0-9]*$`).MatchString(user) {
		t.Errorf("USER %s: want numbers, because the image has no /etc/passwd", user)
	}
	command := append(list(t, lines["ENTRYPOINT"][0]), list(t, lines["CMD"][0])...)
	s := start(t, inEmptyRoot(t, bundle, map[string]string{flagOf(t, command, "models"): models}, command[0], forTest(command[1:])...))
	if status, text := s.ask(t, "/v2/health/ready", "", nil); status != http.StatusOK {
		t.Errorf("status %d: %s", status, text)
	}
	s.classifies(t, "")

	entries := must.Get(os.ReadDir(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "root")))(t)
	for _, entry := range entries {
		if !slices.Contains([]string{"serve", "lib", "lib64", "licenses", "models", "dev", "proc", "sys"}, entry.Name()) {
			t.Errorf("the program sees /%s", entry.Name())
		}
	}
	files := s.mapped(t)
	if len(files) < 10 {
		t.Errorf("only %v are mapped", files)
	}
	for _, file := range files {
		if !strings.HasPrefix(file, bundle+"/") {
			t.Errorf("%s is mapped", file)
		}
	}
	s.stop(t)
}

// systemd finds nothing wrong in the unit, and its command runs on a machine that has its own
// loader and glibc.
func testSystemd(t *testing.T, bundle, models string) {
	lines := keys(t, "streamtorch-serve.service", "=")
	command := strings.Fields(lines["ExecStart"][0])
	if drain, most := seconds(t, flagOf(t, command, "drain")), seconds(t, lines["TimeoutStopSec"][0]+"s"); drain >= most {
		t.Errorf("systemd kills after %v s, and -drain is %v s", most, drain)
	}
	if lines["MemoryDenyWriteExecute"] != nil || lines["PrivateDevices"] != nil || lines["ProcSubset"] != nil {
		t.Error("the unit forbids what LibTorch or CUDA needs")
	}

	credentials := t.TempDir()
	token := "0123456789abcdef0123456789"
	must.Do(t, os.WriteFile(filepath.Join(credentials, "token"), []byte(token+"\n"), 0o600))
	args := command[1:]
	for i := range args {
		args[i] = strings.ReplaceAll(strings.ReplaceAll(args[i], "${CREDENTIALS_DIRECTORY}", credentials), "/srv/models", models)
	}
	cmd := exec.Command(filepath.Join(bundle, filepath.Base(command[0])), forTest(args)...)
	cmd.Env = []string{"STREAMTORCH_CACHE=" + t.TempDir()}
	s := start(t, cmd)
	s.classifies(t, token)
	for _, file := range s.mapped(t) {
		if !strings.HasPrefix(file, bundle+"/") && !glibc.MatchString(file) {
			t.Errorf("%s is mapped", file)
		}
	}
	s.stop(t)

	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze, so the unit's settings are not verified")
	}
	text := must.Get(os.ReadFile(folder + "streamtorch-serve.service"))(t)
	unit := filepath.Join(t.TempDir(), "streamtorch-serve.service")
	must.Do(t, os.WriteFile(unit, bytes.ReplaceAll(text, []byte(filepath.Dir(command[0])), []byte(bundle)), 0o666))
	out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), "streamtorch-serve") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
