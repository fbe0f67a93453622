// Serve answers HTTP requests with a model that examples/train has trained.
//
//	go run ./examples/serve -checkpoint runs/train/checkpoint.safetensors
//	curl --data-binary @cat.jpg http://localhost:8080/classify
//
// The body of a request is a picture. The answer is a JSON list of the most probable classes.
// Requests that come while the device computes are computed together, in one batch. On a GPU there
// is a CUDA graph of the model for each batch size.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

func main() {
	path := flag.String("checkpoint", filepath.Join("runs", "train", "checkpoint.safetensors"), "what examples/train has saved")
	address := flag.String("listen", "localhost:8080", "host and port; port 0 takes a free one")
	device := flag.String("device", "auto", "auto, cpu, cuda or cuda:N")
	batch := flag.Int("batch", 32, "largest number of pictures that the device computes together")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := listen(ctx, *path, *address, *device, *batch); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

// listen answers requests until ctx ends. It still answers requests that have begun, for at most
// 10 seconds.
func listen(ctx context.Context, path, address, device string, batch int) error {
	sizes := []int{batch}
	for n := 1; n < batch; n *= 2 {
		sizes = append(sizes, n)
	}
	c, err := newClassifier(path, device, sizes)
	if err != nil {
		return err
	}
	defer c.close()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	routes := http.NewServeMux()
	routes.Handle("POST /classify", c)
	server := &http.Server{Handler: routes, ReadTimeout: time.Minute}
	fmt.Printf("listening on http://%v/classify\n", listener.Addr())

	stopped := make(chan error)
	go func() {
		<-ctx.Done()
		deadline, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(deadline)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

const maxBytes = 32 << 20 // largest size of a picture

func (c *classifier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	picture, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	answers, err := c.classify(r.Context(), picture)
	var bad *decode.Error
	switch {
	case errors.As(err, &bad):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	case errors.Is(err, serve.ErrQueueFull):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answers) // an error means that the client is gone
}
