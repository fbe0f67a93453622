package main

import "os"

// lock locks nothing: LibTorch runs on Linux, so that no run gets beyond its start here.
func lock(*os.File) (held bool) { return false }
