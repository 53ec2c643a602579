// Checks that Kubernetes would take the manifests of contrib/kubernetes, field by field.
//
// Each document is decoded strictly into the type that its apiVersion and kind name: an unknown
// field, a field that is there twice and a value of another type are errors. The program knows
// nothing of a cluster, and never opens a connection.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func check(decoder runtime.Decoder, file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for count := 0; ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return count, nil
		}
		if err != nil {
			return count, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		count++
		_, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return count, fmt.Errorf("%s: document %d: %w", file, count, err)
		}
		fmt.Println(file, kind.Kind)
	}
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	failed := false
	for _, file := range os.Args[1:] {
		count, err := check(decoder, file)
		if err == nil && count == 0 {
			err = fmt.Errorf("%s: no document", file)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed = true
		}
	}
	if failed || len(os.Args) < 2 {
		os.Exit(1)
	}
}
