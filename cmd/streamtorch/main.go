// Streamtorch is the command for what stands around training: the installation, archives, and the
// machine.
//
//	streamtorch install                     # LibTorch and the compiled libraries, for this user
//	streamtorch list                        # what is installed
//	streamtorch verify                      # every file of it, read again
//	streamtorch remove                      # take it away
//	streamtorch doctor                      # this machine, on one page
//	streamtorch pack photos.tgz photos/     # a folder of images to an archive
//	streamtorch ls photos.tgz               # the members of an archive
//	streamtorch labels photos.tgz           # its classes and their numbers
//	streamtorch inspect photos.tgz          # every member that training could not use, and why
//	streamtorch convert in.pth out.safetensors
//	streamtorch bench photos.tgz            # images/s of the loader, and of training steps
//
// Without a clone it is `go run github.com/streamtorch/streamtorch/cmd/streamtorch@VERSION`. In a
// clone `make tools` builds it as build/bin/streamtorch. With CGO_ENABLED=0 it has the commands
// install, list, verify, remove, doctor and convert alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// A command is a part of the program. It returns the exit code.
type command struct {
	name, arguments, does string
	run                   func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

var commands = append([]command{
	{"install", "", "get LibTorch and the compiled libraries", runInstall},
	{"list", "", "list what is installed", runInstalled},
	{"verify", "", "check the files of what is installed", runVerify},
	{"remove", "", "remove what is installed", runRemove},
	{"doctor", "", "say what this machine has, on one page", runDoctor},
	{"convert", "IN OUT", "copy weights between .safetensors and .pth", runConvert},
}, withLibraries...)

const (
	done    = 0
	failed  = 1
	misused = 2 // the command line is wrong
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		for _, c := range commands {
			if c.name == args[0] {
				return c.run(ctx, args[1:], stdout, stderr)
			}
		}
	}
	help := len(args) == 1 && (args[0] == "help" || args[0] == "-h" || args[0] == "--help")
	to := stderr
	if help {
		to = stdout
	} else if len(args) > 0 {
		fmt.Fprintf(stderr, "streamtorch: there is no command %q\n", args[0])
	}
	fmt.Fprintln(to, "usage: streamtorch COMMAND ..., where COMMAND is one of")
	for _, c := range commands {
		fmt.Fprintf(to, "  %-8s %-10s %s\n", c.name, c.arguments, c.does)
	}
	fmt.Fprintln(to, "streamtorch COMMAND -h lists the flags of a command.")
	if help {
		return done
	}
	return misused
}

// parse parses the flags of a command. `code` is the exit code if the command must not go on.
func parse(flags *flag.FlagSet, usage string, args []string, stderr io.Writer, least, most int) (code int, ok bool) {
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: streamtorch %s %s\n", flags.Name(), usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return done, false
	} else if err != nil {
		return misused, false
	}
	if flags.NArg() < least || most >= 0 && flags.NArg() > most {
		flags.Usage()
		return misused, false
	}
	return done, true
}

func fail(stderr io.Writer, command string, err error) int {
	fmt.Fprintf(stderr, "streamtorch %s: %v\n", command, err)
	return failed
}
