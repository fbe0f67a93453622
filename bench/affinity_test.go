package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestOnOneCore_OfAChild(t *testing.T) {
	var before, after cores
	if err := affinity(syscall.SYS_SCHED_GETAFFINITY, &before); err != nil {
		t.Fatal(err)
	}
	err := onOneCore(func() error {
		nproc := exec.Command("nproc")
		nproc.Env = []string{"PATH=" + os.Getenv("PATH")} // without OMP_NUM_THREADS, because nproc prints its value if it is set
		out, err := nproc.Output()
		if got := strings.TrimSpace(string(out)); got != "1" {
			t.Errorf("the child may use %s cores, want 1", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := affinity(syscall.SYS_SCHED_GETAFFINITY, &after); err != nil || after != before {
		t.Errorf("afterwards %x, %v; want %x", after, err, before)
	}
}

func TestCores_Last(t *testing.T) {
	if got, want := (cores{0b1011, 0b0110}).last(), (cores{0, 0b0100}); got != want {
		t.Errorf("got %x, want %x", got, want)
	}
}
