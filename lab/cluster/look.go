package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hairpin/lab"
)

// looks returns commands that list what a network plugin could leave behind on a node. Their output
// omits what changes by itself (lifetimes, counters, indexes).
func looks() map[string]string {
	return map[string]string{
		"links": "ip -o -d link | sed -E 's/^[0-9]+: //' | grep -v '^lo:' | sed -E 's/ " +
			"(numtxqueues|gso|gro|tso|allmulti|promiscuity).*//'",
		"addresses": "ip -o addr | sed -E 's/^[0-9]+: //; s/ +/ /g; s/ (tentative|deprecated)//g'",
		"routes": "{ ip route show table all; ip -6 route show table all; } | sed -E 's/ " +
			"(expires|error|hoplimit|pref) [^ ]+//g' | grep -v 'cast fe80\\|local fe80' | uniq",
		"rules":      "ip rule; ip -6 rule",
		"neighbours": "ip neigh show nud permanent; ip -6 neigh show nud permanent",
		// The kubelet still creates some tables of old versions of kube-proxy.
		"nft": "nft list tables | grep -vE ' ip6? (filter|nat|mangle)$' | while read -r t; do nft list $t; done",
		"sysctls": "sysctl -a 2>/dev/null | grep -E '^net\\.' | grep -vE " +
			"'neigh|nf_conntrack_count|\\.(stable_secret|tcp_(mem|fastopen_key)|flush)'",
		"files": "find / -xdev \\( -path /proc -o -path /sys -o -path /tmp -o -path /var/log -o -path " +
			"/var/lib/kubelet -o -path /etc/kubernetes" +
			" -o -path /var/lib/cni/results \\) -prune -o -type f -print; find /run /opt/cni /etc/cni -maxdepth 3 | " +
			"grep -vE '^/run/(containerd|runc|lab|netns|mount)'",
		"cni": "cat /etc/cni/net.d/* 2>/dev/null; true",
	}
}

// Look returns the state of a node that a network plugin may change.
func Look(ctx context.Context, n *lab.Node) (map[string]string, error) {
	found := map[string]string{}
	for what, command := range looks() {
		out, err := n.Exec(ctx, "sh", "-c", "{ "+command+"; } | sort")
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", what, err)
		}
		found[what] = out
	}
	return found, nil
}

// keepFound saves the state of a node before a network plugin is installed.
func (c *Cluster) keepFound(ctx context.Context, n *lab.Node) error {
	found, err := Look(ctx, n)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(found, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.foundFile(n.Name()), text, 0o644)
}

func (c *Cluster) foundFile(node string) string {
	return filepath.Join(c.lab.Dir(), "found-"+node+".json")
}

// Found returns the state of a node before Hairpin was installed.
func (c *Cluster) Found(node string) (map[string]string, error) {
	text, err := os.ReadFile(c.foundFile(node))
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, fmt.Errorf("read %s: %w", c.foundFile(node), err)
	}
	return found, nil
}

// Difference returns the lines that only one of two texts has.
func Difference(was, is string) string {
	lines := func(text string) map[string]bool {
		set := map[string]bool{}
		for line := range strings.Lines(text) {
			set[line] = true
		}
		return set
	}
	var out strings.Builder
	old, now := lines(was), lines(is)
	for line := range strings.Lines(was) {
		if !now[line] {
			out.WriteString("- " + line)
		}
	}
	for line := range strings.Lines(is) {
		if !old[line] {
			out.WriteString("+ " + line)
		}
	}
	return out.String()
}
