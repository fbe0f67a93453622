package distributed

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// twoMachines makes two network namespaces that a pair of interfaces joins. It returns their names
// and the address of the first one. It skips the test where that is not allowed.
func twoMachines(t *testing.T) (names [2]string, address string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	id := os.Getpid() % 100000
	names = [2]string{fmt.Sprint("distributed", id, "a"), fmt.Sprint("distributed", id, "b")}
	run := func(line string) {
		t.Helper()
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v: %s", line, err, out)
		}
	}
	for _, name := range names {
		run("netns add " + name)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	}
	run(fmt.Sprintf("link add veth0 netns %s type veth peer name veth0 netns %s", names[0], names[1]))
	for i, name := range names {
		run(fmt.Sprintf("-n %s addr add 10.99.24.%d/24 dev veth0", name, i+1))
		run(fmt.Sprintf("-n %s link set veth0 up", name))
		run(fmt.Sprintf("-n %s link set lo up", name))
	}
	return names, "10.99.24.1"
}

// When the network between two machines is lost, the ranks on both end within the bound. Two
// network namespaces stand for the machines.
func TestProcesses_NetworkDrops(t *testing.T) {
	names, address := twoMachines(t)
	const timeout = 3 * time.Second
	var ranks []*process
	for i, name := range names {
		env := rankEnv(29500, i, 2)
		env[2] = "MASTER_ADDR=" + address
		p := newRank("train", timeout, env...)
		p.Path, p.Err = exec.LookPath("ip")
		p.Args = []string{"ip", "netns", "exec", name, os.Args[0]}
		p.start(t)
		ranks = append(ranks, p)
	}
	ranks[1].until(t, fmt.Sprint("step ", oddStep))
	if out, err := exec.Command("ip", "-n", names[1], "link", "set", "veth0", "down").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	began := time.Now()
	expect(t, 0, ranks[0].await(t, bound(timeout)), "error: ", "rank 1 (", "Gradients(float32[32 32]", "process_test.go:")
	expect(t, 1, ranks[1].await(t, bound(timeout)), "error: ", "rank 0", "Gradients(float32[32 32]", "process_test.go:")
	t.Logf("ended after %v", time.Since(began).Round(10*time.Millisecond))
}

// What strangers send to all ports of the ranks disturbs nobody.
func TestProcesses_StrangersAtRanks(t *testing.T) {
	ranks := startRanks(t, "train", 2, 5*time.Second)
	ranks[0].until(t, "step 3")
	ports := map[string]bool{}
	for _, p := range ranks {
		for _, port := range listening(t, p.Process.Pid) {
			ports[port] = true
		}
	}
	if len(ports) < 3 { // the store, and Gloo of two ranks
		t.Fatalf("the ranks listen on the ports %v", ports)
	}
	var all sync.WaitGroup
	for port := range ports {
		for _, bytes := range []string{"", "x", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\x00", 8), strings.Repeat("\x00", 1<<16), strings.Repeat("\xff", 1<<16), "\x01\x00\x00\x00\x00\x00\x00\x00" + strings.Repeat("\x01", 100)} {
			all.Add(1)
			go func() {
				defer all.Done()
				for range 3 {
					c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
					if err != nil {
						return
					}
					io.WriteString(c, bytes)
					c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
					io.Copy(io.Discard, c)
					c.Close()
				}
			}()
		}
	}
	all.Wait()
	t.Logf("strangers came to %d ports", len(ports))
	for _, p := range ranks {
		for len(p.lines) > 0 {
			<-p.lines
		}
		for range 10 {
			select {
			case <-p.lines:
			case <-p.ended:
				t.Fatalf("a rank has ended: %s", p.last)
			case <-time.After(10 * time.Second):
				t.Fatalf("the training stands still: %s", p.last)
			}
		}
	}
}

// listening returns the TCP ports on which a process listens.
func listening(t *testing.T, pid int) (ports []string) {
	t.Helper()
	sockets := map[string]bool{}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Skip("no /proc here: ", err)
	}
	for _, f := range files {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, f.Name()))
		if inode, ok := strings.CutPrefix(to, "socket:["); ok {
			sockets[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && sockets[f[9]] {
				var port int
				fmt.Sscanf(f[1][strings.LastIndex(f[1], ":")+1:], "%x", &port)
				ports = append(ports, fmt.Sprint(port))
			}
		}
	}
	return ports
}
