// Inspect reads an archive of labelled images in the way that a loader does, and prints its
// contents. It prints classes, images and sizes. It also prints each member that training could
// not use, and why.
//
//	inspect ARCHIVE         # a .tgz, .tar.gz, .tar or directory: CLASS/FILE or SPLIT/CLASS/FILE
//	inspect -json ARCHIVE   # the same as one JSON object
//
// The exit code is 0 if all images are usable, and 1 if some are not. It is 2 if no image is
// usable, if the archive cannot be read, or if the command line is wrong.
package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/streamtorch/streamtorch/imageloader/inspect"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(inspect.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
