package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/apply/knft"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/hostnet/uplink"
	"hairpin/netdev"
	"hairpin/ovsdb"
	"hairpin/targets"
)

// foreignLinks has the links of other networks, by the prefix of their names.
var foreignLinks = []struct{ prefix, of string }{
	{"flannel", "flannel"}, {"cni0", "flannel, or the bridge plugin of CNI"}, {"cilium_", "Cilium"}, {"cali", "Calico"},
	{"vxlan.calico", "Calico"},
	{"antrea-", "Antrea"}, {"kube-bridge", "kube-router"}, {"weave", "Weave Net"},
}

// links finds links of other networks by their names.
func links(context.Context, *machine) (list []Finding, err error) {
	all, err := netdev.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	seen := map[string]bool{}
	for _, l := range all {
		name := l.Attrs().Name
		switch {
		case name == "kube-ipvs0":
			list = append(list, kubeProxy("link "+name))
		case name == claims.ManagementPort:
			list = append(list, finding(Info, "link "+name, "OVN-Kubernetes or Hairpin runs here, or did",
				"if it was OVN-Kubernetes: docs/operations/migrate.md"))
		}
		for _, f := range foreignLinks {
			if strings.HasPrefix(name, f.prefix) && !seen[f.of] {
				seen[f.of] = true
				list = append(list, finding(Stops, "link "+name, f.of+
					" is here: its routes and rules compete for the pods' packets",
					"remove its DaemonSet, then its links (ip link delete "+name+") and rules, or boot the node"))
			}
		}
	}
	return list, nil
}

func kubeProxy(object string) Finding {
	return finding(Stops, object,
		"kube-proxy translates Services as well: connections go to the endpoint that it chose, not Hairpin",
		"delete its DaemonSet, and run `kube-proxy --cleanup` on the node")
}

// cniConfigs finds configurations of other networks. A container runtime takes the first by name.
func cniConfigs(_ context.Context, m *machine) (list []Finding, err error) {
	files, err := m.list(claims.CNIConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(f.Name())) ||
			f.Name() == claims.CNIConfFile {
			continue
		}
		x := finding(Warning, filepath.Join(claims.CNIConfDir, f.Name()), "another network's; without "+
			claims.CNIConfFile+" the container runtime uses it", "delete it when Hairpin runs")
		if f.Name() < claims.CNIConfFile {
			x.Severity, x.Message, x.Remedy = Stops, "the container runtime takes it before "+claims.CNIConfFile,
				"delete it, or give it a name that sorts after "+claims.CNIConfFile
		}
		list = append(list, x)
	}
	return list, nil
}

// tables finds tables of kube-proxy and firewalld in nftables, and chains that drop forwarded
// packets.
func tables(ctx context.Context, _ *machine) (list []Finding, err error) {
	nft, err := knft.New(knft.Config{})
	if err != nil {
		return nil, err
	}
	defer nft.Close()
	out, err := nft.AllChains(ctx)
	if err != nil {
		return nil, err
	}
	var all struct {
		Nftables []struct {
			Chain *struct{ Family, Table, Name, Hook, Policy string }
		}
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return nil, fmt.Errorf("nft -j list chains: %w", err)
	}
	seen, firewalld := map[string]bool{}, false
	once := func(table string, f Finding) {
		if !seen[table] {
			list = append(list, f)
		}
		seen[table] = true
	}
	for _, x := range all.Nftables {
		c := x.Chain
		if c == nil {
			continue
		}
		switch table := c.Family + " " + c.Table; {
		case c.Table == "kube-proxy", c.Name == "KUBE-SERVICES":
			once(table, kubeProxy("nft table "+table))
		case c.Table == "firewalld":
			firewalld = true
		case strings.HasPrefix(c.Table, "flannel-"):
			once(table, finding(Warning, "nft table "+table, "flannel's: it masquerades what pods send",
				"nft delete table "+table+", when flannel is gone"))
		case c.Hook == "forward" && c.Policy == "drop" && c.Table != claims.NFTTable:
			list = append(list, finding(Warning, "nft chain "+table+" "+c.Name,
				"drops what the host forwards, unless one of its rules accepts it: in the modes local and detached "+
					"that is pods' traffic",
				"accept what comes in and goes out by "+claims.ManagementPort+" there"))
		}
	}
	if firewalld {
		list = append(list, finding(Warning, "firewalld",
			"its zones drop tunnels from other nodes, and what it does not know of pods",
			"firewall-cmd --permanent --zone=trusted --add-interface="+claims.ManagementPort+
				"; firewall-cmd --permanent --add-port=6081/udp; firewall-cmd --reload"))
	}
	return list, nil
}

