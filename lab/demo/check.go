package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	"hairpin/lab"
)

// ErrFailed is what Check returns when it has printed failed cases.
var ErrFailed = errors.New("some traffic did not arrive as it must")

// Check runs the traffic matrix in a demo that runs, also one of another process, and prints the table. before is called
// between the rows and the last line, which is "N passed, N failed".
func Check(ctx context.Context, name string, slow int, out io.Writer, before func()) error {
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	o, err := objectsOf(ctx, l)
	if err != nil {
		return err
	}
	w, err := newWorld(l, o)
	if err != nil {
		return err
	}
	w.slow = slow
	t := &table{out: out}
	if err := w.run(ctx, Cases(), t.tell); err != nil {
		return err
	}
	if before != nil {
		before()
	}
	t.end()
	if t.failed > 0 {
		return ErrFailed
	}
	return nil
}

// objectsOf gives the present objects of a running demo.
func objectsOf(ctx context.Context, l *lab.Lab) (*objects, error) {
	manifests := filepath.Join(l.Dir(), "manifests")
	if _, err := os.Stat(manifests); err == nil {
		return readObjects(manifests)
	}
	client, err := Client(l)
	if err != nil {
		return nil, err
	}
	return fetchObjects(ctx, client)
}

// Client gives a client of the demo's Kubernetes API, as its administrator.
func Client(l *lab.Lab) (kubernetes.Interface, error) {
	server, err := lab.OpenAPIServer(l.APIServerDir())
	if err != nil {
		return nil, err
	}
	return clientOf(server)
}

// newWorld collects what is in the lab, and what its objects say.
func newWorld(l *lab.Lab, o *objects) (*world, error) {
	w := &world{endpoints: map[string]endpoint{}, nodes: map[string]nodeFacts{}, services: map[string]serviceFacts{}}
	for _, n := range l.Nodes() {
		w.endpoints[hostPlace(n.Name())] = endpoint{n.Host, plain(n.Addresses()), hostPort}
		for _, p := range n.Pods() {
			w.endpoints[p.Name()] = endpoint{p, p.IPs(), podPort}
		}
	}
	client := l.Host(clientName)
	if client == nil {
		return nil, fmt.Errorf("lab %s has no outside client: it is no demo", l.Name())
	}
	w.endpoints[clientName] = endpoint{client, plain(client.Addresses()), clientPort}
	for i := range o.nodes {
		f, err := factsOfNode(&o.nodes[i])
		if err != nil {
			return nil, err
		}
		w.nodes[o.nodes[i].Name] = f
	}
	for i := range o.services {
		f, err := factsOfService(&o.services[i])
		if err != nil {
			return nil, err
		}
		w.services[o.services[i].Name] = f
	}
	return w, nil
}

func plain(list []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, p := range list {
		out = append(out, p.Addr())
	}
	return out
}
