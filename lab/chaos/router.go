package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"hairpin/lab"
	"hairpin/lab/attack"
)

// advertised is a prefix that only the router of a fault advertises.
var advertised = netip.MustParsePrefix("2001:db8:77::/64")

// advertise sends router advertisements of the underlay's router to a node until a command on the
// node succeeds. A lifetime of 0 withdraws the prefix and the default route.
func (r *run) advertise(ctx context.Context, n *lab.Node, lifetime uint16, done string) error {
	underlay := r.cluster.Lab().Underlay()
	mac, err := attack.MAC(underlay, lab.UnderlayBridge)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err = lab.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		err := attack.Send(underlay, n.UnderlayPort(), attack.RouterAdvertisement(mac, advertised, lifetime))
		if err != nil {
			return false, err
		}
		_, err = n.Exec(ctx, "sh", "-c", done)
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("advertise a router to %s until %q succeeds: %w", n.Name(), done, err)
	}
	return nil
}

// Commands on a node.
const (
	acceptRoutes    = "sysctl -qw net.ipv6.conf." + lab.GatewayBridge + ".accept_ra=2"
	ignoreRoutes    = "sysctl -qw net.ipv6.conf." + lab.GatewayBridge + ".accept_ra=1"
	hasDefaultRoute = "ip -6 route show default dev " + lab.GatewayBridge + " | grep -q 'proto ra'"
	noDefaultRoute  = "! { " + hasDefaultRoute + "; }"
)

// withdraw makes the router of a node withdraw itself and the prefix, and removes what that leaves:
// the kernel keeps the address for two hours, and another fault may delay earlier advertisements.
func (r *run) withdraw(ctx context.Context, n *lab.Node) error {
	err := r.advertise(ctx, n, 0, noDefaultRoute)
	_, cleanupErr := n.Exec(ctx, "sh", "-c", fmt.Sprintf("%s; ip -6 address flush dev %s to %s; "+
		"ip -6 route flush dev %[2]s to %[3]s; ip -6 route flush dev %[2]s proto ra", ignoreRoutes, lab.GatewayBridge,
		advertised))
	return errors.Join(err, cleanupErr)
}

// advertisePrefix makes a router advertise a prefix and itself.
func advertisePrefix(ctx context.Context, r *run, f Fault) (undo, error) {
	n, err := r.node(f.Node)
	if err != nil {
		return nil, err
	}
	if _, err := n.Exec(ctx, "sh", "-c", acceptRoutes); err != nil {
		return nil, err
	}
	has := fmt.Sprintf("ip -6 -o address show dev %s to %s | grep -q . && %s", lab.GatewayBridge, advertised, hasDefaultRoute)
	return func(ctx context.Context) error { return r.withdraw(ctx, n) },
		r.advertise(ctx, n, attack.RouterLifetime, has)
}

// withdrawDefaultRoute replaces the IPv6 default route of a node by that of a router, which
// withdraws it.
func withdrawDefaultRoute(ctx context.Context, r *run, f Fault) (undo, error) {
	n, err := r.node(f.Node)
	if err != nil {
		return nil, err
	}
	static, err := n.Exec(ctx, "sh", "-c", acceptRoutes+"; "+lab.ShowDefaultRoute("-6"))
	if err != nil {
		return nil, err
	}
	static = strings.TrimSpace(static)
	back := func(ctx context.Context) error {
		err := r.advertise(ctx, n, attack.RouterLifetime, hasDefaultRoute)
		_, failed := n.Exec(ctx, "sh", "-c", fmt.Sprintf("ip -6 route replace %s dev %s", static, lab.GatewayBridge))
		return errors.Join(err, failed, r.withdraw(ctx, n))
	}
	if err := r.advertise(ctx, n, attack.RouterLifetime, hasDefaultRoute); err != nil {
		return back, err
	}
	if _, err := n.Exec(ctx, "sh", "-c", "ip -6 route delete "+static+" dev "+lab.GatewayBridge); err != nil {
		return back, err
	}
	return back, r.advertise(ctx, n, 0, noDefaultRoute)
}

// replaceAddresses replaces the addresses of a node, until the end of the fault.
func replaceAddresses(ctx context.Context, r *run, f Fault) (undo, error) {
	n, err := r.node(f.Node)
	if err != nil {
		return nil, err
	}
	own, other := n.Addresses(), r.otherAddresses(f.Node)
	return func(ctx context.Context) error { return r.cluster.Renumber(ctx, f.Node, other, own) },
		r.cluster.Renumber(ctx, f.Node, own, other)
}
