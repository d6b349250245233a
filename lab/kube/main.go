// Command hairpin-kube is the lab's Kubernetes: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler of one Kubernetes release in one process, without a kubelet and without any file
// outside --dir. As "hairpin-kube kubelet" and "hairpin-kube kubectl" it is these two (see runAs).
//
// It lives in a Go module of its own so that the product's go.mod stays small. The lab builds it
// once and keeps it in its cache (see BuildKube in hairpin/lab).
//
// When the API answers and Pods can be created in the default namespace, it prints one line,
// "ready", on stdout; its log is on stderr. SIGTERM or SIGINT ends it. What is in --dir survives: a
// second start with the same
// --dir continues with the same objects, certificates and tokens.
package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// stopTimeout bounds the shutdown after a signal. Past it the process just exits: etcd's log has
// been written to the page cache by then, so nothing that a client was told is lost.
const stopTimeout = 2 * time.Second

// config is what the command line says.
type config struct {
	dir          string         // etcd data, certificates, tokens, kubeconfigs
	address      netip.Addr     // advertised to clients and to the service "kubernetes"; must be on an interface
	port         uint16         // secure port of the API server
	serviceCIDRs []netip.Prefix // one, or one of each family
	clusterCIDRs []netip.Prefix // one, or one of each family; cut into spec.podCIDRs of Nodes
	nodeMaskV4   int            // bits of a Node's IPv4 pod CIDR
	nodeMaskV6   int            // bits of a Node's IPv6 pod CIDR
	controllers  []string       // as kube-controller-manager --controllers
	nodes        []string       // Nodes that get a kubelet's identity
	kubelets     bool           // Nodes have kubelets, so one whose lease grows old is dead
	untilEOF     bool           // stop when stdin closes
}

func main() {
	if code, ran := runAs(os.Args); ran {
		os.Exit(code)
	}
	cfg, err := parseFlags(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "hairpin-kube:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if cfg.untilEOF {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // an error ends it as EOF does
			stop()
		}()
	}
	context.AfterFunc(ctx, func() {
		time.AfterFunc(stopTimeout, func() {
			fmt.Fprintf(os.Stderr, "hairpin-kube: not everything stopped within %s, exiting\n", stopTimeout)
			os.Exit(0)
		})
	})
	if err := run(ctx, cfg, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "hairpin-kube:", err)
		os.Exit(1)
	}
}

// parseFlags reads and checks the command line.
func parseFlags(args []string) (config, error) {
	fs := pflag.NewFlagSet("hairpin-kube", pflag.ContinueOnError)
	dir := fs.String("dir", "", "directory for etcd's data, certificates, tokens and kubeconfigs; made when missing")
	address := fs.IP("address", nil, "IP address to advertise, on an interface of this network namespace, not loopback")
	port := fs.Uint16("port", 6443, "secure port, on every address of this network namespace")
	services := fs.StringSlice("service-cidrs", []string{"10.96.0.0/16", "fd00:10:96::/112"},
		"ranges of cluster IPs, the primary family first")
	cluster := fs.StringSlice("cluster-cidrs", []string{"10.244.0.0/16", "fd00:10:244::/48"},
		"ranges of pod IPs, the primary family first")
	v4 := fs.Int("node-mask-size-v4", 24, "prefix length of each Node's IPv4 pod range, in bits")
	v6 := fs.Int("node-mask-size-v6", 64, "prefix length of each Node's IPv6 pod range, in bits")
	controllers := fs.StringSlice("controllers", defaultControllers(),
		"controllers to run, as --controllers of kube-controller-manager")
	nodes := fs.StringSlice("nodes", nil, "Nodes for which a token of a kubelet and DIR/node-NAME.kubeconfig are made")
	kubelets := fs.Bool("kubelets", false, "every Node has a kubelet: one that is not heard of for 40 s is not ready")
	untilEOF := fs.Bool("until-stdin-closes", false, "stop when stdin closes, that is, when the parent is gone")
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	cfg := config{dir: *dir, port: *port, nodeMaskV4: *v4, nodeMaskV6: *v6, controllers: *controllers, nodes: *nodes,
		kubelets: *kubelets, untilEOF: *untilEOF}
	if cfg.dir == "" {
		return config{}, fmt.Errorf("--dir is required")
	}
	if fs.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	addr, ok := netip.AddrFromSlice(*address)
	if !ok {
		return config{}, fmt.Errorf("--address is required")
	}
	cfg.address = addr.Unmap()
	if cfg.address.IsLoopback() || cfg.address.IsUnspecified() {
		return config{}, fmt.Errorf("--address %s: the API server cannot advertise a loopback or unspecified address",
			cfg.address)
	}
	var err error
	if cfg.serviceCIDRs, err = parsePrefixes(*services); err != nil {
		return config{}, fmt.Errorf("--service-cidrs: %w", err)
	}
	if cfg.clusterCIDRs, err = parsePrefixes(*cluster); err != nil {
		return config{}, fmt.Errorf("--cluster-cidrs: %w", err)
	}
	return cfg, nil
}

// parsePrefixes parses one prefix, or two of different families.
func parsePrefixes(words []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, w := range words {
		p, err := netip.ParsePrefix(w)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	switch {
	case len(out) == 1:
	case len(out) == 2 && out[0].Addr().Is4() != out[1].Addr().Is4():
	default:
		return nil, fmt.Errorf("want one range, or one of each IP family, have %d: %v", len(out), words)
	}
	return out, nil
}

// run starts everything, in the order in which one part needs another, and stops it in reverse.
func run(ctx context.Context, cfg config, stdout io.Writer) error {
	paths, err := writeState(cfg)
	if err != nil {
		return fmt.Errorf("preparing %s: %w", cfg.dir, err)
	}
	store, err := startStore(ctx, paths.etcd)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	defer store.Close()

	parts, err := newParts(cfg, paths, store.endpoint)
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	server := launch(ctx, "kube-apiserver", parts.apiServer, failed)
	defer server.stop()
	client, err := waitServer(ctx, paths.adminKubeconfig, failed)
	if err != nil {
		return stopped(ctx, err)
	}
	// Only now, because the controller manager exits when the API server does not answer in its
	// first ten seconds.
	controllers := launch(ctx, "kube-controller-manager", parts.controllerManager, failed)
	scheduler := launch(ctx, "kube-scheduler", parts.scheduler, failed)
	defer func() { // both are clients of the API server: they go first, at the same time
		controllers.cancel()
		scheduler.cancel()
		<-controllers.done
		<-scheduler.done
	}()
	if err := waitDefaults(ctx, client, failed); err != nil {
		return stopped(ctx, err)
	}
	if _, err := fmt.Fprintln(stdout, "ready"); err != nil {
		return fmt.Errorf("announcing readiness: %w", err)
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// stopped drops the error of a start-up that was ended by a signal.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// process is one Kubernetes component, running in a goroutine.
type process struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// launch runs a component until stop. One that ends earlier is reported on failed, which must have
// room. The component's context is not a child of ctx's cancellation: run stops components in their
// order, not all at once.
func launch(ctx context.Context, name string, component func(context.Context) error, failed chan<- error) process {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := process{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		err := component(ctx)
		if ctx.Err() == nil {
			failed <- fmt.Errorf("%s ended by itself: %w", name, err)
		}
	}()
	return p
}

// stop ends the component and waits for it.
func (p process) stop() {
	p.cancel()
	<-p.done
}
