package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/yaml"

	"hairpin/apply/knft"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/config"
	"hairpin/ovsdb"
	"hairpin/targets"
)

// foreign are the links of other networks, by the beginning of their names.
var foreign = []struct{ prefix, of string }{
	{"flannel", "flannel"}, {"cni0", "flannel, or the bridge plugin of CNI"}, {"cilium_", "Cilium"}, {"cali", "Calico"}, {"vxlan.calico", "Calico"},
	{"antrea-", "Antrea"}, {"kube-bridge", "kube-router"}, {"weave", "Weave Net"},
}

// links finds what other networks made, by its name.
func links(context.Context, *config.Config) (list []Finding, err error) {
	all, err := netlink.LinkList()
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
			list = append(list, Finding{Info, "link " + name, "OVN-Kubernetes or Hairpin runs here, or did", "if it was OVN-Kubernetes: docs/migrate.md"})
		}
		for _, f := range foreign {
			if strings.HasPrefix(name, f.prefix) && !seen[f.of] {
				seen[f.of] = true
				list = append(list, Finding{Stops, "link " + name, f.of + " is here: its routes and rules compete for the pods' packets",
					"remove its DaemonSet, then its links (ip link delete " + name + ") and rules, or boot the node"})
			}
		}
	}
	return list, nil
}

func kubeProxy(object string) Finding {
	return Finding{Stops, object, "kube-proxy translates Services as well: connections go to the endpoint that it chose, not Hairpin",
		"delete its DaemonSet, and run `kube-proxy --cleanup` on the node"}
}

// cniConfigs finds configurations of other networks. A container runtime takes the first by name.
func cniConfigs(context.Context, *config.Config) (list []Finding, err error) {
	files, err := os.ReadDir(claims.CNIConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(f.Name())) || f.Name() == claims.CNIConfFile {
			continue
		}
		found := Finding{Warning, filepath.Join(claims.CNIConfDir, f.Name()), "another network's; without " + claims.CNIConfFile + " the container runtime uses it", "delete it when Hairpin runs"}
		if f.Name() < claims.CNIConfFile {
			found.Severity, found.Message, found.Mend = Stops, "the container runtime takes it before "+claims.CNIConfFile, "delete it, or give it a name behind "+claims.CNIConfFile
		}
		list = append(list, found)
	}
	return list, nil
}

// tables finds tables of kube-proxy and firewalld in nftables, and chains that drop what is forwarded.
func tables(ctx context.Context, _ *config.Config) (list []Finding, err error) {
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
			once(table, Finding{Warning, "nft table " + table, "flannel's: it masquerades what pods send", "nft delete table " + table + ", when flannel is gone"})
		case c.Hook == "forward" && c.Policy == "drop" && c.Table != claims.NFTTable:
			list = append(list, Finding{Warning, "nft chain " + table + " " + c.Name, "drops what the host forwards, unless a rule of its accepts it: in the modes local and detached that is pods' traffic",
				"accept what comes in and goes out by " + claims.ManagementPort + " there"})
		}
	}
	if firewalld {
		list = append(list, Finding{Warning, "firewalld", "its zones drop tunnels from other nodes, and what it does not know of pods",
			"firewall-cmd --permanent --zone=trusted --add-interface=" + claims.ManagementPort + "; firewall-cmd --permanent --add-port=6081/udp; firewall-cmd --reload"})
	}
	return list, nil
}

// asking is how long Open vSwitch's database may take to answer.
const asking = 3 * time.Second

