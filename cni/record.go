package cni

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/cni/veth"
)

// An attachment is also recorded on the alias of its link: a disk failure may lose the Open vSwitch
// database while pods run. `ip link` shows it. An attachment that is being removed has no record,
// so that it is not restored.
const (
	linkAlias = "hairpin: "
	// maxAlias is in bytes (IFALIASZ-1). The rest of a longer record is in alternative names, in
	// parts (ALTIFNAMSIZ is 128).
	maxAlias, maxPart = 255, 96
	// maxPorts is in bytes, enough for some twenty mappings. The kernel does not list a link with
	// names that are too long for its message. A row that is restored from a link without mappings
	// has no host ports.
	maxPorts = 1024
)

// record returns the text that is written on the link: the pod, addresses, network, interface, UID
// and container, separated by spaces, and the port mappings if there are any.
func (a *attachment) record() string {
	fields := []string{a.pod.Namespace + "/" + a.pod.Name, joinPrefixes(a.Addresses), a.network, a.IfName, a.uid,
		a.container}
	if a.hostPorts != "" && len(a.hostPorts) <= maxPorts {
		fields = append(fields, a.hostPorts)
	}
	return linkAlias + strings.Join(fields, " ")
}

// parseRecord parses the text of record, and reports whether it describes an attachment.
func parseRecord(host, text string) (attachment, bool) {
	text, ours := strings.CutPrefix(text, linkAlias)
	f := strings.Split(text, " ")
	hasPorts := len(f) == 7 && strings.HasPrefix(f[6], "[")
	if !ours || len(f) != 6 && !hasPorts {
		return attachment{}, false
	}
	namespace, name, _ := strings.Cut(f[0], "/")
	a := attachment{
		pod: cluster.Owner{Kind: "Pod", Namespace: namespace, Name: name}, network: f[2], uid: f[4],
		container: f[5], hostPorts: strings.Join(f[6:], ""),
		Pair: veth.Pair{Host: host, IfName: f[3], Addresses: splitPrefixes(f[1])},
	}
	if name == "" || len(a.Addresses) == 0 || a.container == "" {
		return attachment{}, false
	}
	a.MAC = cluster.MACFor(a.Addresses[0].Addr())
	return a, true
}

// partPrefix returns the prefix of the alternative names that contain the i-th part of a long
// record. The host's name is in it because alternative names must differ on a host.
func partPrefix(host string, i int) string { return fmt.Sprintf("%s.%d.", host, i) }

// readRecord returns the record on a link; empty if there is none of Hairpin's.
func readRecord(l netlink.Link) string {
	attrs := l.Attrs()
	encoded := ""
	for part := range attrs.AltNames {
		prefix := partPrefix(attrs.Name, part)
		for _, name := range attrs.AltNames {
			if code, ok := strings.CutPrefix(name, prefix); ok {
				encoded += code
			}
		}
	}
	rest, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || !strings.HasPrefix(attrs.Alias, linkAlias) {
		return ""
	}
	return attrs.Alias + string(rest)
}

// writeRecord writes the attachment on its link.
func (a *attachment) writeRecord(l netlink.Link) error {
	text := a.record()
	if readRecord(l) == text {
		return nil
	}
	if err := eraseRecord(l); err != nil {
		return err
	}
	cut := min(len(text), maxAlias)
	rest := base64.RawURLEncoding.EncodeToString([]byte(text[cut:]))
	i := 0
	for part := range slices.Chunk([]byte(rest), maxPart) {
		if err := netlink.LinkAddAltName(l, partPrefix(a.Host, i)+string(part)); err != nil {
			return fmt.Errorf("alternative name: %w", err)
		}
		i++
	}
	if err := netlink.LinkSetAlias(l, text[:cut]); err != nil {
		return fmt.Errorf("alias: %w", err)
	}
	return nil
}

// eraseRecord removes the record, so that no row is restored from it.
func eraseRecord(l netlink.Link) error {
	attrs := l.Attrs()
	err := netlink.LinkSetAlias(l, "")
	for _, name := range attrs.AltNames {
		if strings.HasPrefix(name, attrs.Name+".") {
			err = errors.Join(err, netlink.LinkDelAltName(l, name))
		}
	}
	return err
}
