set NB_Global . name=node-a options:name=node-a # Node/node-a
chassis-add node-b geneve 172.18.0.4 -- set Chassis node-b hostname=node-b other_config:is-remote=true # Node/node-b
create Address_Set name=nodes 'addresses=172.18.0.3,172.18.0.4,"fc00:f853:ccd::3"' # Node/node-a
create Load_Balancer_Group name=clusterLBGroup # Node/node-a
create Load_Balancer_Group name=clusterRouterLBGroup # Node/node-a
lr-add GR_node-a -- set Logical_Router GR_node-a options:always_learn_from_arp_request=false options:chassis=node-a options:lb_force_snat_ip=router_ip options:snat-ct-zone=0 -- --id=@g0 get Load_Balancer_Group clusterLBGroup -- add Logical_Router GR_node-a load_balancer_group @g0 -- --id=@g1 get Load_Balancer_Group clusterRouterLBGroup -- add Logical_Router GR_node-a load_balancer_group @g1 # Node/node-a
lr-add ovn_cluster_router # Node/node-a
lrp-add GR_node-a rtoe-GR_node-a 02:42:ac:12:00:03 172.18.0.3/16 fc00:f853:ccd::3/64 # Node/node-a
lrp-add GR_node-a rtoj-GR_node-a 0a:58:64:40:00:03 100.64.0.3/16 fd98::3/64 # Node/node-a
lrp-add ovn_cluster_router rtos-node-a 0a:58:0a:f4:01:01 10.244.1.1/24 fd00:10:244:1::1/64 -- lrp-set-gateway-chassis rtos-node-a node-a 1 -- set Logical_Router_Port rtos-node-a options:gateway_mtu=1400 # Node/node-a
ls-add node-a -- set Logical_Switch node-a other_config:subnet=10.244.1.0/24 -- --id=@g0 get Load_Balancer_Group clusterLBGroup -- add Logical_Switch node-a load_balancer_group @g0 # Node/node-a
ls-add transit_switch -- set Logical_Switch transit_switch other_config:interconn-ts=transit_switch other_config:requested-tnl-key=16711683 # Node/node-a
lsp-add node-a default_web -- lsp-set-addresses default_web '0a:58:0a:f4:01:03 10.244.1.3 fd00:10:244:1::3' # Pod/default/web
lsp-add node-a stor-node-a -- lsp-set-type stor-node-a router -- lsp-set-addresses stor-node-a router -- lsp-set-options stor-node-a router-port=rtos-node-a # Node/node-a
lsp-add transit_switch tstor-node-b -- lsp-set-type tstor-node-b remote -- lsp-set-addresses tstor-node-b '0a:58:64:58:00:04 100.88.0.4/16 fd97::4/64' -- lsp-set-options tstor-node-b requested-chassis=node-b requested-tnl-key=4 # Node/node-b
--apply-after-lb acl-add node-a from-lport 1000 '(ip4 && udp.dst == 68) || (ip6 && udp.dst == 546)' drop # Node/node-a
--apply-after-lb acl-add node-a from-lport 1001 'inport == {"stor-node-a", "k8s-node-a"} && (ip4 && udp.dst == 68)' allow # Node/node-a
create Static_MAC_Binding logical_port=rtoe-GR_node-a ip=169.254.169.4 'mac="0a:58:a9:fe:a9:04"' override_dynamic_mac=true # Node/node-a
create Static_MAC_Binding logical_port=rtoe-GR_node-a 'ip="fd69::4"' 'mac="0a:58:a9:fe:a9:04"' override_dynamic_mac=true # Node/node-a
lr-route-add GR_node-a 0.0.0.0/0 172.18.0.1 rtoe-GR_node-a # Node/node-a
--ecmp lr-route-add GR_node-a 0.0.0.0/0 172.18.0.2 rtoe-GR_node-a # Node/node-a
lr-route-add ovn_cluster_router 100.64.0.3 100.64.0.3 # Node/node-a
--policy=src-ip lr-route-add ovn_cluster_router 10.244.0.0/16 100.64.0.3 # Node/node-a
--policy=src-ip lr-route-add ovn_cluster_router fd00:10:244::/48 fd98::3 # Node/node-a
lr-policy-add ovn_cluster_router 100 'ip4.src == 10.244.1.3' reroute 100.64.0.3,100.64.0.4 pkt_mark=50000 # EgressIP/out
lr-policy-add ovn_cluster_router 1004 'inport == "rtos-node-a" && ip4.dst == 172.18.0.3 /* node-a */' reroute 10.244.1.2 # Node/node-a
lr-policy-add ovn_cluster_router 102 'ip4.src == 10.244.0.0/16 && ip4.dst == $nodes' allow pkt_mark=1008 # Node/node-a
lr-policy-add ovn_cluster_router 99 'ip6.src == fd00:10:244::/48' drop # EgressIP/out
'--match=outport == "rtoj-GR_node-a"' lr-nat-add GR_node-a snat 100.64.0.3 0.0.0.0/0 # Node/node-a
lr-nat-add GR_node-a snat 172.18.0.3 10.244.1.0/24 # Node/node-a
--portrange lr-nat-add GR_node-a snat fc00:f853:ccd::3 fd00:10:244:1::/64 61000-65535 # Node/node-a
--gateway-port=rtos-node-a lr-nat-add ovn_cluster_router dnat_and_snat 169.254.0.3 10.244.1.3 default_web 0a:58:a9:fe:00:03 # Node/node-a
lb-add default/web:http/tcp/IPv4 10.96.0.10:80 10.244.1.3:8080,10.244.2.3:8080 tcp -- lb-add default/web:http/tcp/IPv4 172.18.0.3:30080 10.244.1.3:8080 tcp -- set Load_Balancer default/web:http/tcp/IPv4 options:event=false options:reject=true selection_fields=ip_src -- --id=@lb get Load_Balancer default/web:http/tcp/IPv4 -- add Load_Balancer_Group clusterLBGroup load_balancer @lb -- add Load_Balancer_Group clusterRouterLBGroup load_balancer @lb # Service/default/web
lb-add default/web:http/udp/IPv6 '[fd00:10:96::a]:80' '[fd00:10:244:1::3]:8080' udp -- set Load_Balancer default/web:http/udp/IPv6 options:reject=true selection_fields=ipv6_src -- --id=@lb get Load_Balancer default/web:http/udp/IPv6 -- add Load_Balancer_Group clusterLBGroup load_balancer @lb # Service/default/web
lb-add none 10.96.0.11:80 '' sctp # Service/default/none