// bridges finds Open vSwitch's bridges with devices, and an ovn-controller that another OVN directs.
func bridges(ctx context.Context, c *config.Config) (list []Finding, err error) {
	if _, err := os.Stat(filepath.Join(c.Process.OVSRunDir, "db.sock")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // Open vSwitch does not run: Hairpin brings its own
	}
	db, err := targets.OpenOVS(*c, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	if err := db.WaitSynced(ctx); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(c.Process.OVSRunDir, "hairpin.lock")); errors.Is(err, fs.ErrNotExist) {
		list = append(list, Finding{Stops, "Open vSwitch", "the machine's own runs: the chart brings another one, which needs its place",
			"give its bridges' devices back, then: systemctl disable --now openvswitch-switch ovn-controller (openvswitch.service on some systems)"})
	}
	v := db.View()
	for s := range ovsdb.Rows[ovsdb.OpenVSwitch](v) {
		if remote := s.ExternalIDs["ovn-remote"]; remote != "" && !strings.HasPrefix(remote, "unix:") {
			list = append(list, Finding{Stops, "Open_vSwitch external_ids:ovn-remote=" + remote, "an ovn-controller here is directed by another OVN",
				"remove that network's DaemonSets, then: ovs-vsctl remove Open_vSwitch . external_ids ovn-remote"})
		}
	}
	for b := range ovsdb.Rows[ovsdb.Bridge](v) {
		for _, device := range devices(v, b) {
			list = append(list, bridge(c, b.Name, device))
		}
	}
	return list, nil
}

// devices are the machine's links that are ports of a bridge, but for those of pods.
func devices(v ovsdb.View, b *ovsdb.Bridge) (names []string) {
	for _, id := range b.Ports {
		p := ovsdb.Get[ovsdb.Port](v, id)
		if p == nil {
			continue
		}
		for _, id := range p.Interfaces {
			if i := ovsdb.Get[ovsdb.Interface](v, id); i != nil && (i.Type == "" || i.Type == "system") && i.Name != b.Name && b.Name != claims.IntegrationBridge {
				names = append(names, i.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func bridge(c *config.Config, name, device string) Finding {
	object := "bridge " + name + " with " + device
	switch g := c.Cluster.Gateway; {
	case name != g.Interface:
		return Finding{Warning, object, "the device is taken: it cannot be the gateway bridge's as well", "set [gateway] interface = " + name + ", or delete the bridge"}
	case g.Mode == cluster.ModeDetached:
		return Finding{Stops, object, "in mode detached the gateway bridge has no device", "ovs-vsctl del-port " + name + " " + device + ", with the addresses moved to " + device + "; or another [gateway] interface"}
	default:
		return Finding{Severity: Info, Object: object, Message: "a Hairpin that works with this Open vSwitch uses the bridge as it is, and leaves it when it goes"}
	}
}

// profiles finds the NetworkManager connections that configure-ovs.sh of OVN-Kubernetes makes for br-ex.
func profiles(context.Context, *config.Config) (list []Finding, err error) {
	const dir = "/etc/NetworkManager/system-connections"
	files, err := filepath.Glob(filepath.Join(dir, "*.nmconnection"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".nmconnection")
		if name == "br-ex" || strings.HasPrefix(name, "ovs-if-") || strings.HasPrefix(name, "ovs-port-") {
			list = append(list, Finding{Warning, f, "of configure-ovs.sh: NetworkManager makes the bridge at every boot, with the device in it",
				"nmcli connection delete " + name + ", and let NetworkManager manage the device itself; docs/migrate.md"})
		}
	}
	return list, nil
}

// microshift finds MicroShift's own settings of OVN-Kubernetes, and says which options have them here.
func microshift(context.Context, *config.Config) (list []Finding, err error) {
	const file = "/etc/microshift/ovn.yaml"
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var of struct {
		OVSInit struct {
			GatewayInterface string `json:"gatewayInterface"`
		} `json:"ovsInit"`
		MTU int `json:"mtu"`
	}
	if err := yaml.Unmarshal(text, &of); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var set []string
	if of.OVSInit.GatewayInterface != "" {
		set = append(set, "[gateway] uplink = "+of.OVSInit.GatewayInterface)
	}
	if of.MTU != 0 {
		set = append(set, fmt.Sprintf("[default] mtu = %d", of.MTU))
	}
	return []Finding{{Info, file, "MicroShift's settings of OVN-Kubernetes, which Hairpin does not read", strings.Join(set, ", ")}}, nil
}
