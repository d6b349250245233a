package cni

import (
	"fmt"
	"net/netip"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cni/veth"
	"hairpin/ovsdb"
)

// Keys of an Interface's external_ids. Keys that OVN-Kubernetes has, too, have its names. iface-id,
// iface-id-ver and ovn-installed are OVN's.
const (
	keyIfaceID     = "iface-id"
	keyIfaceIDVer  = "iface-id-ver"
	keyMAC         = "attached_mac"
	keyAddresses   = "ip_addresses"
	keySandbox     = "sandbox"
	keyNetwork     = "k8s.ovn.org/network"
	keyNamespace   = "k8s.ovn.org/pod-namespace"
	keyName        = "k8s.ovn.org/pod-name"
	keyUID         = "k8s.ovn.org/pod-uid"
	keyIfName      = "k8s.ovn.org/pod-ifname"
	keyHostPorts   = "hairpin-port-mappings"
	keyInstalled   = "ovn-installed" // written by ovn-controller when the port's flows are in the switch
	keyInstalledAt = "ovn-installed-ts"
)

// keyLast is the key of the integration bridge's external_ids with the most recently allocated
// addresses.
const keyLast = "k8s.ovn.org/last-pod-ips"

// attachment is one interface of one sandbox, as its Interface row describes it.
type attachment struct {
	veth.Pair
	pod       cluster.Owner
	uid       string
	network   string // name of the network configuration
	container string // CNI_CONTAINERID: the runtime's identifier of the sandbox
	rowUUID   string // of its Interface row; empty = it has none
	hostPorts string // runtimeConfig.portMappings of its ADD, compact JSON; empty = none
}

// parseAttachment parses an Interface row. A row with damaged external_ids has no addresses.
func parseAttachment(row *ovsdb.Interface) attachment {
	ids := row.ExternalIDs
	a := attachment{
		pod: cluster.Owner{Kind: "Pod", Namespace: ids[keyNamespace], Name: ids[keyName]}, uid: ids[keyUID],
		network: ids[keyNetwork], container: ids[keySandbox], rowUUID: string(row.UUID), hostPorts: ids[keyHostPorts],
		Pair: veth.Pair{Host: row.Name, IfName: ids[keyIfName]},
	}
	if mac, err := cluster.ParseMAC(ids[keyMAC]); err == nil && a.pod.Name != "" {
		a.MAC, a.Addresses = mac, splitPrefixes(ids[keyAddresses])
	}
	return a
}

// key returns the runtime's identifier of an attachment.
func (a *attachment) key() string { return attachmentKey(a.container, a.IfName) }

func attachmentKey(container, ifName string) string { return container + "/" + ifName }

// toPod returns the attachment's facts for plan.
func (a *attachment) toPod(node string) *cluster.Pod {
	p := &cluster.Pod{Owner: a.pod, UID: a.uid, Node: node, MAC: a.MAC, Port: a.Host, PortRow: a.rowUUID}
	for _, x := range a.Addresses {
		p.IPs = append(p.IPs, x.Addr())
	}
	return p
}

// ids returns the external_ids of the Interface row. OVN binds the port only when its row in the
// Northbound database has the same iface-id-ver, which contains the addresses. So ovn-installed
// never refers to the flows of an earlier sandbox.
func (a *attachment) ids() map[string]string {
	p := a.toPod("")
	ids := map[string]string{
		keyIfaceID: p.LogicalPort(), keyIfaceIDVer: p.PortVersion(),
		keyMAC: a.MAC.String(), keyAddresses: joinPrefixes(a.Addresses), keySandbox: a.container, keyNetwork: a.network,
		keyNamespace: a.pod.Namespace, keyName: a.pod.Name, keyUID: a.uid, keyIfName: a.IfName,
	}
	if a.hostPorts != "" {
		ids[keyHostPorts] = a.hostPorts
	}
	return ids
}

// insert returns the operations that put the attachment on a bridge.
func (a *attachment) insert(bridge string) []ovsdb.Op {
	port, ops := ovsdb.InsertPort(ovsdb.Interface{Name: a.Host, ExternalIDs: a.ids()}, nil)
	return append(ops, ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", port)).Where("name", "==", bridge))
}

// portError returns why the attachment's port is not ready; nil if it is. On OVN's bridge, ready
// means that OVN has bound the port and installed its flows.
func (a *attachment) portError(row *ovsdb.Interface, bridge string) error {
	for key, want := range a.ids() {
		if have := row.ExternalIDs[key]; have != want {
			return fmt.Errorf("Open vSwitch: Interface %s has external_ids:%s=%q, not %q", a.Host, key, have, want)
		}
	}
	switch {
	case row.Error != nil && *row.Error != "":
		return fmt.Errorf("Open vSwitch: Interface %s: %s", a.Host, *row.Error)
	case row.OFPort == nil:
		return fmt.Errorf("ovs-vswitchd has not opened %s", a.Host)
	case bridge == claims.IntegrationBridge && row.ExternalIDs[keyInstalled] != "true":
		return fmt.Errorf("ovn-controller has not installed the flows of %s (ofport %d)", a.Host, *row.OFPort)
	}
	return nil
}

func joinPrefixes(list []netip.Prefix) string {
	texts := make([]string, 0, len(list))
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}

func splitPrefixes(text string) []netip.Prefix {
	var list []netip.Prefix
	for t := range strings.SplitSeq(text, ",") {
		if p, err := netip.ParsePrefix(t); err == nil {
			list = append(list, p)
		}
	}
	return list
}
