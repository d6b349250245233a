package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hairpin/cluster"
	"hairpin/lab"
)

// folder is a demo's folder of manifests, which the agents of all nodes follow. There is no
// controller: the manifests contain what it would write.
type folder struct{ dir string }

// manifestsOf returns the folder's path in a lab.
func manifestsOf(l *lab.Lab) string { return filepath.Join(l.Dir(), "manifests") }

// SetManifest writes a file of the folder that the agents of a lab follow; without text it removes
// it.
func SetManifest(l *lab.Lab, name, text string) error {
	file := filepath.Join(manifestsOf(l), name)
	if text == "" {
		return os.RemoveAll(file)
	}
	return replaceFile(file, []byte(text))
}

func (f *folder) prepare(context.Context, *Demo) error { return nil }

func (f *folder) config() string { return "[kubernetes]\nmanifests = /etc/hairpin/manifests\n" }

func (f *folder) join(l *lab.Lab, n *lab.NodeConfig) error {
	n.Binds["/etc/hairpin/manifests"] = manifestsOf(l)
	return os.MkdirAll(manifestsOf(l), 0o755)
}

// start copies the manifests, so that changes do not affect the sources.
func (f *folder) start(_ context.Context, d *Demo) error {
	f.dir = manifestsOf(d.lab)
	if err := os.CopyFS(f.dir, os.DirFS(d.opt.Objects)); err != nil {
		return fmt.Errorf("copy manifests: %w", err)
	}
	return nil
}

func (f *folder) introduce(context.Context, *lab.Lab, *lab.Node) error { return nil }

// runPod requires that the pod gets the addresses of its manifest.
func (f *folder) runPod(ctx context.Context, n *lab.Node, pod *corev1.Pod,
	serve func(*lab.Pod) error) (*lab.Pod, error) {
	p, err := n.AddPod(ctx, lab.PodConfig{Namespace: pod.Namespace, Name: pod.Name, UID: "demo-" + pod.Name})
	if err != nil {
		return nil, err
	}
	for _, want := range pod.Status.PodIPs {
		if ip, err := netip.ParseAddr(want.IP); err != nil || !slices.Contains(p.IPs(), ip) {
			return nil, fmt.Errorf("pod %s got %s, the manifests say %s", p.Name(), words(p.IPs()), want.IP)
		}
	}
	return p, serve(p)
}

func (f *folder) read(context.Context) (*objects, error) { return readObjects(f.dir) }

func (f *folder) file(o *object) string {
	return filepath.Join(f.dir, "made-"+o.Kind+"-"+o.Name+".yaml")
}

// create writes an object with a creation timestamp in seconds, as the API does.
func (f *folder) create(_ context.Context, o *object) error {
	text, err := o.edited(func(fields map[string]any) {
		fields["metadata"].(map[string]any)["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	})
	if err != nil {
		return err
	}
	return replaceFile(f.file(o), text)
}

func (f *folder) remove(_ context.Context, o *object) error { return os.Remove(f.file(o)) }

// replaceFile replaces a file in one step, because agents may read it at any time.
func replaceFile(file string, text []byte) error {
	if err := os.WriteFile(file+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// set changes the object's manifest. A folder needs no Namespaces, so set creates a missing one.
func (f *folder) set(ctx context.Context, kind, name string, in field, key string, value any) error {
	files, err := filepath.Glob(filepath.Join(f.dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var all [][]byte
		found := false
		for doc, err := range cluster.Documents(text) {
			var o *object
			if err == nil {
				o, err = parseObject(string(doc))
			}
			if err == nil && o.Kind == kind && o.Name == name {
				found = true
				doc, err = o.edited(func(fields map[string]any) {
					setIn(fields["metadata"].(map[string]any), in, key,
						value)
				})
			}
			if err != nil {
				return fmt.Errorf("%s of %s %s: %w", in, kind, name, err)
			}
			all = append(all, doc)
		}
		if found {
			return replaceFile(file, bytes.Join(all, []byte("\n---\n")))
		}
	}
	if kind == "Namespace" {
		o, err := parseObject(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s, %s: {%s: %q}}}", name,
			in, key, value))
		if err != nil {
			return err
		}
		return f.create(ctx, o)
	}
	return fmt.Errorf("%s of %s %s: no manifest has it", in, kind, name)
}

func setIn(metadata map[string]any, in field, key string, value any) {
	values, _ := metadata[string(in)].(map[string]any)
	if values == nil {
		values = map[string]any{}
	}
	if values[key] = value; value == nil {
		delete(values, key)
	}
	metadata[string(in)] = values
}

// carriers returns those that the agent of a node knows, because there is no status.
func (f *folder) carriers(ctx context.Context, l *lab.Lab, egressIP string) ([]carrier, error) {
	// The command fails if anything is unhealthy, but still prints the report.
	text, err := l.Node(EgressStays).Exec(ctx, "sh", "-c", "hairpin status -o json --config-file="+agentConfig+
		" || true")
	if err != nil {
		return nil, err
	}
	var report struct {
		Egress []struct{ EgressIP, Address, Node string }
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		return nil, fmt.Errorf("status of %s: %w", EgressStays, err)
	}
	var list []carrier
	for _, e := range report.Egress {
		if e.EgressIP == egressIP && e.Node != "" {
			list = append(list, carrier{e.Node, e.Address})
		}
	}
	return list, nil
}
