package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"

	"hairpin/apply"
	"hairpin/cluster"
	"hairpin/config"
	"hairpin/datapath/nft"
	"hairpin/hostnet"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/ovsdb"
)

// hostFacts holds what the scanner has found on this machine, and publishes the facts that other
// nodes need.
type hostFacts struct {
	node      string
	config    *config.Config
	log       *slog.Logger
	scanner   *hostnet.Scanner
	publisher *hostnet.Publisher
	local     hostnet.Local
	scan      hostnet.Scan  // the newest
	found     hostnet.Found // by the newest scan without an error
}

func newHostFacts(
	node string, c *config.Config, client *kubeapi.Client, ovs *ovsdb.Client, tables apply.Target[nft.State, nft.Delta],
	found func(*hostnet.Scan), log *slog.Logger,
) *hostFacts {
	return &hostFacts{
		node: node, config: c, log: log, local: hostnet.NewLocal(node, client != nil),
		scanner:   hostnet.NewScanner(node, *c, ovs, tables, found, log),
		publisher: hostnet.NewPublisher(annotator(client, node), ovs, log),
	}
}

// annotator returns a function that sets annotations of a Node; nil without an API.
func annotator(client *kubeapi.Client, node string) func(context.Context, map[string]string) error {
	if client == nil {
		return nil
	}
	return func(ctx context.Context, all map[string]string) error {
		return kube.PatchNode(ctx, client, node, map[string]any{"annotations": all})
	}
}

func (h *hostFacts) start(ctx context.Context, start func(func())) {
	start(func() { h.scanner.Watch(ctx) })
	start(func() { h.scanner.Confirm(ctx) })
	start(func() { h.scanner.WatchPorts(ctx) })
	start(func() { h.scanner.Run(ctx) })
	start(func() { h.publisher.Run(ctx) })
}

// record records a scan of the host. It reports whether the host changed, and whether it lost an
// address that connections may have used.
func (h *hostFacts) record(s *hostnet.Scan) (changed, lost bool) {
	if s.Err != nil && h.scan.Err == nil {
		h.log.Info("found no gateway bridge", "bridge", h.config.Cluster.Gateway.Interface, "error", s.Err)
	}
	h.scan = *s
	if s.Err != nil || reflect.DeepEqual(s.Found, h.found) {
		return false, false
	}
	lost = s.Found.LostAddress(&h.found)
	h.found = s.Found
	g := &h.found.Gateway
	h.log.Info("found host facts", "bridge", g.Bridge, "uplink", g.Uplink, "mac", g.MAC.String(),
		"addresses", g.Addresses, "nextHops", g.NextHops, "userspace", g.Userspace)
	return true, lost
}

// known reports whether the gateway bridge has been found.
func (h *hostFacts) known() bool { return h.found.Gateway.Bridge != "" }

// publish publishes facts of the host for other nodes, also while the node cannot be planned: a new
// Node has no node ID yet. base is the agent's own Node as it was read.
func (h *hostFacts) publish(base *cluster.Node) {
	if base == nil || base != h.local.Base { // local.Own is of another Node, or of none
		return
	}
	found := h.found
	found.Gateway = h.local.Own.Gateway
	h.publisher.Publish(found, base)
}

// problems reports how the machine's network differs from what the configuration needs.
func (h *hostFacts) problems() []cluster.Problem {
	return slices.Concat(h.uplinkProblem(), h.externalLinkProblem(), h.modeProblem())
}

// modeProblem reports why the bridges of the gateway mode cannot be made.
func (h *hostFacts) modeProblem() []cluster.Problem {
	if h.scan.ModeErr == nil {
		return nil
	}
	mode := h.config.Cluster.Gateway.Mode
	return nodeProblem(h.node, "[gateway] mode", "the bridges of mode %s cannot be made: %v", mode, h.scan.ModeErr)
}

// externalLinkProblem reports an uplink that is missing or down, or whose MTU is too small for full
// packets of pods in a tunnel.
func (h *hostFacts) externalLinkProblem() []cluster.Problem {
	const field = "[gateway] interface"
	x, bridge := &h.scan.ExternalLink, h.found.Gateway.Bridge
	overhead := hostnet.Overhead6
	if slices.ContainsFunc(h.found.Gateway.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		overhead = hostnet.Overhead4
	}
	switch mtu := h.config.Cluster.MTU; { // of pods
	case x.Missing && x.OwnBridge:
		return nodeProblem(h.node, field,
			"bridge %s has no uplink: there is no device %s, so the machine keeps its network as it is; "+
				"when the device has another name now, run `ovs-vsctl del-br %s`: the agent makes the bridge again, "+
				"with the device of the default route", bridge, x.Device, bridge)
	case x.Missing:
		return nodeProblem(h.node, field,
			"bridge %s has no uplink: there is no device %s, so the machine keeps its network as it is; "+
				"when the device has another name now, make that a port of the bridge in its place", bridge, x.Device)
	case x.Down:
		return nodeProblem(h.node, field, "%s is down or has no carrier: the node reaches no other", x.Device)
	case x.MTU != 0 && x.MTU < mtu+overhead:
		return nodeProblem(h.node, "[default] mtu",
			"%s has an MTU of %d, so full packets of pods (%d bytes) to other nodes are lost: "+
				"they need %d in a tunnel; set mtu = %d on every node", x.Device, x.MTU, mtu, mtu+overhead,
			x.MTU-overhead)
	}
	return nil
}

// uplinkProblem reports what the administrator must correct at the uplink.
func (h *hostFacts) uplinkProblem() []cluster.Problem {
	const field = "[gateway] interface"
	bridge := h.config.Cluster.Gateway.Interface
	switch {
	case h.scan.UplinkErr != nil && !cluster.ModeNamed(h.config.Cluster.Gateway.Mode).Uplink:
		return nodeProblem(h.node, field, "bridge %s keeps its device: %v", bridge, h.scan.UplinkErr)
	case h.scan.UplinkErr != nil:
		return nodeProblem(h.node, field, "bridge %s has no uplink: %v", bridge, h.scan.UplinkErr)
	case h.scan.Contested:
		return nodeProblem(h.node, field,
			"another program keeps moving to the uplink what was moved to bridge %s: "+
				"make the DHCP client or network manager leave the uplink alone", bridge)
	}
	return nil
}
