package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	apiserveroptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	controllermanageroptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// defaultControllers is everything that a real cluster runs, but for storage: those controllers
// would make a plugin directory under /usr/libexec of the machine, and there are no volumes here.
//
// The node lifecycle controller stays, because it alone takes the taint "not-ready" off a new Node
// whose status says Ready (admission put it there), and without that nothing is scheduled. See
// controllerManagerArgs for how it is kept from declaring Nodes without a kubelet dead.
func defaultControllers() []string {
	return []string{
		"*",
		"-persistentvolume-attach-detach-controller",
		"-persistentvolume-binder-controller",
		"-persistentvolume-expander-controller",
	}
}

// parts are the three components, configured and not yet running.
type parts struct {
	apiServer, controllerManager, scheduler func(context.Context) error
}

// newParts configures the components from their own command lines. The commands that Kubernetes
// exports (New…Command) cannot be used: each installs the one signal handler that a process may
// have.
func newParts(cfg config, paths statePaths, etcd string) (parts, error) {
	// All three would set up the process-wide log; the first one wins, and they are equal.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	server := apiserveroptions.NewServerRunOptions()
	if err := parse("kube-apiserver", server.Flags(), apiServerArgs(cfg, paths, etcd)); err != nil {
		return parts{}, err
	}
	manager, err := controllermanageroptions.NewKubeControllerManagerOptions()
	if err != nil {
		return parts{}, fmt.Errorf("options of kube-controller-manager: %w", err)
	}
	known, off, aliases := controllermanager.KnownControllers(), controllermanager.ControllersDisabledByDefault(),
		controllermanager.ControllerAliases()
	if err := parse("kube-controller-manager", manager.Flags(known, off, aliases),
		controllerManagerArgs(cfg, paths)); err != nil {
		return parts{}, err
	}
	sched := scheduleroptions.NewOptions()
	if err := parse("kube-scheduler", *sched.Flags, schedulerArgs(paths)); err != nil {
		return parts{}, err
	}
	// The registry of feature gates and versions is shared by the three and may be set once.
	if err := server.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return parts{}, fmt.Errorf("setting feature gates: %w", err)
	}

	return parts{
		apiServer: func(ctx context.Context) error {
			completed, err := server.Complete(ctx)
			if err != nil {
				return fmt.Errorf("completing options: %w", err)
			}
			if errs := completed.Validate(); len(errs) > 0 {
				return fmt.Errorf("validating options: %w", errors.Join(errs...))
			}
			return apiserver.Run(ctx, completed)
		},
		controllerManager: func(ctx context.Context) error {
			c, err := manager.Config(ctx, known, off, aliases)
			if err != nil {
				return fmt.Errorf("completing options: %w", err)
			}
			return controllermanager.Run(ctx, c.Complete())
		},
		scheduler: func(ctx context.Context) error {
			cc, s, err := scheduler.Setup(ctx, sched)
			if err != nil {
				return fmt.Errorf("completing options: %w", err)
			}
			return scheduler.Run(ctx, cc, s)
		},
	}, nil
}

// parse feeds args to a component's own flags.
func parse(name string, sets cliflag.NamedFlagSets, args []string) error {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		fs.AddFlagSet(set)
	}
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("flags of %s: %w", name, err)
	}
	return nil
}

func apiServerArgs(cfg config, paths statePaths, etcd string) []string {
	return []string{
		"--advertise-address=" + cfg.address.String(),
		// Not only the advertised address: 127.0.0.1 is handy inside the namespace, and the
		// server's own clients use it.
		"--bind-address=" + unspecified(cfg.address).String(),
		"--secure-port=" + strconv.Itoa(int(cfg.port)),
		"--cert-dir=" + paths.pki, // else /var/run/kubernetes
		"--tls-cert-file=" + paths.serverCert,
		"--tls-private-key-file=" + paths.serverKey,
		"--etcd-servers=" + etcd,
		"--service-cluster-ip-range=" + join(cfg.serviceCIDRs),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + paths.serviceAccountKey,
		"--service-account-signing-key-file=" + paths.serviceAccountKey,
		"--token-auth-file=" + paths.tokens,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		// Nodes of the lab have no names in DNS; exec and logs need this, where there are kubelets.
		"--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + paths.kubeletClientCert,
		"--kubelet-client-key=" + paths.serverKey,
		"--profiling=false",
		// Watches end with the server instead of holding it up.
		"--shutdown-watch-termination-grace-period=500ms",
	}
}

func controllerManagerArgs(cfg config, paths statePaths) []string {
	args := []string{
		// With the administrator's token: under its own name it would have to wait for the RBAC
		// bootstrap, and would need a service account per controller.
		"--kubeconfig=" + paths.adminKubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--controllers=" + strings.Join(cfg.controllers, ","),
		"--service-cluster-ip-range=" + join(cfg.serviceCIDRs),
		"--service-account-private-key-file=" + paths.serviceAccountKey,
		"--root-ca-file=" + paths.caCert,
		"--allocate-node-cidrs=true",
		"--configure-cloud-routes=false",
		"--cluster-cidr=" + join(cfg.clusterCIDRs),
		// The defaults (20 and 30 per second) would be what a benchmark of 10 000 Services
		// measures.
		"--kube-api-qps=5000",
		"--kube-api-burst=10000",
		"--profiling=false",
	}
	if !cfg.kubelets {
		// Ten years: a Node's status is written once by a program and its lease never. What the
		// status says (Ready or not) still gives and takes taints.
		args = append(args, "--node-monitor-grace-period=87600h", "--node-startup-grace-period=87600h")
	}
	for _, p := range cfg.clusterCIDRs {
		family, bits := "ipv6", cfg.nodeMaskV6
		if p.Addr().Is4() {
			family, bits = "ipv4", cfg.nodeMaskV4
		}
		args = append(args, fmt.Sprintf("--node-cidr-mask-size-%s=%d", family, bits))
	}
	return args
}

func schedulerArgs(paths statePaths) []string {
	return []string{
		"--kubeconfig=" + paths.adminKubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--kube-api-qps=5000",
		"--kube-api-burst=10000",
		"--profiling=false",
	}
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func join(prefixes []netip.Prefix) string {
	words := make([]string, len(prefixes))
	for i, p := range prefixes {
		words[i] = p.String()
	}
	return strings.Join(words, ",")
}
