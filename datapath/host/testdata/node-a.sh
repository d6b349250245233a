# What plan emits for a dual-stack node in mode "shared" (docs/design/origins.md#host-to-service).
ip link set dev br-ex up # Node/node-a
ip link set dev ovn-k8s-mp0 address 0a:58:0a:f4:01:02 mtu 1400 up # Node/node-a
sysctl -w net.ipv4.conf.br-ex.rp_filter=2 # Node/node-a
sysctl -w net.ipv4.conf.eth0/10.rp_filter=2 # Node/node-a
sysctl -w net.ipv4.ip_forward=1 # Node/node-a
sysctl -w 'net.ipv4.ip_local_port_range=32768 60999'
ip addr replace 169.254.169.2/29 dev br-ex # Node/node-a
ip addr replace 172.18.0.3/16 dev br-ex # borrowed Node/node-a
ip -6 addr replace fc00:f853:ccd::3/64 dev br-ex nodad # borrowed
ip -6 addr replace fd69::2/125 dev br-ex nodad preferred_lft 0 # Node/node-a
ip addr replace 10.10.10.100/32 dev eth0.10 # EgressIP/blue
ip -6 addr replace fd10::64/128 dev eth0.10 nodad preferred_lft 0 # EgressIP/blue
ip addr replace 10.244.1.2/24 dev ovn-k8s-mp0 # Node/node-a
ip -6 addr replace fd00:10:244:1::2/64 dev ovn-k8s-mp0 nodad # Node/node-a
ip neigh replace 169.254.169.1 lladdr 02:42:ac:12:00:03 dev br-ex nud permanent # Node/node-a
ip neigh replace 169.254.169.4 lladdr 0a:58:a9:fe:a9:04 dev br-ex nud permanent # Node/node-a
ip -6 neigh replace fd69::1 lladdr 02:42:ac:12:00:03 dev br-ex nud permanent # Node/node-a
ip -6 neigh replace fd69::4 lladdr 0a:58:a9:fe:a9:04 dev br-ex nud permanent # Node/node-a
ip route replace 169.254.169.1/32 dev br-ex mtu 1400 src 172.18.0.3 proto 85 # Node/node-a
ip -6 route replace fd69::1/128 dev br-ex mtu 1400 src fc00:f853:ccd::3 proto 85 # Node/node-a
ip route replace 192.0.2.0/24 dev br-ex table 1000 proto 85 # EgressIP/blue
ip route replace default via 172.18.0.1 dev br-ex # borrowed Node/node-a
ip route replace 10.96.0.0/16 via 169.254.169.4 dev br-ex mtu 1400 src 172.18.0.3 proto 85 # Node/node-a
ip route replace 10.244.0.0/16 via 10.244.1.1 dev ovn-k8s-mp0 proto 85 # Node/node-a
ip -6 route replace default via fc00:f853:ccd::1 dev br-ex # borrowed Node/node-a
ip -6 route replace fd00:10:96::/112 via fd69::4 dev br-ex mtu 1400 src fc00:f853:ccd::3 proto 85 # Node/node-a
ip -6 route replace fd00:10:244::/48 via fd00:10:244:1::1 dev ovn-k8s-mp0 proto 85 # Node/node-a
ip rule add priority 5999 from all fwmark 0x3f0 table 254 # Node/node-a
ip rule add priority 6000 from 10.244.1.5/32 table 1000 # EgressIP/blue
ip -6 rule add priority 6000 from fd00:10:244:1::5/128 table 1000 # EgressIP/blue
