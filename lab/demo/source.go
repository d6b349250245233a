package demo

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hairpin/lab"
)

// Kubernetes is the value of Options.API for a demo with a Kubernetes API server.
const Kubernetes = "kubernetes"

// source holds a demo's objects: agents read them there, and the demo creates, changes and deletes
// them there. It is a folder of manifests, or the Kubernetes API.
type source interface {
	// prepare builds or downloads what takes minutes the first time.
	prepare(ctx context.Context, d *Demo) error
	// config returns the section [kubernetes] of the agents' configuration.
	config() string
	// join configures a node that is about to start, so that its agent can read the source.
	join(l *lab.Lab, n *lab.NodeConfig) error
	// start creates the objects of the demo, while its nodes start.
	start(ctx context.Context, d *Demo) error
	// introduce configures on a running node the rest that its agent needs.
	introduce(ctx context.Context, l *lab.Lab, n *lab.Node) error
	// runPod connects a pod and, when serve has returned, makes it an endpoint.
	runPod(ctx context.Context, n *lab.Node, pod *corev1.Pod, serve func(*lab.Pod) error) (*lab.Pod, error)
	// read returns the current objects.
	read(ctx context.Context) (*objects, error)
	// create creates an object from a manifest, with its status; remove deletes it.
	create(ctx context.Context, o *object) error
	remove(ctx context.Context, o *object) error
	// set sets a label or an annotation of an object; a value of nil removes it.
	set(ctx context.Context, kind, name string, in field, key string, value any) error
	// carriers returns the nodes that have the addresses of an EgressIP, or of an EgressService,
	// "default/web".
	carriers(ctx context.Context, l *lab.Lab, name string) ([]carrier, error)
}

// field is the part of an object's metadata that source.set changes.
type field string

const (
	labelsField      field = "labels"
	annotationsField field = "annotations"
)

// carrier is a node that has an egress address.
type carrier struct{ Node, EgressIP string }

// newSource returns the source of a demo that is about to start.
func newSource(api string) (source, error) {
	switch api {
	case "":
		return &folder{}, nil
	case Kubernetes:
		return &kubeAPI{}, nil
	}
	return nil, fmt.Errorf("API %q: there is %s, or none", api, Kubernetes)
}

// sourceOf returns the source of a running demo.
func sourceOf(l *lab.Lab) (source, error) {
	if dir := manifestsOf(l); isThere(dir) {
		return &folder{dir}, nil
	}
	client, err := Client(l)
	if err != nil {
		return nil, err
	}
	return &kubeAPI{client: client}, nil
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// object is an object of a manifest.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            map[string]any `json:"status"`

	manifest string
}

func parseObject(manifest string) (*object, error) {
	o := &object{manifest: manifest}
	if err := yaml.Unmarshal([]byte(manifest), o); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return o, nil
}

// edited returns the manifest after a change.
func (o *object) edited(change func(fields map[string]any)) ([]byte, error) {
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(o.manifest), &fields); err != nil {
		return nil, fmt.Errorf("manifest of %s %s: %w", o.Kind, o.Name, err)
	}
	change(fields)
	return yaml.Marshal(fields)
}
