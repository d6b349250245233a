package cni

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/ovsdb"
)

// Keys of an Interface's external_ids. They are those of OVN-Kubernetes where it has them; iface-id is OVN's.
const (
	keyIfaceID   = "iface-id"
	keyMAC       = "attached_mac"
	keyAddresses = "ip_addresses"
	keySandbox   = "sandbox"
	keyNamespace = "k8s.ovn.org/pod-namespace"
	keyName      = "k8s.ovn.org/pod-name"
	keyUID       = "k8s.ovn.org/pod-uid"
	keyIfName    = "k8s.ovn.org/pod-ifname"
	keyInstalled = "ovn-installed" // written by ovn-controller when the port's flows are in the switch
)

// attachment is one interface of one sandbox, as its Interface row tells.
type attachment struct {
	pod       cluster.Owner
	uid       string
	sandbox   string // container id
	ifName    string // in the sandbox
	host      string // name of the host's end
	mac       cluster.MAC
	addresses []netip.Prefix // with the node subnet's length, IPv4 first
	installed bool
	ofport    int // 0 = none yet, -1 = Open vSwitch cannot find the device
}

// hostName names the host's end of a pod's veth pair, the same for the same sandbox: 15 characters at most.
func hostName(sandbox, ifName string) string {
	sum := sha256.Sum256([]byte(sandbox + "/" + ifName))
	return "pod" + hex.EncodeToString(sum[:6])
}

// attachments lists all of them that Open vSwitch knows.
func attachments(v ovsdb.View) []attachment {
	var list []attachment
	for row := range ovsdb.Rows[ovsdb.Interface](v) {
		if a, ok := parseAttachment(row); ok {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b attachment) int { return a.pod.Compare(b.pod) })
	return list
}

func parseAttachment(row *ovsdb.Interface) (attachment, bool) {
	ids := row.ExternalIDs
	if ids[keySandbox] == "" || ids[keyName] == "" {
		return attachment{}, false
	}
	a := attachment{
		pod: cluster.Owner{Kind: "Pod", Namespace: ids[keyNamespace], Name: ids[keyName]}, uid: ids[keyUID],
		sandbox: ids[keySandbox], ifName: ids[keyIfName], host: row.Name,
		addresses: splitPrefixes(ids[keyAddresses]), installed: ids[keyInstalled] == "true",
	}
	mac, err := cluster.ParseMAC(ids[keyMAC])
	if err != nil || len(a.addresses) == 0 {
		return attachment{}, false
	}
	a.mac = mac
	if row.OFPort != nil {
		a.ofport = *row.OFPort
	}
	return a, true
}

// Pod gives what plan must know of the attachment.
func (a *attachment) toPod(node string) *cluster.Pod {
	p := &cluster.Pod{Owner: a.pod, UID: a.uid, Node: node, MAC: a.mac}
	for _, x := range a.addresses {
		p.IPs = append(p.IPs, x.Addr())
	}
	return p
}

// rows gives the operations that put the attachment on br-int.
func (a *attachment) insert(bridge string) []ovsdb.Op {
	ids := map[string]string{
		keyIfaceID: a.toPod("").LogicalPort(), keyMAC: a.mac.String(), keyAddresses: joinPrefixes(a.addresses), keySandbox: a.sandbox,
		keyNamespace: a.pod.Namespace, keyName: a.pod.Name, keyUID: a.uid, keyIfName: a.ifName,
	}
	iface, port := ovsdb.NamedUUID("interface"), ovsdb.NamedUUID("port")
	return []ovsdb.Op{
		ovsdb.Insert(ovsdb.Interface{UUID: iface, Name: a.host, ExternalIDs: ids}),
		ovsdb.Insert(ovsdb.Port{UUID: port, Name: a.host, Interfaces: []ovsdb.UUID{iface}}),
		ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", port)).Where("name", "==", bridge),
	}
}
