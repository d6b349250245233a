package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"iter"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Documents yields the YAML documents of a file of manifests, which lines of `---` separate. It
// ends after an error.
func Documents(text []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
			doc, err := r.Read()
			if errors.Is(err, io.EOF) || !yield(doc, err) || err != nil {
				return
			}
		}
	}
}
