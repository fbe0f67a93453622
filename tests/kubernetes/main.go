// Kubernetes reads a file of manifests with the types of Kubernetes itself, and prints them as one
// JSON array. It fails if a field is unknown, given twice or of another type. It is a module of its
// own, so that the modules of Kubernetes are not among those of the library.
//
//	go run . ../../examples/serve/deploy/kubernetes.yaml
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	stream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "kubernetes: name one file of manifests")
		os.Exit(2)
	}
	objects, err := read(os.Args[1])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(objects)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kubernetes: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// read returns the objects of a file.
func read(path string) (objects []any, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for documents := stream.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, err := decode(document)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", len(objects)+1, err)
		}
		objects = append(objects, object)
	}
}

// decode returns the object of one document.
func decode(document []byte) (any, error) {
	var kind meta.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, err
	}
	var object any
	switch kind.GroupVersionKind() {
	case apps.SchemeGroupVersion.WithKind("Deployment"):
		object = new(apps.Deployment)
	case core.SchemeGroupVersion.WithKind("Service"):
		object = new(core.Service)
	case pyTorchJobKind:
		object = new(pyTorchJob)
	default:
		return nil, fmt.Errorf("this program does not know %v", kind.GroupVersionKind())
	}
	return object, yaml.UnmarshalStrict(document, object)
}
