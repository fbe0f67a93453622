// Pt2go writes Go source of a model that torch.export.save has written.
//
//	pt2go resnet18.pt2                          # prints the source
//	pt2go -package resnet -o resnet model.pt2   # writes the files into the folder resnet
//
// The source is a module with the names of the Python model's state dict. The weights stay in the
// .pt2 file, or in a file of safetensors: nn.Load and checkpoint.LoadModel fill the module.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/gosource"
)

func main() {
	var o gosource.Options
	flag.StringVar(&o.Package, "package", "net", "the name of the package")
	flag.StringVar(&o.Model, "model", "", "the name of the program, if the file holds several")
	flag.BoolVar(&o.FreeEarly, "free", false, "close each tensor behind its last use: less memory, more lines")
	flag.Func("operators", "a library of operators that the program uses, such as torchvision/_C.so; it is run", cgotorch.OpenOperators)
	folder := flag.String("o", "", "the folder to write to; without it the source is printed")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: pt2go [-package NAME] [-model NAME] [-free] [-operators LIBRARY.so] [-o FOLDER] FILE.pt2")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *folder, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path, folder string, o gosource.Options) error {
	files, err := gosource.Generate(path, o)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if folder == "" {
			if strings.HasSuffix(name, ".go") {
				fmt.Printf("%s", files[name])
			}
			continue
		}
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, name), files[name], 0o666); err != nil {
			return err
		}
	}
	return nil
}
