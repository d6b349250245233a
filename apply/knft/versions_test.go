package knft_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hairpin/apply/inside/insidetest"
	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/image"
	"hairpin/plan"
	"hairpin/watch"
)

// versions returns the nft of this machine and that of the node image, which is newer, in one
// network namespace.
func versions(t *testing.T) (older, newer system) {
	t.Helper()
	root := filepath.Join(image.DefaultDir, "image")
	if !exists(filepath.Join(root, "usr/sbin/nft")) {
		t.Skip("no node image")
	}
	ns := insidetest.NetNS(t)
	return system{ns, []string{"nft"}}, system{ns, []string{"chroot", root, "nft"}}
}

// TestOlderToolsLive checks that an nft older than the one that wrote Hairpin's tables, as on the
// host of a container, can list them and write its own tables. (An nft before 1.1.2 crashes on a
// set "type ipv4_addr" of a newer one.)
func TestOlderToolsLive(t *testing.T) {
	snapshot, err := watch.ReadFiles("../../examples/demo", cluster.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	older, newer := versions(t)
	newer.run(t, "", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "wire")
	states := []nft.State{example(t)}
	for _, n := range snapshot.Nodes {
		state, _ := plan.Node(snapshot, n.Name)
		states = append(states, state.NFT)
	}
	for _, want := range states {
		newer.hand(t, "flush ruleset")
		if err := newer.target(t).Apply(t.Context(), nft.Diff(want, nft.State{})); err != nil {
			t.Fatal(err)
		}
		older.run(t, "", "nft", "list", "ruleset")
		older.run(t, "", "nft", "--json", "list", "ruleset")
		older.hand(t, "table inet own { set s { type ipv4_addr; }; }")
		have, err := older.target(t).Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := nft.Diff(want, have); !d.Empty() {
			t.Errorf("the older one reads something else:\n%s", d)
		}
	}
}

// TestCrashSaysWhy checks that the error says what to do when a foreign table makes an older nft
// crash.
func TestCrashSaysWhy(t *testing.T) {
	older, newer := versions(t)
	newer.hand(t, "table inet other { set s { type ipv4_addr; }; }\n")
	if exec.Command("nsenter", "--net="+older.ns, "nft", "list", "tables").Run() == nil {
		t.Skip("the nft of this machine can read it")
	}
	err := older.target(t).Apply(t.Context(), nft.Diff(example(t), nft.State{}))
	if err == nil || !strings.Contains(err.Error(), "1.1.2") || !strings.Contains(err.Error(), "segmentation fault") {
		t.Errorf("the error says: %v", err)
	}
}
