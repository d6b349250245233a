package flow

import (
	"errors"
	"testing"
)

// Lines as people and ovs-ofctl write them, and the output of Print for them. The second half was
// printed by `ovs-ofctl -O OpenFlow14 --names --no-stats dump-flows` of Open vSwitch 3.5.0.
var flowLines = []struct{ name, in, out string }{
	{"as written",
		"cookie=0xdeff105,table=0,priority=500,ip,in_port=LOCAL,nw_dst=10.96.0.0/16 " +
			"actions=ct(commit,table=2,zone=64001,nat(src=169.254.169.2))", ""},
	{"feature in the cookie", "cookie=0x20deff105,table=0,priority=9,in_port=eth0 actions=drop", ""},
	{"quoted port",
		`cookie=0xdeff105,table=0,priority=9,in_port="patch-br-ex_node-a-to-br-int" actions=output:"a,b",NORMAL`, ""},
	{"numbered port", `cookie=0xdeff105,table=0,priority=9,in_port=7 actions=output:8`, ""},
	{"owner", "cookie=0xdeff105,table=0,priority=9 actions=drop # Service/default/web", ""},
	{"hash in a port", `cookie=0xdeff105,table=0,priority=9,in_port="a # b" actions=drop # Node/n`, ""},
	{"spelled otherwise",
		"table=2,actions=set_field:02:42:AC:12:00:03->eth_dst,set_field:02:42:ac:12:00:04->eth_src,output:eth0",
		"cookie=0xdeff105,table=2,priority=32768 " +
			"actions=set_field:02:42:ac:12:00:03->eth_dst,set_field:02:42:ac:12:00:04->eth_src,output:eth0"},
	{"comma before actions",
		"cookie=0xdeff105,table=0,priority=105,ip,in_port=2,pkt_mark=1008,actions=ct(commit,zone=64000,nat(src=172.18.0.3),exec(set_field:1->ct_mark)),output:eth0",
		"cookie=0xdeff105,table=0,priority=105,pkt_mark=0x3f0,ip,in_port=2 " +
			"actions=ct(commit,zone=64000,nat(src=172.18.0.3),exec(set_field:0x1->ct_mark)),output:eth0"},
	{"unmasked", "priority=1,tcp,nw_src=10.1.2.3/8,nw_dst=10.1.2.3/16,tcp_dst=0x50 actions=LOCAL",
		"cookie=0xdeff105,table=0,priority=1,tcp,nw_src=10.0.0.0/8,nw_dst=10.1.0.0/16,tp_dst=80 actions=LOCAL"},
	{"everything masked off", "priority=1,ip,nw_src=0.0.0.0/0 actions=",
		"cookie=0xdeff105,table=0,priority=1,ip actions=drop"},
	{"icmpv6", "priority=1,icmpv6,icmpv6_type=135 actions=NORMAL",
		"cookie=0xdeff105,table=0,priority=1,icmp6,icmp_type=135 actions=NORMAL"},
	{"icmp type 0", "priority=1,icmp,icmp_type=0 actions=NORMAL",
		"cookie=0xdeff105,table=0,priority=1,icmp,icmp_type=0 actions=NORMAL"},
	{"ct without arguments", "priority=1,ip actions=ct()", "cookie=0xdeff105,table=0,priority=1,ip actions=ct()"},

	{"no priority",
		" cookie=0xdeff105, table=5, ip " +
			"actions=ct(commit,table=2,zone=64001,nat)",
		"cookie=0xdeff105,table=5,priority=32768,ip actions=ct(commit,table=2,zone=64001,nat)"},
	{"port range v6",
		" cookie=0xdeff105, table=0, " +
			"priority=501,ipv6,in_port=LOCAL,ipv6_dst=fd00:10:96::/112 " +
			"actions=ct(commit,table=2,zone=64001,nat(src=[fd69::2]:61000-65535))",
		"cookie=0xdeff105,table=0,priority=501,ipv6,in_port=LOCAL,ipv6_dst=fd00:10:96::/112 " +
			"actions=ct(commit,table=2,zone=64001,nat(src=[fd69::2]:61000-65535))"},
	{"port v4",
		" cookie=0xdeff105, table=0, " +
			"priority=502,udp,in_port=LOCAL,nw_dst=10.96.0.0/16,tp_dst=53 " +
			"actions=ct(commit,table=2,zone=64001,nat(dst=169.254.169.2:61000))",
		"cookie=0xdeff105,table=0,priority=502,udp,in_port=LOCAL,nw_dst=10.96.0.0/16,tp_dst=53 " +
			"actions=ct(commit,table=2,zone=64001,nat(dst=169.254.169.2:61000))"},
	{"all of ct_state",
		` cookie=0xdeff105, table=1, priority=101,ct_state=est|rpl|trk|snat,ct_mark=0x1,ip actions=output:"patch-br-ex_nod"`,
		`cookie=0xdeff105,table=1,priority=101,ct_state=-new+est-rel+rpl-inv+trk+snat-dnat,ct_mark=0x1,ip actions=output:"patch-br-ex_nod"`},
	{"none of ct_state", " cookie=0xdeff105, table=1, priority=101,ct_state=0,ip actions=drop",
		"cookie=0xdeff105,table=1,priority=101,ct_state=-new-est-rel-rpl-inv-trk-snat-dnat,ip actions=drop"},
	{"some of ct_state",
		" cookie=0xdeff105, table=1, " +
			"priority=100,ct_state=+est-rel-inv+trk,ct_mark=0x1,ip actions=LOCAL",
		"cookie=0xdeff105,table=1,priority=100,ct_state=+est-rel-inv+trk,ct_mark=0x1,ip actions=LOCAL"},
	{"table 3",
		" cookie=0xdeff105, table=3, " +
			"actions=move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[],set_field:02:42:ac:12:00:03->eth_dst,LOCAL",
		"cookie=0xdeff105,table=3,priority=32768 " +
			"actions=move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[],set_field:02:42:ac:12:00:03->eth_dst,LOCAL"},
	{"resubmit",
		" cookie=0xdeff105, table=3, ip " +
			"actions=set_field:02:42:ac:12:00:03->eth_src,resubmit(,4)",
		"cookie=0xdeff105,table=3,priority=32768,ip actions=set_field:02:42:ac:12:00:03->eth_src,resubmit(,4)"},
	{"sctp6",
		" cookie=0xdeff105, table=0, " +
			"priority=104,sctp6,in_port=LOCAL,dl_src=02:42:ac:12:00:03,tp_src=1,tp_dst=77 actions=drop",
		"cookie=0xdeff105,table=0,priority=104,sctp6,in_port=LOCAL,dl_src=02:42:ac:12:00:03,tp_src=1,tp_dst=77 actions=drop"},
	{"arp",
		" cookie=0xdeff105, table=0, " +
			"priority=104,arp,in_port=LOCAL,arp_spa=1.2.3.4,arp_tpa=1.2.3.0/24 actions=NORMAL",
		"cookie=0xdeff105,table=0,priority=104,arp,in_port=LOCAL,arp_spa=1.2.3.4,arp_tpa=1.2.3.0/24 actions=NORMAL"},
	{"mark",
		" cookie=0xdeff105, pkt_mark=0x2b,ip,in_port=1,dl_dst=02:00:00:00:00:01 " +
			"actions=set_field:0->pkt_mark,output:2",
		"cookie=0xdeff105,table=0,priority=32768,pkt_mark=0x2b,ip,in_port=1,dl_dst=02:00:00:00:00:01 " +
			"actions=set_field:0x0->pkt_mark,output:2"},
	{"group", " cookie=0xdeff105, table=20, tcp,nw_dst=10.96.0.1,tp_dst=80 actions=group:7",
		"cookie=0xdeff105,table=20,priority=32768,tcp,nw_dst=10.96.0.1,tp_dst=80 actions=group:7"},
	{"MAC noted",
		" cookie=0xdeff105, table=30, ip,in_port=1 " +
			"actions=ct(commit,zone=64004,nat(src=100.64.0.2),exec(set_field:0x3->ct_mark,move:NXM_OF_ETH_SRC[]->NXM_NX_CT_LABEL[0..47])),move:NXM_NX_CT_LABEL[0..47]->NXM_OF_ETH_DST[]",
		"cookie=0xdeff105,table=30,priority=32768,ip,in_port=1 " +
			"actions=ct(commit,zone=64004,nat(src=100.64.0.2),exec(set_field:0x3->ct_mark,move:NXM_OF_ETH_SRC[]->NXM_NX_CT_LABEL[0..47])),move:NXM_NX_CT_LABEL[0..47]->NXM_OF_ETH_DST[]"},
	{"remembered",
		" cookie=0xdeff105, table=20, tcp6,ipv6_dst=fd00::1,tp_dst=80 " +
			"actions=set_field:0x104->reg6,resubmit(,25),resubmit(,26)",
		"cookie=0xdeff105,table=20,priority=32768,tcp6,ipv6_dst=fd00::1,tp_dst=80 " +
			"actions=set_field:0x104->reg6,resubmit(,25),resubmit(,26)"},
	{"learned",
		" cookie=0xdeff105, table=26, priority=100,ipv6,reg6=0x104,reg7=0xb " +
			"actions=learn(table=25,idle_timeout=10800,delete_learned,cookie=0x1040dee2a30,limit=9,eth_type=0x86dd,NXM_NX_REG6[2..31],NXM_NX_IPV6_SRC[],load:NXM_NX_REG7[]->NXM_NX_REG7[]),ct(commit,table=30,zone=64003,nat(dst=fd00::1))",
		"cookie=0xdeff105,table=26,priority=100,ipv6,reg6=0x104,reg7=0xb " +
			"actions=learn(table=25,idle_timeout=10800,delete_learned,cookie=0x1040dee2a30,limit=9,eth_type=0x86dd,NXM_NX_REG6[2..31],NXM_NX_IPV6_SRC[],load:NXM_NX_REG7[]->NXM_NX_REG7[]),ct(commit,table=30,zone=64003,nat(dst=fd00::1))"},
	{"port alone", " cookie=0xdeff105, table=11, ip actions=ct(commit,table=30,zone=64003,nat(src))",
		"cookie=0xdeff105,table=11,priority=32768,ip actions=ct(commit,table=30,zone=64003,nat(src))"},
	{"to a tunnel",
		" cookie=0xdeff105, priority=100,ip,in_port=1,nw_dst=10.244.1.0/24 " +
			"actions=set_field:0a:58:64:58:00:03->eth_dst,set_field:0->pkt_mark,set_field:0xff0003->tun_id,set_field:0x10002->tun_metadata0,set_field:172.18.0.4->tun_dst,output:5",
		"cookie=0xdeff105,table=0,priority=100,ip,in_port=1,nw_dst=10.244.1.0/24 " +
			"actions=set_field:0a:58:64:58:00:03->eth_dst,set_field:0x0->pkt_mark,set_field:0xff0003->tun_id,set_field:0x10002->tun_metadata0,set_field:172.18.0.4->tun_dst,output:5"},
	{"from a tunnel",
		" cookie=0xdeff105, priority=100,tun_id=0xff0003,tun_ipv6_src=fd00::4,tun_metadata0=0x20001,in_port=5 actions=output:1",
		"cookie=0xdeff105,table=0,priority=100,tun_id=0xff0003,tun_ipv6_src=fd00::4,tun_metadata0=0x20001,in_port=5 actions=output:1"},
	{"clauses",
		" cookie=0xdeff105, table=56, priority=200,ip,nw_src=10.244.0.7 " +
			"actions=conjunction(39425,1/2),conjunction(7,1/2)",
		"cookie=0xdeff105,table=56,priority=200,ip,nw_src=10.244.0.7 actions=conjunction(39425,1/2),conjunction(7,1/2)"},
	{"port range",
		" cookie=0xdeff105, table=56, priority=200,tcp,reg5=0x51c2,tp_dst=0x1f40/0xfffc actions=conjunction(39425,2/2)",
		"cookie=0xdeff105,table=56,priority=200,tcp,reg5=0x51c2,tp_dst=0x1f40/0xfffc actions=conjunction(39425,2/2)"},
	{"verdict", " cookie=0xdeff105, table=56, priority=200,conj_id=39425,reg5=0x51c2 actions=resubmit(,58)",
		"cookie=0xdeff105,table=56,priority=200,conj_id=39425,reg5=0x51c2 actions=resubmit(,58)"},
	{"bit of ct_mark",
		" cookie=0xdeff105, table=59, ct_state=+rpl+trk,ct_mark=0x100/0x100,ip " +
			"actions=ct(commit,zone=64003,exec(set_field:0x100/0x100->ct_mark))",
		"cookie=0xdeff105,table=59,priority=32768,ct_state=+rpl+trk,ct_mark=0x100/0x100,ip " +
			"actions=ct(commit,zone=64003,exec(set_field:0x100/0x100->ct_mark))"},
	{"bit cleared",
		" cookie=0xdeff105, table=58, ip " +
			"actions=ct(commit,table=30,zone=64003,exec(set_field:0/0x100->ct_mark)),set_field:0x7->reg5",
		"cookie=0xdeff105,table=58,priority=32768,ip " +
			"actions=ct(commit,table=30,zone=64003,exec(set_field:0x0/0x100->ct_mark)),set_field:0x7->reg5"},
	{"fragments", " cookie=0xdeff105, priority=105,ip,nw_frag=not_later actions=drop",
		"cookie=0xdeff105,table=0,priority=105,ip,nw_frag=not_later actions=drop"},
}

