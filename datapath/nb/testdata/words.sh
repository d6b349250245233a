set NB_Global . name=node-a options:name=node-a # Node/node-a
chassis-add node-b geneve 172.18.0.3 -- set Chassis node-b hostname=node-b other_config:is-remote=true # Node/node-b
create Address_Set name=nodes 'addresses=10.0.0.1,10.1.0.0/16,"fd00::1"'
create Load_Balancer_Group name=g
lr-add GR_node-a -- set Logical_Router GR_node-a options:chassis=node-a 'options:lb_force_snat_ip="10.0.0.1 fd00::1"' -- --id=@g0 get Load_Balancer_Group g -- add Logical_Router GR_node-a load_balancer_group @g0
lrp-add ovn_cluster_router rtos-node-a 0a:58:0a:f4:01:01 10.244.1.1/24 fd00:10:244:1::1/64 -- lrp-set-gateway-chassis rtos-node-a node-a 1 # Node/node-a
ls-add transit_switch -- set Logical_Switch transit_switch other_config:interconn-ts=transit_switch other_config:requested-tnl-key=16711683
lsp-add join jtor-GR_node-a -- lsp-set-type jtor-GR_node-a router -- lsp-set-addresses jtor-GR_node-a router -- lsp-set-options jtor-GR_node-a router-port=rtoj-GR_node-a
--id=@q create QoS direction=from-lport priority=100 'match="inport == \"a\""' action:mark=0 -- add Logical_Switch join qos_rules @q # Node/node-a
qos-add node-a from-lport 100 'ct.rpl && ip4.src == $a' mark=42
--apply-after-lb acl-add node-a from-lport 1000 'ip4 && udp.dst == 68' drop # Node/node-a
create Static_MAC_Binding logical_port=rtoe-GR_node-a ip=169.254.169.4 'mac="0a:58:a9:fe:a9:04"' override_dynamic_mac=true
lr-route-add GR_node-a 0.0.0.0/0 172.18.0.1 rtoe-GR_node-a
--policy=src-ip lr-route-add ovn_cluster_router 10.244.0.0/16 100.64.0.3
lr-route-add r 0.0.0.0/0 10.0.0.1
--ecmp lr-route-add r 0.0.0.0/0 10.0.0.2
lr-route-add r 10.0.0.0/8 10.0.0.2
lr-policy-add ovn_cluster_router 1004 'inport == "rtos-node-a" && ip4.dst == 172.18.0.3' reroute 10.244.1.2
lr-policy-add ovn_cluster_router 102 'ip4.src == 10.244.0.0/16' allow pkt_mark=1008
'--match=outport == "rtoj-GR_node-a"' lr-nat-add GR_node-a snat 100.64.0.3 0.0.0.0/0
--portrange lr-nat-add GR_node-a snat 172.18.0.3 10.244.1.0/24 61000-65535
--gateway-port=rtos-node-a lr-nat-add ovn_cluster_router dnat_and_snat 169.254.0.3 10.244.1.2 k8s-node-a 0a:58:a9:fe:00:03 # Node/node-a
lb-add default/web:http/tcp/IPv4 10.96.0.10:80 10.244.1.3:8080,10.244.2.3:8080 tcp -- set Load_Balancer default/web:http/tcp/IPv4 options:reject=true selection_fields=ip_src -- --id=@lb get Load_Balancer default/web:http/tcp/IPv4 -- add Load_Balancer_Group g load_balancer @lb # Service/default/web
lb-add x 10.96.0.10:80 '' udp
create Load_Balancer name=y protocol=sctp
