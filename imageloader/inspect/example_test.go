package inspect_test

import (
	"context"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/imageloader/inspect"
)

// A folder of one image, and of a file that only has the name of one.
func ExampleRun() {
	folder, err := os.MkdirTemp("", "inspect")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	if err := os.Mkdir(filepath.Join(folder, "cat"), 0o755); err != nil {
		panic(err)
	}
	file, err := os.Create(filepath.Join(folder, "cat", "1.png"))
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if err := png.Encode(file, image.NewGray(image.Rect(0, 0, 3, 2))); err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "cat", "2.png"), []byte("text"), 0o644); err != nil {
		panic(err)
	}

	var report strings.Builder
	code := inspect.Run(context.Background(), []string{folder}, &report, os.Stderr)
	_, faults, _ := strings.Cut(report.String(), "\n1 of ")
	fmt.Print("1 of ", faults)
	fmt.Println("status", code)
	// Output:
	// 1 of 2 images cannot be used
	//   member 3 (cat/2.png): not an image (starts with "text")
	// status 1
}