// databaseTimeout is how long Open vSwitch's database may take to reply.
const databaseTimeout = 3 * time.Second

// openSwitch mirrors the database of the machine's Open vSwitch. It returns nil if there is none,
// which is no problem: the chart includes Open vSwitch.
func openSwitch(ctx context.Context, m *machine) (*ovsdb.Client, error) {
	conf := m.Config
	socket, err := m.at(filepath.Join(m.Process.OVSRunDir, "db.sock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	conf.Process.OVSRunDir = filepath.Dir(socket)
	db, err := targets.OpenOVS(conf, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	if err := db.WaitSynced(ctx); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// bridges finds Open vSwitch's bridges with devices, and an ovn-controller that another OVN
// configures.
func bridges(ctx context.Context, m *machine) (list []Finding, err error) {
	db, err := openSwitch(ctx, m)
	if err != nil || db == nil {
		return nil, err
	}
	defer db.Close()
	if _, err := m.at(filepath.Join(m.Process.OVSRunDir, "hairpin.lock")); errors.Is(err, fs.ErrNotExist) {
		list = append(list, finding(Stops, "Open vSwitch",
			"the machine's own runs: that of the chart cannot run beside it",
			"give its bridges' devices back, then: systemctl disable --now openvswitch-switch ovn-controller "+
				"(openvswitch.service on some systems)"))
	}
	v := db.View()
	for s := range ovsdb.Rows[ovsdb.OpenVSwitch](v) {
		if remote := s.ExternalIDs["ovn-remote"]; remote != "" && !strings.HasPrefix(remote, "unix:") {
			list = append(list, Finding{Severity: Stops, Object: "Open_vSwitch external_ids:ovn-remote=" + remote,
				Message: "an ovn-controller of this machine has the database of another OVN",
				Remedy: "remove that network's DaemonSets, then: ovs-vsctl remove Open_vSwitch . " +
					"external_ids ovn-remote"})
		}
	}
	for b := range ovsdb.Rows[ovsdb.Bridge](v) {
		for _, device := range devices(v, b) {
			list = append(list, bridge(m, b, device))
		}
	}
	return list, addBridgeFix(m, db, list)
}

// devices returns the machine's links that are ports of a bridge, except those of pods.
func devices(v ovsdb.View, b *ovsdb.Bridge) (names []string) {
	for _, id := range b.Ports {
		p := ovsdb.Get[ovsdb.Port](v, id)
		if p == nil {
			continue
		}
		for _, id := range p.Interfaces {
			if i := ovsdb.Get[ovsdb.Interface](v, id); i != nil && (i.Type == "" || i.Type == "system") &&
				i.Name != b.Name && b.Name != claims.IntegrationBridge && b.Name != claims.ServiceBridge {
				names = append(names, i.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func bridgeObject(name, device string) string { return "bridge " + name + " with " + device }

func bridge(m *machine, b *ovsdb.Bridge, device string) Finding {
	f := Finding{Severity: Info, Object: bridgeObject(b.Name, device)}
	_, ours := b.ExternalIDs[uplink.KeyUplink]
	switch g := m.Cluster.Gateway; {
	case b.Name != g.Interface:
		f.Severity, f.Message, f.Remedy = Warning, "the device is taken: it cannot be the gateway bridge's as well",
			"set [gateway] interface = "+b.Name+", or delete the bridge"
	case ours:
		f.Message = "Hairpin made it"
	case !cluster.ModeNamed(g.Mode).Uplink:
		f.Severity, f.Message, f.Remedy = Stops, "in mode "+g.Mode+" the gateway bridge has no device",
			"give its addresses and routes to "+device+", and delete it; or another [gateway] interface"
	default:
		f.Message = "if Hairpin works with this Open vSwitch, it uses the bridge as it is, and does not delete it"
	}
	return f
}

// microshift finds MicroShift's own settings of OVN-Kubernetes, and names the equivalent options.
func microshift(_ context.Context, m *machine) (list []Finding, err error) {
	const file = "/etc/microshift/ovn.yaml"
	if _, err := m.at(file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []Finding{finding(Info, file, "MicroShift's settings of OVN-Kubernetes, which Hairpin does not read",
		"hairpin config convert "+file)}, nil
}
