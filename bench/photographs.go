package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// benchPhotographs trains ResNet-50 on a real archive, repeated so that an epoch has many steps, in this program beside PyTorch, and
// then by examples/train.
func benchPhotographs(c *config, emit func(row)) error {
	return c.withPhotographs(imagenet, func(all photographs, folder string) error {
		archive := filepath.Join(folder, "repeated.tgz")
		times := c.or(1, 8) // 2,400 images, 257 MB: what the loader's shuffle buffer holds by default
		if err := all.writeTgz(archive, times*len(all)); err != nil {
			return err
		}
		if err := benchTrain(c, imagenet, archive, c.roundsOr(5), emit); err != nil {
			return err
		}
		return examplesTrain(c, archive, times, folder, emit)
	})
}

// examplesTrain runs the program examples/train and reports what its last line says.
func examplesTrain(c *config, archive string, times int, folder string, emit func(row)) error {
	program, err := exampleProgram("train")
	if err != nil {
		return err
	}
	epochs := c.or(1, 10)
	model, lr := imagenet.model, imagenet.lr
	if c.brief {
		model, lr = "mlp", 1e-3
	}
	arguments := []string{
		"-data", archive, "-train-part", imagenet.train, "-test-part", "", "-model", model, "-lr", fmt.Sprint(lr), "-device", c.device.String(),
		"-batch", strconv.Itoa(c.or(2, imagenet.batch)), "-epochs", strconv.Itoa(epochs), "-out", folder,
	}
	if c.device.IsCUDA() {
		arguments = append(arguments, "-dtype", imagenet.autocast.String())
	}
	command := exec.Command(program, arguments...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var last struct {
		ImagesPerSecond float64 `json:"images_per_second"`
		DataWaitShare   float64 `json:"data_wait_share"`
		TrainLoss       float64 `json:"train_loss"`
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		return fmt.Errorf("%s: its last line is no JSON: %w", program, err)
	}
	note := fmt.Sprintf("%s -epochs %d on %s %d times over; the first epoch with cuDNN's trials; train loss at the end %.3f; LibTorch %s",
		filepath.Base(program), epochs, imagenet.archive, times, last.TrainLoss, cgotorch.LibTorchVersion())
	emit(alone("train/imagenet/examples-train/images-per-second", last.ImagesPerSecond, "images/s", note))
	emit(alone("train/imagenet/examples-train/data-wait-share", last.DataWaitShare, "share of the training time", note))
	return nil
}

// exampleProgram is beside this one, in build/bin and in a gpu-bundle alike.
func exampleProgram(name string) (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(own), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is missing: run make train once, or go build -o %s ./examples/%s", path, path, name)
	}
	return path, nil
}
