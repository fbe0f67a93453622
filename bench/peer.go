package main

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// The program contains the scripts of the peers. A machine therefore needs only Python with
// PyTorch to run them.
//
//go:embed *.py
var scripts embed.FS

// peer is a process that answers one request at a time and is otherwise idle. It is Python, or
// this program if our side needs its own process.
type peer struct {
	versions string
	command  *exec.Cmd
	folder   string
	requests io.WriteCloser
	replies  *json.Decoder
}

// switches are process-wide settings of LibTorch. Both sides of a comparison use the same
// switches.
type switches struct {
	benchmark, tf32, deterministic bool
}

func (s switches) set() error {
	return errors.Join(cgotorch.SetCuDNNBenchmark(s.benchmark), cgotorch.SetTF32(s.tf32), cgotorch.SetDeterministic(s.deterministic))
}

func (s switches) String() string {
	word := map[bool]string{true: "on", false: "off"}
	return fmt.Sprintf("cuDNN benchmark %s, TF32 %s, deterministic %s", word[s.benchmark], word[s.tf32], word[s.deterministic])
}

// startPeer runs one of the embedded scripts. It sets the switches in the new process and in this
// one.
func (c *config) startPeer(script string, s switches, env ...string) (*peer, error) {
	if err := s.set(); err != nil {
		return nil, err
	}
	command, folder, err := c.script(script)
	p := &peer{folder: folder}
	if err == nil {
		err = p.start(c, command, s, env)
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("%s: %w; PEER_PYTHON is to be a Python that has PyTorch", script, err)
	}
	return p, nil
}

// script returns the command that runs one of the embedded scripts, and the folder that it lies in.
// The caller removes the folder, also after an error.
func (c *config) script(name string, arguments ...string) (command *exec.Cmd, folder string, err error) {
	if folder, err = os.MkdirTemp("", "bench-peer-"); err == nil {
		err = os.CopyFS(folder, scripts)
	}
	python := c.python
	if python == "" {
		python = "python3"
	}
	return c.process(python, append([]string{filepath.Join(folder, name)}, arguments...)...), folder, err
}

// startOwn runs this program with -serve and more variables. See answerRequests.
func (c *config) startOwn(env ...string) (*peer, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &peer{}
	if err := p.start(c, c.process(own, "-serve"), switches{}, env); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// process returns a process that may use all cores, or only c.core if that is set. All its threads
// and child processes inherit this limit.
func (c *config) process(program string, arguments ...string) *exec.Cmd {
	if c.core != "" {
		arguments, program = append([]string{"-c", c.core, program}, arguments...), "taskset"
	}
	return exec.Command(program, arguments...)
}

func (p *peer) start(c *config, command *exec.Cmd, s switches, env []string) error {
	p.command = command
	p.command.Env = append(append(os.Environ(), env...), "OMP_NUM_THREADS="+strconv.Itoa(c.threads), "PYTHONUNBUFFERED=1")
	p.command.Stderr = os.Stderr
	var err error
	if p.requests, err = p.command.StdinPipe(); err != nil {
		return err
	}
	replies, err := p.command.StdoutPipe()
	if err != nil {
		return err
	}
	p.replies = json.NewDecoder(replies)
	if err := p.command.Start(); err != nil {
		p.command = nil
		return err
	}
	var reply struct{ Versions string }
	err = p.do(&reply, "start", "threads", c.threads, "benchmark", s.benchmark, "tf32", s.tf32, "deterministic", s.deterministic)
	p.versions = reply.Versions
	return err
}

// do sends a request and waits for the reply. `arguments` holds a name, its value, the next name,
// its value, and so on.
func (p *peer) do(reply any, what string, arguments ...any) error {
	request := map[string]any{"do": what}
	for i := 0; i < len(arguments); i += 2 {
		request[arguments[i].(string)] = arguments[i+1]
	}
	if err := json.NewEncoder(p.requests).Encode(request); err != nil {
		return fmt.Errorf("%s: the peer has ended: %w", what, err)
	}
	var text json.RawMessage
	if err := p.replies.Decode(&text); err != nil {
		return fmt.Errorf("%s: the peer has ended: %w", what, err)
	}
	var failure struct{ Error string }
	if json.Unmarshal(text, &failure) == nil && failure.Error != "" {
		return fmt.Errorf("%s: %s", what, failure.Error)
	}
	if reply == nil {
		return nil
	}
	return json.Unmarshal(text, reply)
}

// value returns one side of a comparison. The side sends a request, and returns the number `name`
// of the reply.
func (p *peer) value(name, what string, arguments ...any) side {
	return func() (float64, error) {
		reply := map[string]any{}
		if err := p.do(&reply, what, arguments...); err != nil {
			return 0, err
		}
		v, ok := reply[name].(float64)
		if !ok {
			return 0, fmt.Errorf("%s: the peer's reply has no %s", what, name)
		}
		return v, nil
	}
}

// close ends the process and waits for its end.
func (p *peer) close() {
	if p.command != nil {
		p.requests.Close()
		p.command.Wait()
	}
	if p.folder != "" {
		os.RemoveAll(p.folder)
	}
}
