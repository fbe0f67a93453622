//go:build !bench

package main

import "errors"

func benchOp(*config, func(row)) error {
	return errors.New("this program was built without its C++ peers; build it with bench/build.sh")
}
