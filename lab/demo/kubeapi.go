package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"hairpin/image"
	"hairpin/lab"
	"hairpin/lab/progress"
	"hairpin/watch"
)

// kubeAPI is the API server of a demo, with the controllers of Kubernetes. Hairpin's controller
// runs on the first node.
type kubeAPI struct {
	binary string
	client kubernetes.Interface // the administrator's
}

// Client returns a client of the demo's Kubernetes API, as its administrator.
func Client(l *lab.Lab) (kubernetes.Interface, error) {
	server, err := lab.OpenAPIServer(l.APIServerDir())
	if err != nil {
		return nil, err
	}
	return clientOf(server)
}

func clientOf(server *lab.APIServer) (kubernetes.Interface, error) {
	cfg, err := server.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return client, nil
}

func (a *kubeAPI) prepare(ctx context.Context, d *Demo) (err error) {
	return d.board.Each("Kubernetes "+lab.KubeVersion, func(s *progress.Step) error {
		a.binary, err = lab.BuildKube(ctx, image.DefaultDir, func(line string) { s.Say("%s", line) })
		return err
	})
}

func (a *kubeAPI) config() string { return "[kubernetes]\nkubeconfig = /etc/hairpin/kubeconfig\n" }

func (a *kubeAPI) join(*lab.Lab, *lab.NodeConfig) error { return nil }

// start starts the API server and creates the objects.
func (a *kubeAPI) start(ctx context.Context, d *Demo) error {
	p := netip.MustParsePrefix
	h, err := d.lab.StartHost(ctx, lab.HostConfig{Name: apiName,
		Addresses: []netip.Prefix{p("172.18.0.10/16"), p("fc00:f853:ccd::a/64")}})
	if err != nil {
		return err
	}
	d.say("Kubernetes API: starting")
	server, err := lab.StartAPIServer(ctx, lab.APIServerConfig{
		Binary: a.binary, Dir: d.lab.APIServerDir(), Address: h.Addresses()[0].Addr(), Netns: h.Netns(),
		DieWithCaller: d.opt.DieWithCaller,
	})
	if err != nil {
		return err
	}
	if a.client, err = clientOf(server); err != nil {
		return err
	}
	if err := d.objects.create(ctx, a.client); err != nil {
		return err
	}
	if err := a.define(ctx, d); err != nil {
		return err
	}
	d.say("Kubernetes API is ready at %s, with %d Nodes, %d Services, %d Pods", h.Addresses()[0].Addr(),
		len(d.objects.nodes), len(d.objects.services), len(d.objects.pods))
	return nil
}

const definitionPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// define installs the resource definitions, as the chart does.
func (a *kubeAPI) define(ctx context.Context, d *Demo) error {
	paths := map[string]string{"egressips.yaml": watch.EgressIPPath(),
		"egressservices.yaml": watch.EgressServicePath("default"), "loadbalancerpools.yaml": watch.PoolPath(),
		"bgpadvertisements.yaml": watch.AdvertisementPath()}
	for file := range paths {
		text, err := os.ReadFile(filepath.Join(d.opt.Objects, "../../charts/hairpin/crds", file))
		if err == nil {
			err = a.post(ctx, definitionPath, text)
		}
		if err != nil {
			return fmt.Errorf("definition %s: %w", file, err)
		}
	}
	for file, path := range paths { // the API server needs most of a second for each
		if err := d.wait(ctx, "objects of "+file+" can be created", func() (bool, error) {
			_, err := a.rest().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
			return err == nil, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// introduce configures a node's access to the API, and starts the controller on the first node.
func (a *kubeAPI) introduce(ctx context.Context, l *lab.Lab, n *lab.Node) error {
	server, err := lab.OpenAPIServer(l.APIServerDir())
	if err != nil {
		return err
	}
	kubeconfig, err := os.ReadFile(server.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	if err := n.WriteFile("/etc/hairpin/kubeconfig", string(kubeconfig)); err != nil ||
		n.Name() != l.Nodes()[0].Name() {
		return err
	}
	return n.StartDaemon(ctx, "hairpin-controller", "/usr/local/bin/hairpin", "controller", "--config-file="+
		agentConfig)
}

func (a *kubeAPI) runPod(ctx context.Context, n *lab.Node, pod *corev1.Pod,
	serve func(*lab.Pod) error) (*lab.Pod, error) {
	return n.RunPod(ctx, a.client, pod, serve)
}

func (a *kubeAPI) read(ctx context.Context) (*objects, error) { return fetchObjects(ctx, a.client) }

func (a *kubeAPI) rest() rest.Interface { return a.client.CoreV1().RESTClient() }

// post creates an object from a manifest, without its status.
func (a *kubeAPI) post(ctx context.Context, path string, manifest []byte) error {
	body, err := yaml.YAMLToJSON(manifest)
	if err != nil {
		return err
	}
	return a.rest().Post().AbsPath(path).SetHeader("Accept", "application/json").SetHeader("Content-Type",
		"application/json").Body(body).Do(ctx).Error()
}

// create leaves a Node's annotations and the status of EgressIPs to controllers and agents.
func (a *kubeAPI) create(ctx context.Context, o *object) error {
	path, err := o.path()
	if err != nil {
		return err
	}
	text, err := o.edited(func(fields map[string]any) {
		if o.Kind == "Node" {
			delete(fields["metadata"].(map[string]any), "annotations")
		}
	})
	if err != nil {
		return err
	}
	if err := a.post(ctx, path, text); o.Kind == "Namespace" && apierrors.IsAlreadyExists(err) {
		return nil // the API server creates "default" itself
	} else if err != nil {
		return fmt.Errorf("create %s %s: %w", o.Kind, o.Name, err)
	}
	// a Node's status can be written at once, as a kubelet does
	if len(o.Status) == 0 || o.Kind == "EgressIP" || o.Kind == "Node" {
		return nil
	}
	body, err := yaml.YAMLToJSON(text)
	if err == nil {
		err = a.rest().Patch(types.MergePatchType).AbsPath(path, o.Name, "status").SetHeader("Accept",
			"application/json").Body(body).Do(ctx).Error()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("status of %s %s: %w", o.Kind, o.Name, err), a.remove(ctx, o))
	}
	return nil
}

func (a *kubeAPI) remove(ctx context.Context, o *object) error {
	path, err := o.path()
	if err == nil {
		err = a.rest().Delete().AbsPath(path, o.Name).SetHeader("Accept", "application/json").Do(ctx).Error()
	}
	if o.Kind == "Namespace" && apierrors.IsForbidden(err) {
		return nil // "default" belongs to the API server, see create
	}
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", o.Kind, o.Name, err)
	}
	return nil
}

// path returns the API path of the object's kind.
func (o *object) path() (string, error) {
	space := o.Namespace
	if space == "" {
		space = metav1.NamespaceDefault
	}
	switch o.Kind {
	case "Namespace":
		return "/api/v1/namespaces", nil
	case "Node":
		return "/api/v1/nodes", nil
	case "Pod":
		return "/api/v1/namespaces/" + space + "/pods", nil
	case "Service":
		return "/api/v1/namespaces/" + space + "/services", nil
	case "EndpointSlice":
		return "/apis/discovery.k8s.io/v1/namespaces/" + space + "/endpointslices", nil
	case "NetworkPolicy":
		return "/apis/networking.k8s.io/v1/namespaces/" + space + "/networkpolicies", nil
	case "EgressIP":
		return watch.EgressIPPath(), nil
	case "EgressService":
		return watch.EgressServicePath(space), nil
	case "CustomResourceDefinition":
		return definitionPath, nil
	case "LoadBalancerPool":
		return watch.PoolPath(), nil
	case "BGPAdvertisement":
		return watch.AdvertisementPath(), nil
	case "FRRConfiguration":
		return watch.FRRConfigurationPath(space), nil
	}
	return "", fmt.Errorf("the demo makes no %s", o.Kind)
}

func (a *kubeAPI) set(ctx context.Context, kind, name string, in field, key string, value any) error {
	path, err := (&object{TypeMeta: metav1.TypeMeta{Kind: kind}}).path()
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[field]any{in: map[string]any{key: value}}})
	if err == nil {
		err = a.rest().Patch(types.MergePatchType).AbsPath(path, name).SetHeader("Accept",
			"application/json").Body(body).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("%s of %s %s: %w", in, kind, name, err)
	}
	return nil
}

// carriers returns the nodes in the status.
func (a *kubeAPI) carriers(ctx context.Context, _ *lab.Lab, name string) ([]carrier, error) {
	path := watch.EgressIPPath() + "/" + name
	if space, service, is := strings.Cut(name, "/"); is {
		path = watch.EgressServicePath(space) + "/" + service
	} else if name == lbPool {
		path = watch.PoolPath() + "/" + name
	}
	text, err := a.rest().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var e struct {
		Status struct {
			Items     []carrier
			Host      string
			Addresses []struct{ Address, Node string } // of a LoadBalancerPool
		}
	}
	if err = json.Unmarshal(text, &e); e.Status.Host != "" {
		return []carrier{{Node: e.Status.Host}}, err
	}
	for _, a := range e.Status.Addresses {
		e.Status.Items = append(e.Status.Items, carrier{Node: a.Node, EgressIP: a.Address})
	}
	return e.Status.Items, err
}
