package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hairpin/watch"
)

// object is a manifest's, with what is needed to make it.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            map[string]any `json:"status"`
}

// path is where the API has the object's kind.
func (o *object) path() (string, error) {
	space := o.Namespace
	if space == "" {
		space = metav1.NamespaceDefault
	}
	switch o.Kind {
	case "Service":
		return "/api/v1/namespaces/" + space + "/services", nil
	case "EndpointSlice":
		return "/apis/discovery.k8s.io/v1/namespaces/" + space + "/endpointslices", nil
	case "NetworkPolicy":
		return "/apis/networking.k8s.io/v1/namespaces/" + space + "/networkpolicies", nil
	case "EgressIP":
		return watch.EgressIPPath(), nil
	}
	return "", fmt.Errorf("no attack makes a %s", o.Kind)
}

// put creates an object of a manifest, its status included, as somebody who may create such objects. What it returns removes
// the object again. Agents need a moment: an attack that makes objects makes an honest one last, and waits until that works.
func (w *world) put(ctx context.Context, manifest string) (remove func() error, err error) {
	var o object
	if err := yaml.Unmarshal([]byte(manifest), &o); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if w.client == nil {
		return w.putFile(&o, manifest)
	}
	path, err := o.path()
	if err != nil {
		return nil, err
	}
	body, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		return nil, err
	}
	rest := w.client.CoreV1().RESTClient()
	const kind, json = "Content-Type", "application/json"
	if err := rest.Post().AbsPath(path).SetHeader("Accept", json).SetHeader(kind, json).Body(body).Do(ctx).Error(); err != nil {
		return nil, fmt.Errorf("create %s %s: %w", o.Kind, o.Name, err)
	}
	remove = func() error {
		return rest.Delete().AbsPath(path, o.Name).SetHeader("Accept", json).Do(context.WithoutCancel(ctx)).Error()
	}
	if len(o.Status) > 0 {
		err := rest.Patch("application/merge-patch+json").AbsPath(path, o.Name, "status").SetHeader("Accept", json).Body(body).Do(ctx).Error()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("status of %s %s: %w", o.Kind, o.Name, err), remove())
		}
	}
	return remove, nil
}

// putFile is put without an API: agents read the folder of manifests.
func (w *world) putFile(o *object, manifest string) (remove func() error, err error) {
	file := filepath.Join(manifestsOf(w.lab), "attack-"+o.Kind+"-"+o.Name+".yaml")
	if err := os.WriteFile(file+".new", []byte(manifest), 0o644); err != nil {
		return nil, err
	}
	return func() error { return os.Remove(file) }, os.Rename(file+".new", file)
}

// until waits for a condition; its error says why it does not hold.
func (w *world) until(ctx context.Context, what string, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, w.longer(20*time.Second))
	defer cancel()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tick waits until what is made next is younger than what was made before: the API counts seconds.
func (w *world) tick(ctx context.Context) error {
	before := time.Now().Unix()
	return w.until(ctx, "another second", func() error {
		if time.Now().Unix() == before {
			return errors.New("it is still the same")
		}
		return nil
	})
}

// putAll puts several objects, in their order, and removes them in reverse.
func (w *world) putAll(ctx context.Context, manifests ...string) (remove func() error, err error) {
	var undo []func() error
	remove = func() error {
		var errs []error
		for _, u := range slices.Backward(undo) {
			errs = append(errs, u())
		}
		undo = nil
		return errors.Join(errs...)
	}
	for _, m := range manifests {
		u, err := w.put(ctx, m)
		if err != nil {
			return nil, errors.Join(err, remove())
		}
		undo = append(undo, u)
	}
	return remove, nil
}
