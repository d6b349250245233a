package lab_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
)

// conntrackStates are the states that flows ask for, the first one that matches first.
var conntrackStates = []struct{ name, match string }{
	{"invalid", "+inv"}, {"related", "+rel"}, {"reply", "+rpl"}, {"established", "+est"}, {"new", "+new"},
}

// conntrackFlows are the flows for all packets; conntrackFamily has those of a family: its match,
// that of the service's address, and the server.
const (
	conntrackFlows = `
priority=1 actions=resubmit(,1)
dl_dst=02:00:00:00:00:01,priority=2 actions=set_field:1->reg0,resubmit(,1)
dl_dst=02:00:00:00:00:02,priority=2 actions=set_field:2->reg0,resubmit(,1)
table=3,priority=1 actions=resubmit(,4)
table=4,in_port=client actions=output:server
table=4,in_port=server actions=output:client
`
	conntrackFamily = `
table=1,%[1]s actions=ct(zone=5,nat,table=2)
table=3,priority=4,reg0=1,%[1]s actions=ct(commit,zone=5,exec(set_field:0x100/0x100->ct_mark)),resubmit(,4)
table=3,priority=4,reg0=2,%[1]s actions=ct(commit,zone=5,exec(set_field:0/0x100->ct_mark)),resubmit(,4)
table=3,priority=3,in_port=client,ct_state=+new-inv,%[2]s actions=ct(commit,zone=5,nat(dst=%[3]s)),resubmit(,4)
table=3,priority=2,in_port=client,ct_state=+new-inv,%[1]s actions=ct(commit,zone=5),resubmit(,4)
`
)

// TestConntrack shows with packets what NetworkPolicies take for granted about ct, of the datapath
// that the node has: the userspace's, or in the machine of kernel.sh the kernel's:
//
//	CGO_ENABLED=0 go test -c -o bin/lab.test ./lab
//	lab/kernel.sh -t 600 bin/lab.test -test.run TestConntrack -test.v
//
// The bridge commits connections of the client, and those to a service with the address of the
// server, and tells by the destination MAC of a packet what ct said of it before.
func TestConntrack(t *testing.T) {
	n := lab.StartNode(t, lab.NodeConfig{Daemons: []string{lab.OVSDB, lab.VSwitchd}})
	t.Logf("datapath %s", n.Datapath())
	flows := conntrackFlows + fmt.Sprintf(conntrackFamily, "ip", "ip,nw_dst=10.9.0.9", "10.9.0.2:80") +
		fmt.Sprintf(conntrackFamily, "ipv6", "ipv6,ipv6_dst=fd09::9", "[fd09::2]:80")
	for i, s := range conntrackStates {
		for denied, mark := range []string{"0", "0x100"} {
			flows += fmt.Sprintf("table=2,priority=%d,ct_state=+trk%s,ct_mark=%s/0x100 "+
				"actions=set_field:02:00:00:00:%02x:%02x->eth_dst,resubmit(,3)\n", 9-i, s.match, mark, 0xc0+i, denied)
		}
	}
	setup := fmt.Sprintf(`ovs-vsctl add-br br-ct -- set bridge br-ct datapath_type=%s fail_mode=secure \
		-- add-port br-ct client -- set interface client type=internal \
		-- add-port br-ct server -- set interface server type=internal
		ip link set client up; ip link set server up; ovs-ofctl add-flows br-ct -`, n.Datapath())
	if _, err := n.ExecInput(t.Context(), flows, "sh", "-ec", setup); err != nil {
		t.Fatal(err)
	}
	ears := make(map[string]*attack.Ear)
	for from, to := range map[string]string{"client": "server", "server": "client"} {
		ear, err := attack.Listen(n, to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ear.Close)
		ears[from] = ear
	}
	const leave, deny, permit = 0, 1, 2 // last byte of a frame's destination: what becomes of the bit
	own := cluster.MAC{2, 0, 0, 0, 0xcc, 1}
	// send returns what ct said about a packet, and the packet as it arrived.
	send := func(from string, order byte, packet []byte) (said string, arrived []byte) {
		if err := attack.Send(n, from, attack.Frame(own, cluster.MAC{2, 0, 0, 0, 0, order}, packet)); err != nil {
			t.Fatal(err)
		}
		ours := func(b []byte) bool { return cluster.MAC(b[6:12]) == own }
		frame := ears[from].Hear(t.Context(), 10*time.Second, ours)
		if frame == nil {
			t.Fatal("the packet did not arrive")
		}
		i := int(frame[4]) - 0xc0
		if i < 0 {
			return "no state", frame[14:]
		}
		return conntrackStates[i].name + map[byte]string{1: ", denied"}[frame[5]], frame[14:]
	}

	reset := "new"
	if n.Datapath() == "system" {
		reset = "invalid"
	}
	for _, network := range []string{"10.9.0.", "fd09::"} {
		at := func(host string, port uint16) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr(network+host), port)
		}
		client, server, service := at("1", 1000), at("2", 80), at("9", 80)
		open, stray, refused := at("1", 1001), at("1", 1002), at("1", 1003)
		udp := func(src, dst netip.AddrPort) []byte { return attack.UDP(src, dst, []byte("12345678")) }
		tooBig := func(of netip.AddrPort) []byte {
			return attack.TooBig(server.Addr(), of.Addr(), udp(of, server))
		}
		for _, s := range []struct {
			what, from string
			order      byte
			packet     []byte
			want       string
			src, dst   netip.AddrPort // of what arrives; only the addresses are compared
		}{
			{"committed inline, it is translated itself", "client", leave, udp(client, service), "new", client, server},
			{"its reply", "server", leave, udp(server, client), "reply", service, client},
			{"the next packet", "client", leave, udp(client, service), "established", client, server},
			{"denied by a bit", "client", deny, udp(client, service), "established", client, server},
			{"the bit is there, and NAT", "client", leave, udp(client, service), "established, denied", client, server},
			{"also for replies", "server", leave, udp(server, client), "reply, denied", service, client},
			{"also for ICMP errors", "server", leave, tooBig(client), "related, denied", service, client},
			{"permitted again", "client", permit, udp(client, service), "established, denied", client, server},
			{"the bit has gone, NAT has not", "client", leave, udp(client, service), "established", client, server},
			{"SYN", "client", leave, attack.SYN(open, server), "new", open, server},
			{"SYN-ACK", "server", leave, attack.SYNACK(server, open, 2), "reply", server, open},
			{"SYN-ACK again", "server", leave, attack.SYNACK(server, open, 2), "reply", server, open},
			{"ACK without an entry", "client", leave, attack.TCP(stray, server, 7, 7, nil), "new", stray, server},
			{"RST without an entry", "client", leave, attack.Reset(refused, server, 7), reset, refused, server},
			{"ICMP error without an entry", "server", leave, tooBig(at("1", 1004)), "invalid", server, client},
		} {
			said, packet := send(s.from, s.order, s.packet)
			t.Logf("%-8s %-42s %s", network, s.what, said)
			addresses := packet[12:20]
			if s.src.Addr().Is6() {
				addresses = packet[8:40]
			}
			if said != s.want || !bytes.Equal(addresses, append(s.src.Addr().AsSlice(), s.dst.Addr().AsSlice()...)) {
				t.Errorf("%s, with the addresses %v; want %s, from %s to %s", said, addresses, s.want, s.src, s.dst)
			}
		}
	}
}
