//go:build cgo

package main

import "github.com/streamtorch/streamtorch/imageloader/inspect"

// withLibraries are the commands that call the compiled libraries.
var withLibraries = []command{
	{"pack", "OUT IN...", "write folders of images to a .tgz or .tar", runPack},
	{"ls", "ARCHIVE", "list the members of an archive", runList},
	{"labels", "ARCHIVE", "list the classes of an archive with their numbers", runLabels},
	{"inspect", "ARCHIVE", "say which images are usable, and why others are not", inspect.Run},
	{"bench", "[ARCHIVE]", "measure the loader on an archive, and training steps", runBench},
}
