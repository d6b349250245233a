package ofctl_test

import (
	"testing"

	"hairpin/cluster"
	"hairpin/datapath/ovs"
)

// words has each match and each action, with and without the optional parts.
const words = `
table=9,priority=1 actions=NORMAL
table=9,priority=2,in_port=LOCAL actions=IN_PORT
table=9,priority=3,pkt_mark=0x80000001,ct_mark=0x29,reg6=0xfffffeff,reg7=0x7 actions=drop
table=9,priority=4,arp,arp_spa=172.18.0.0/16,arp_tpa=172.18.0.3 actions=LOCAL
table=9,priority=5,ip,nw_src=10.0.0.0/9,nw_dst=10.1.2.3 actions=resubmit(,254)
table=9,priority=6,ipv6,ipv6_src=fd00::/77,ipv6_dst=fd00::1 actions=set_field:fd00::2->ipv6_src,LOCAL
table=9,priority=7,ip,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02 actions=set_field:10.0.0.1->ip_src,LOCAL
table=9,priority=8,tcp,tp_src=1,tp_dst=65535 actions=set_field:02:00:00:00:00:03->eth_dst,set_field:02:00:00:00:00:04->eth_src,LOCAL
table=9,priority=9,tcp6,tp_src=1,tp_dst=2 actions=move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[],move:NXM_NX_CT_LABEL[0..47]->NXM_OF_ETH_DST[],LOCAL
table=9,priority=10,udp,tp_src=3,tp_dst=4 actions=check_pkt_larger(1514)->NXM_NX_PKT_MARK[0],LOCAL
table=9,priority=11,udp6,tp_src=3,tp_dst=4 actions=set_field:0x0->pkt_mark,set_field:0x29->reg6,LOCAL
table=9,priority=12,sctp,tp_src=5,tp_dst=6 actions=LOCAL
table=9,priority=13,sctp6,tp_src=5,tp_dst=6 actions=group:7
table=9,priority=14,icmp,icmp_type=0 actions=drop
table=9,priority=15,icmp,icmp_type=255 actions=drop
table=9,priority=15,icmp,icmp_type=3,icmp_code=4 actions=drop
table=9,priority=15,icmp,icmp_code=0 actions=drop
table=9,priority=15,icmp6,icmp_type=1,icmp_code=255 actions=drop
table=9,priority=16,icmp6 actions=drop
table=9,priority=17,icmp6,icmp_type=135,nd_target=fd00::7 actions=drop
table=9,priority=18,ip,nw_frag=no actions=drop
table=9,priority=19,ip,nw_frag=yes actions=drop
table=9,priority=20,ipv6,nw_frag=first actions=drop
table=9,priority=21,ip,nw_frag=later actions=drop
table=9,priority=22,ip,nw_frag=not_later actions=drop
table=9,priority=23,ct_state=+new+rel+inv-snat-dnat+trk,ip actions=ct(table=10,zone=65535)
table=9,priority=24,ct_state=-new+est-rel+rpl-inv+trk+snat+dnat,ip actions=ct(table=10,zone=1,nat)
table=9,priority=25,ip actions=ct(commit)
table=9,priority=26,ip actions=ct(commit,table=10,zone=1,nat(src))
table=9,priority=27,ip actions=ct(commit,zone=1,nat(src=10.0.0.1:61000-65535),exec(set_field:0x1->ct_mark))
table=9,priority=28,ipv6 actions=ct(commit,zone=1,nat(dst=[fd00::1]:80),exec(set_field:0x2->ct_mark,move:NXM_OF_ETH_SRC[]->NXM_NX_CT_LABEL[0..47]))
table=9,priority=29,ipv6 actions=ct(commit,zone=1,nat(dst=fd00::1))
table=9,priority=30,tun_id=0xffffff,tun_src=172.18.0.4,tun_metadata0=0xfffe0001,in_port=LOCAL actions=set_field:0x1->tun_id,set_field:0x1->tun_metadata0,set_field:172.18.0.5->tun_dst,LOCAL
table=9,priority=31,tun_id=0x1,tun_ipv6_src=fd00::4,tun_metadata0=0x1 actions=set_field:0xff0003->tun_id,set_field:0x7fff0002->tun_metadata0,set_field:fd00::5->tun_ipv6_dst,LOCAL
table=9,priority=32,ip,nw_ttl=1 actions=set_field:255->nw_ttl,LOCAL
table=9,priority=33,ipv6,nw_ttl=255 actions=set_field:2->nw_ttl,LOCAL
table=9,priority=34,vlan_tci=0x1000/0x1000 actions=drop
table=9,priority=35,arp,in_port=LOCAL,vlan_tci=0x1000/0x1000,arp_spa=172.18.0.3,arp_sha=02:00:00:00:00:01 actions=drop
table=9,priority=36,icmp6,icmp_type=135,nd_sll=02:00:00:00:00:01 actions=drop
table=9,priority=37,icmp6,icmp_type=135,nd_target=fd00::7,nd_sll=00:00:00:00:00:00 actions=drop
table=9,priority=38,icmp6,icmp_type=136,nd_target=fd00::7,nd_tll=02:00:00:00:00:01 actions=drop
table=9,priority=39,icmp6,icmp_type=136,nd_tll=00:00:00:00:00:00 actions=drop
table=9,priority=40,ip,nw_src=10.0.0.1 actions=conjunction(4294967295,1/2),conjunction(7,2/64)
table=9,priority=41,conj_id=4294967295,reg5=0x51c2 actions=set_field:0xffffffff->reg5,resubmit(,10)
table=9,priority=42,tcp,reg5=0x51c2,tp_dst=0x1f40/0xfffc actions=conjunction(7,2/2)
table=9,priority=43,udp6,tp_dst=0x0/0xfc00 actions=drop
table=9,priority=44,sctp,tp_dst=0x8000/0x8000 actions=drop
table=9,priority=45,ct_state=+rpl+trk,ct_mark=0x100/0x100,ip actions=ct(commit,zone=1,exec(set_field:0x100/0x100->ct_mark))
table=9,priority=46,ct_mark=0x0/0x100,ipv6 actions=ct(commit,table=10,zone=1,exec(set_field:0x0/0x100->ct_mark))
table=9,priority=47,tcp,tcp_flags=+syn-ack actions=drop
table=9,priority=48,tcp6,tcp_flags=-syn actions=drop
table=9,priority=49,ct_state=-inv+trk,ct_nw_proto=17,ct_tp_dst=53,ip,nw_frag=later actions=drop
table=9,priority=65535,ip actions=learn(table=25,idle_timeout=65535,delete_learned,cookie=0x280deeffff,limit=3,eth_type=0x800,NXM_NX_REG6[2..31],NXM_OF_IP_SRC[],load:NXM_NX_REG7[]->NXM_NX_REG7[]),LOCAL
table=9,priority=65534,ipv6 actions=learn(table=25,idle_timeout=1,delete_learned,cookie=0x2c0dee0001,limit=4294967295,eth_type=0x86dd,NXM_NX_REG6[1..31],NXM_NX_IPV6_SRC[],load:NXM_NX_REG7[]->NXM_NX_REG7[]),LOCAL
`

// TestEachWordIsWritten checks that ovs-ofctl reads back the flows that were written as messages.
func TestEachWordIsWritten(t *testing.T) {
	n := serviceNode(t)
	want := withGroups(t, n)
	each := parse(t, words).Flows
	for _, f := range each.All() {
		f.Bridge = "br-svc"
		want.Flows.Put(f.ID(), f)
	}
	own := group(70, cluster.IPv4, 1)
	own.Buckets[0].CT.Mark, own.Buckets[0].CT.EthSrc = 0x29, true
	want.Groups.Put(own.GroupKey, own)
	target := open(t, n)
	reach(t, target, want)
	if d := ovs.Diff(want, read(t, open(t, n))); !d.Empty() {
		t.Errorf("another reader finds %d differences: %+v", d.Count(), d)
	}
	reach(t, target, withGroups(t, n)) // each can be deleted by its match
}