func TestParseFlowReadsAndPrints(t *testing.T) {
	for _, l := range flowLines {
		t.Run(l.name, func(t *testing.T) {
			f, err := ParseFlow(l.in)
			if err != nil {
				t.Fatal(err)
			}
			want := l.out
			if want == "" {
				want = l.in
			}
			if got := string(AppendOwner(f.Append(nil), f.Owner)); got != want {
				t.Fatalf("got  %s\nwant %s", got, want)
			}
			if err := f.Check(); err != nil {
				t.Errorf("Check: %v", err)
			}
		})
	}
}

// TestParseFlowNamesTheWord checks that the error names what is not understood.
func TestParseFlowNamesTheWord(t *testing.T) {
	for line, word := range map[string]string{
		"dl_vlan=5 actions=drop":                                          "dl_vlan=5",
		"dl_dst=01:00:00:00:00:00/01:00:00:00:00:00 actions=drop":         "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00",
		"dl_type=0x88cc actions=drop":                                     "dl_type=0x88cc",
		"ip,nw_proto=47 actions=drop":                                     "nw_proto=47",
		"tcp,tcp_flags=+rst-ack actions=drop":                             "tcp_flags=+rst-ack",
		"tcp,tp_dst=0x5f/0xfff0 actions=drop":                             "tp_dst=0x5f/0xfff0",
		"tcp,tp_dst=0 actions=drop":                                       "tp_dst=0",
		"ip,tp_dst=80 actions=drop":                                       "tp_dst=80",
		"pkt_mark=0x1/0x1 actions=drop":                                   "pkt_mark=0x1/0x1",
		"ct_mark=0 actions=drop":                                          "ct_mark=0",
		"ct_state=+foo,ip actions=drop":                                   "ct_state=+foo",
		"ct_state=+est-est,ip actions=drop":                               "ct_state=+est-est",
		"ip,nw_src=10.0.0.0/255.0.255.0 actions=drop":                     "nw_src=10.0.0.0/255.0.255.0",
		"ip,nw_src=10.0.0.0/33 actions=drop":                              "nw_src=10.0.0.0/33",
		"ip,nw_src=fd00::1 actions=drop":                                  "nw_src=fd00::1",
		"ip,ipv6_src=fd00::1 actions=drop":                                "ipv6_src=fd00::1",
		"nw_src=10.0.0.1 actions=drop":                                    "nw_src=10.0.0.1",
		"ipv6,ipv6_src=fe80::1%eth0 actions=drop":                         "ipv6_src=fe80::1%eth0",
		"ip,tcp actions=drop":                                             "tcp",
		"ip,nw_frag=some actions=drop":                                    "nw_frag=some",
		"icmp,icmp_type=256 actions=drop":                                 "icmp_type=256",
		"icmp6,icmp_type=136,icmp_code=256 actions=drop":                  "icmp_code=256",
		"in_port= actions=drop":                                           "in_port=",
		"table=256 actions=drop":                                          "table=256",
		"priority=-1 actions=drop":                                        "priority=-1",
		"table=1,ip":                                                      "table=1,ip",
		"":                                                                "",
		"ip actions=goto_table:11":                                        "goto_table:11",
		"ip actions=push_vlan:0x8100,set_field:4101->vlan_vid":            "push_vlan:0x8100",
		"ip actions=pop_vlan,output:2":                                    "pop_vlan",
		"ip actions=group:all":                                            "group:all",
		"ip actions=resubmit(2,4)":                                        "resubmit(2,4)",
		"ip actions=resubmit:3":                                           "resubmit:3",
		"ip actions=NORMAL,CONTROLLER:65535":                              "CONTROLLER:65535",
		"ip actions=load:0x5->NXM_NX_REG0[]":                              "load:0x5->NXM_NX_REG0[]",
		"ip actions=output:NXM_NX_REG0[]":                                 "output:NXM_NX_REG0[]",
		"ip actions=set_field:80->tcp_dst":                                "set_field:80->tcp_dst",
		"ip actions=set_field:80->eth_dst":                                "set_field:80->eth_dst",
		"ip actions=drop,NORMAL":                                          "drop",
		"ip actions=FLOOD":                                                "FLOOD",
		"ip actions=ct(commit,force,zone=5)":                              "ct(commit,force,zone=5)",
		"ip actions=ct(table=0)":                                          "ct(table=0)",
		"ip actions=ct(zone=NXM_NX_REG0[0..15])":                          "ct(zone=NXM_NX_REG0[0..15])",
		"ip actions=ct(nat(src=1.2.3.4-1.2.3.9,random))":                  "ct(nat(src=1.2.3.4-1.2.3.9,random))",
		"ip actions=ct(nat(src=1.2.3.4:9-5))":                             "ct(nat(src=1.2.3.4:9-5))",
		"ip actions=ct(commit,exec(load:0x1->NXM_NX_CT_LABEL[]))":         "ct(commit,exec(load:0x1->NXM_NX_CT_LABEL[]))",
		"ip actions=ct(commit,exec(set_field:0x1->pkt_mark))":             "ct(commit,exec(set_field:0x1->pkt_mark))",
		"ip,idle_timeout=100, actions=drop":                               "idle_timeout=100",
		"ip,hard_timeout=300, send_flow_rem importance=3, actions=NORMAL": "hard_timeout=300",
		"cookie=0x5,table=1 actions=drop":                                 "cookie=0x5",

		// A key of more than 32 bits.
		"actions=set_field:0x100000005->tun_id,set_field:1->tun_metadata0,set_field:1.2.3.4->tun_dst": "set_field:0x100000005->tun_id",
	} {
		f, err := ParseFlow(line)
		var w *WordError
		if f != nil || !errors.As(err, &w) || w.Word != word {
			t.Errorf("%s: %v, %v; want an error on %q", line, f, err, word)
		}
	}
}
