package walk

import (
	"strings"
	"testing"

	"hairpin/datapath/nft"
	"hairpin/walk/packet"
)

// dropsIn makes node n1's host drop incoming packets that match.
func dropsIn(w World, priority int, matches ...nft.Match) {
	chains := w.States["n1"].NFT[nft.Inet].Chains
	chains["in"] = &nft.Chain{Name: "in", Type: "filter", Hook: "prerouting", Priority: priority,
		Rules: []nft.Rule{{Matches: matches, Do: nft.Drop{}}}}
}

// TestConnectionState checks the kernel's connection states: the first packet is new, the reply is
// established.
func TestConnectionState(t *testing.T) {
	const behind, before = -150, -300 // after and before the connection lookup
	outside := tcp("172.18.0.3:8081")
	outside.Src = addr("172.18.0.100")
	for _, c := range []struct {
		name              string
		priority          int
		state             nft.CTState
		client, host      bool // the client's packet arrives; the host's own gets a reply
		from              Point
		packet, hostsCall packet.Packet
	}{
		{"new ones", behind, nft.CTNewOrInvalid, false, true, Point{}, outside, tcp("10.96.0.11:80")},
		{"replies", behind, nft.CTEstablished, true, false, Point{}, outside, tcp("10.96.0.11:80")},
		{"errors about connections", behind, nft.CTRelated, true, true, Point{}, outside, tcp("10.96.0.11:80")},
		{"before they are looked up", before, nft.CTNewOrInvalid, true, true, Point{}, outside, tcp("10.96.0.11:80")},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := byHand(1)
			dropsIn(w, c.priority, c.state)
			if tr := walk(t, w, c.from, c.packet); tr.Verdict.Delivered != c.client {
				t.Errorf("a client outside\n%s", tr)
			}
			if tr := walk(t, w, inHost(1), c.hostsCall); tr.Verdict.Answered != c.host {
				t.Errorf("the host\n%s", tr)
			}
		})
	}
	w := byHand(1)
	w.States["n1"].NFT[nft.Inet].Chains["frames"] = &nft.Chain{Name: "frames", Type: "filter", Hook: "ingress",
		Device: "breth0",
		Rules:  []nft.Rule{{Matches: []nft.Match{nft.CTNewOrInvalid}, Do: nft.Drop{}}}}
	if _, err := New(w).Walk(Point{}, outside); err == nil ||
		!strings.Contains(err.Error(), "ct state invalid,new: at hook ingress no connection is looked up") {
		t.Errorf("at ingress: %v", err)
	}
}

// The source MAC of a node is known. That of an external machine is not a node's, but otherwise
// unknown.
func TestEtherSource(t *testing.T) {
	outside := tcp("172.18.0.3:8081")
	outside.Src = addr("172.18.0.100")
	for _, c := range []struct {
		mac      string
		from     Point
		packet   packet.Packet
		arrives  bool
		complain string
	}{
		{"02:42:ac:12:00:04", inHost(2), tcp("172.18.0.3:8081"), false, ""},
		{"02:42:ac:12:00:05", inHost(2), tcp("172.18.0.3:8081"), true, ""},
		{"02:42:ac:12:00:04", Point{}, outside, true, ""},
		{"02:42:ac:12:00:64", Point{}, outside, false,
			"ether saddr 02:42:ac:12:00:64: neither the owner of the MAC nor the sender of the packet is known"},
	} {
		w := byHand(3)
		dropsIn(w, -150, nft.EtherSrc{MAC: mac("%s", c.mac)})
		tr, err := New(w).Walk(c.from, c.packet)
		switch {
		case c.complain != "" && (err == nil || !strings.Contains(err.Error(), c.complain)):
			t.Errorf("%s from %s: %v, without %q", c.mac, c.from, err, c.complain)
		case c.complain == "" && (err != nil || tr.Verdict.Delivered != c.arrives):
			t.Errorf("%s from %s: %v\n%s", c.mac, c.from, err, tr)
		}
	}
}

// No packet to 127.0.0.0/8 or ::1 leaves a pod, or passes an OVN router.
func TestPodLoopback(t *testing.T) {
	w := byHand(1)
	for _, to := range []string{"127.0.0.1:30099", "127.9.9.9:80", "[::1]:30099"} {
		if tr := walk(t, w, inPod(1, "pod%d"), tcp(to)); tr.Verdict.Delivered ||
			!strings.Contains(tr.Verdict.Reason, "the pod's own loopback") {
			t.Errorf("%s", tr)
		}
	}
	raw := tcp("172.18.0.3:30015")
	raw.Src = addr("127.0.0.1")
	if tr := walk(t, w, Point{}, raw); tr.Verdict.Delivered ||
		!strings.Contains(tr.Verdict.Reason, "lr_in_ip_input drops it") {
		t.Errorf("%s", tr)
	}
}

// A chain at ingress rejects a packet before the kernel looks up its connection.
func TestRejectAtIngress(t *testing.T) {
	outside := tcp("172.18.0.3:8081")
	outside.Src = addr("172.18.0.100")
	w := byHand(1)
	w.States["n1"].NFT[nft.Inet].Chains["frames"] = &nft.Chain{Name: "frames", Type: "filter", Hook: "ingress",
		Device: "breth0", Rules: []nft.Rule{{Do: nft.Reject{TCPReset: true}}}}
	tr := walk(t, w, Point{}, outside)
	if v := tr.Verdict; !v.Rejected || !v.Answered || v.Reason != "rejected with a TCP reset by n1" {
		t.Errorf("%s", tr)
	}
}
