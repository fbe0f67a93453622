package pth

// Object stands for a Python object of a class that this package does not build.
type Object struct {
	Class string // such as "argparse.Namespace"
}
