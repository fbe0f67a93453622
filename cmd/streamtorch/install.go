package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/streamtorch/streamtorch/internal/install"
	"github.com/streamtorch/streamtorch/internal/library"
)

// runInstall gets what programs of this version of the module need. It downloads LibTorch if the
// machine has none, and the libraries, or compiles them.
func runInstall(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	in := install.Installer{Lock: install.Locked(), Out: install.NewPrinter(stdout)}
	prefix := prefixFlag(flags)
	flags.StringVar(&in.From, "from", "", "folder or URL of the prebuilt libraries; empty: the release of this version")
	flags.StringVar(&in.Version, "libtorch", "", "release of LibTorch, such as 2.11.0; empty: one that is there, or "+install.Default)
	flags.StringVar(&in.Index, "index", "", "package index of LibTorch's wheels; empty: that of pip's configuration, or PyPI")
	cpu := flags.Bool("cpu", false, "without the CUDA libraries, also on a machine with a driver")
	cuda := flags.Bool("cuda", false, "with the CUDA libraries, also on a machine without a driver")
	loader := flags.Bool("loader", false, "the library of imageloader alone, which needs no LibTorch")
	flags.BoolVar(&in.Compile, "compile", false, "compile the libraries, even if there is a release")
	list := flags.Bool("list", false, "list what is installed, as the command list")
	verify := flags.Bool("verify", false, "check what is installed, as the command verify")
	remove := flags.Bool("remove", false, "remove what is installed, as the command remove")
	if code, ok := parse(flags, "[flags]", args, stderr, 0, 0); !ok {
		return code
	}
	in.Root, in.Shared = *prefix, *prefix != ""
	err := errors.Join(
		one(flags, "cpu", "cuda"), one(flags, "list", "verify", "remove"),
		source("index", in.Index, "a URL that begins with https:// or http://", false),
		source("from", in.From, "a URL that begins with https:// or http://, or the path of a folder", true),
	)
	if err != nil {
		fail(stderr, "install", err)
		return misused
	}
	switch {
	case *list:
		err = in.List(stdout)
	case *verify:
		err = in.Verify(ctx, stdout)
	case *remove:
		err = in.Remove(ctx, stdout)
	default:
		if in.CUDA = *cuda; !*cpu && !*cuda {
			in.CUDA, err = install.HasDriver()
		}
		if err == nil {
			err = in.Install(ctx, *loader)
		}
		if err == nil && in.Shared && in.Root != library.SystemRoot {
			in.Out.Line("programs look there with STREAMTORCH_LIB=%s in their environment", in.Root)
		}
	}
	if err != nil {
		return fail(stderr, "install", err)
	}
	return done
}

// one fails if more than one of the named flags is true.
func one(flags *flag.FlagSet, names ...string) error {
	var given []string
	for _, name := range names {
		if flags.Lookup(name).Value.String() == "true" {
			given = append(given, "-"+name)
		}
	}
	if len(given) > 1 {
		return fmt.Errorf("%s exclude each other: give one", strings.Join(given, " and "))
	}
	return nil
}

// source fails if the value of a flag is no URL. It may be empty, and with folder it may be a path.
func source(name, value, allowed string, folder bool) error {
	u, err := url.Parse(value)
	isURL := err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != ""
	isPath := folder && !strings.Contains(value, "://") && !strings.HasPrefix(value, "~") // a ~ that no shell has replaced
	if value == "" || isURL || isPath {
		return nil
	}
	return fmt.Errorf("-%s %s: give %s", name, value, allowed)
}

func prefixFlag(flags *flag.FlagSet) *string {
	return flags.String("prefix", "", "folder for all users of the machine, "+library.SystemRoot+" by custom; empty: this user's cache")
}

// installed runs a command on what is installed.
func installed(name string, do func(*install.Installer, io.Writer) error, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	prefix := prefixFlag(flags)
	if code, ok := parse(flags, "[flags]", args, stderr, 0, 0); !ok {
		return code
	}
	in := install.Installer{Lock: install.Locked(), Root: *prefix, Shared: *prefix != "", Out: install.NewPrinter(stderr)}
	if err := do(&in, stdout); err != nil {
		return fail(stderr, name, err)
	}
	return done
}

func runInstalled(_ context.Context, args []string, stdout, stderr io.Writer) int {
	return installed("list", (*install.Installer).List, args, stdout, stderr)
}

func runVerify(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return installed("verify", func(in *install.Installer, to io.Writer) error { return in.Verify(ctx, to) }, args, stdout, stderr)
}

func runRemove(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return installed("remove", func(in *install.Installer, to io.Writer) error { return in.Remove(ctx, to) }, args, stdout, stderr)
}
