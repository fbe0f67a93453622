package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// crowded opens the library that its argument names, and then ours.
const crowded = `package main

// #include <dlfcn.h>
import "C"

import (
	"fmt"
	"os"

	"github.com/streamtorch/streamtorch/cgotorch"
)

func main() {
	if C.dlopen(C.CString(os.Args[1]), C.RTLD_NOW) == nil {
		fmt.Println("the other library: ", C.GoString(C.dlerror()))
		os.Exit(2)
	}
	err := cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error { x.Ones(cgotorch.Float32, 2); return nil })
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
`

// libgomp and libcgotorch.so need 288 bytes of the memory that glibc sets aside for the thread
// variables of libraries that are opened late: some 1,700 bytes. On arm64 libc10 needs 353 more.
// Another library may have used 900 of them. When it has used nearly all, the error has a cure, and
// the cure works.
func TestOpen_StaticTLS(t *testing.T) {
	clone := must.Get(filepath.Abs("../.."))(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	must.Do(t, os.WriteFile(program+".go", []byte(crowded), 0o666))
	execute(t, clone, nil, "go", "build", "-o", program, program+".go")
	run := func(bytes int, env ...string) (string, error) {
		other := filepath.Join(dir, fmt.Sprint("libother", bytes, ".so"))
		text := fmt.Sprintf("__attribute__((tls_model(\"initial-exec\"))) __thread char used[%d]; char* get(void) { return used; }", bytes)
		must.Do(t, os.WriteFile(other+".c", []byte(text), 0o666))
		execute(t, dir, nil, "gcc", "-shared", "-fPIC", "-o", other, other+".c")
		cmd := exec.Command(program, other)
		cmd.Env = append(os.Environ(), append(env, "STREAMTORCH_LIB="+filepath.Join(clone, "build/lib"))...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(900); err != nil {
		t.Errorf("after 900 bytes of another library: %v: %s", err, out)
	}
	const setting = "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384"
	for bytes := 4000; bytes > 1000; bytes -= 50 {
		out, err := run(bytes)
		if strings.Contains(out, "the other library") { // it does not fit by itself
			continue
		}
		if err == nil || !strings.Contains(out, setting) || strings.Count(out, "\n") != 1 {
			t.Errorf("after %d bytes of another library: %v: %q, want one line with %s", bytes, err, out, setting)
		}
		if out, err := run(bytes, setting); err != nil {
			t.Errorf("%s: %v: %s", setting, err, out)
		}
		t.Logf("after %d bytes of another library: %s", bytes, out)
		return
	}
	t.Error("no other library fits")
}
