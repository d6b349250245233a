package nbdb_test

import (
	"testing"

	"hairpin/apply"
	"hairpin/apply/applytest"
	"hairpin/datapath/nb"
	"hairpin/datapath/nb/nbtest"
)

func TestLaws(t *testing.T) {
	n := node(t)
	spoils := map[string]func(testing.TB){}
	for name, command := range hands() {
		spoils[name] = func(t testing.TB) { sh(t, n, command) }
	}
	applytest.Laws(t, applytest.Harness[nb.State, nb.Delta]{
		New:    func(t testing.TB) apply.Target[nb.State, nb.Delta] { return open(t, n) },
		Diff:   nb.Diff,
		Print:  nb.Print,
		States: nbtest.States(false),
		Rich:   rich(t),
		Foreign: func(t testing.TB) func() string {
			sh(t, n, foreign)
			return func() string { return sh(t, n, showForeign) }
		},
		Spoils: spoils,
		Refused: func(testing.TB) nb.Delta {
			return nb.Diff(nb.State{{Table: nb.TableSwitchPort, Name: "p"}: &nb.SwitchPort{Name: "p",
				Switch: "nowhere"}}, nil)
		},
	})
}

// hands returns manual changes of Rich's rows, which must be noticed and repaired.
func hands() map[string]string {
	return map[string]string{
		"a load balancer's backends":       `ovn-nbctl set load_balancer default/web:http/tcp/IPv4 'vips:"10.96.0.10:80"="10.9.9.9:1"'`,
		"a load balancer is deleted":       `ovn-nbctl lb-del none`,
		"its selection fields":             `ovn-nbctl set load_balancer default/web:http/tcp/IPv4 selection_fields=tp_src`,
		"it leaves a group":                `ovn-nbctl remove load_balancer_group clusterRouterLBGroup load_balancer $(ovn-nbctl --bare --columns=_uuid find load_balancer 'name="default/web:http/tcp/IPv4"')`,
		"a VIP that cannot be read":        `ovn-nbctl set load_balancer none 'vips:here=there'`,
		"a route is deleted":               `ovn-nbctl --policy=src-ip lr-route-del ovn_cluster_router 10.244.0.0/16`,
		"a route's port":                   `ovn-nbctl clear logical_router_static_route $(ovn-nbctl --bare --columns=_uuid find logical_router_static_route nexthop=172.18.0.1) output_port`,
		"a route's next hop is nonsense":   `ovn-nbctl set logical_router_static_route $(ovn-nbctl --bare --columns=_uuid find logical_router_static_route nexthop=172.18.0.1) nexthop=nowhere`,
		"policies are deleted":             `ovn-nbctl lr-policy-del ovn_cluster_router`,
		"a policy's next hops":             `ovn-nbctl set logical_router_policy $(ovn-nbctl --bare --columns=_uuid find logical_router_policy priority=100) nexthops=9.9.9.9`,
		"NAT is deleted":                   `ovn-nbctl lr-nat-del GR_node-a`,
		"a NAT row's port":                 `ovn-nbctl set nat $(ovn-nbctl --bare --columns=_uuid find nat logical_ip=10.244.1.0/24) logical_port=x`,
		"a NAT row's gateway port":         `ovn-nbctl clear nat $(ovn-nbctl --bare --columns=_uuid find nat external_ip=169.254.0.3) gateway_port`,
		"a NAT row's other gateway port":   `ovn-nbctl set nat $(ovn-nbctl --bare --columns=_uuid find nat external_ip=169.254.0.3) gateway_port=$(ovn-nbctl --bare --columns=_uuid list logical_router_port rtoj-GR_node-a)`,
		"a NAT row's external MAC":         `ovn-nbctl set nat $(ovn-nbctl --bare --columns=_uuid find nat external_ip=169.254.0.3) 'external_mac="00:00:00:00:00:01"'`,
		"the port that a NAT row is for":   `ovn-nbctl lrp-del rtos-node-a`,
		"a port is disabled":               `ovn-nbctl lsp-set-enabled default_web disabled`,
		"a port's security":                `ovn-nbctl lsp-set-port-security default_web 0a:58:0a:f4:01:04`,
		"a port's addresses":               `ovn-nbctl lsp-set-addresses default_web unknown`,
		"a port is deleted":                `ovn-nbctl lsp-del stor-node-a`,
		"a port's option is gone":          `ovn-nbctl lsp-set-options stor-node-a`,
		"a router port is disabled":        `ovn-nbctl lrp-set-enabled rtos-node-a disabled`,
		"a router port's networks":         `ovn-nbctl add logical_router_port rtos-node-a networks 10.3.3.3/24`,
		"another gateway chassis":          `ovn-nbctl lrp-set-gateway-chassis rtos-node-a other 7`,
		"the gateway chassis' priority":    `ovn-nbctl lrp-set-gateway-chassis rtos-node-a node-a 7`,
		"a router is deleted":              `ovn-nbctl lr-del GR_node-a`,
		"a router's option":                `ovn-nbctl set logical_router GR_node-a options:chassis=other`,
		"a router's option of ours more":   `ovn-nbctl set logical_router ovn_cluster_router options:chassis=other`,
		"a router leaves a group":          `ovn-nbctl clear logical_router GR_node-a load_balancer_group`,
		"an ACL's action":                  `ovn-nbctl set acl $(ovn-nbctl --bare --columns=_uuid find acl priority=1000) action=allow`,
		"an ACL is of another stage":       `ovn-nbctl remove acl $(ovn-nbctl --bare --columns=_uuid find acl priority=1000) options apply-after-lb`,
		"an ACL is of another direction":   `ovn-nbctl set acl $(ovn-nbctl --bare --columns=_uuid find acl priority=1000) direction=to-lport`,
		"ACLs are deleted":                 `ovn-nbctl acl-del node-a`,
		"a switch is deleted":              `ovn-nbctl ls-del node-a`,
		"a switch's tunnel key":            `ovn-nbctl remove logical_switch transit_switch other_config requested-tnl-key`,
		"a switch has another name":        `ovn-nbctl set logical_switch transit_switch name=transit`,
		"an address set":                   `ovn-nbctl add address_set nodes addresses 9.9.9.9`,
		"an address set is deleted":        `ovn-nbctl destroy address_set nodes`,
		"a group has another name":         `ovn-nbctl set load_balancer_group clusterLBGroup name=other`,
		"a neighbour's address":            `ovn-nbctl set static_mac_binding $(ovn-nbctl --bare --columns=_uuid find static_mac_binding ip=169.254.169.4) 'mac="00:00:00:00:00:01"'`,
		"a neighbour may be learned":       `ovn-nbctl set static_mac_binding $(ovn-nbctl --bare --columns=_uuid find static_mac_binding ip=169.254.169.4) override_dynamic_mac=false`,
		"neighbours are deleted":           `ovn-nbctl --all destroy static_mac_binding`,
		"the zone's name":                  `ovn-nbctl set nb_global . name=other options:name=other`,
		"the zone's owners":                `ovn-nbctl clear nb_global . external_ids`,
		"an owner is taken":                `ovn-nbctl remove load_balancer none external_ids k8s.ovn.org/owner`,
		"owners of unique rows are taken":  `ovn-nbctl remove logical_switch_port default_web external_ids k8s.ovn.org/owner -- remove address_set nodes external_ids k8s.ovn.org/owner -- remove logical_router GR_node-a external_ids k8s.ovn.org/owner`,
		"another owner":                    `ovn-nbctl set load_balancer none external_ids:k8s.ovn.org/owner=Service/default/other`,
		"an owner that is none":            `ovn-nbctl set load_balancer none external_ids:k8s.ovn.org/owner=me`,
		"a remote chassis is deleted":      `ovn-sbctl chassis-del node-b`,
		"a remote chassis' address":        `ovn-sbctl set encap $(ovn-sbctl --bare --columns=_uuid find encap chassis_name=node-b) ip=172.18.0.99`,
		"a remote chassis is remote not":   `ovn-sbctl set chassis node-b other_config:is-remote=false`,
		"a load balancer is there twice":   `ovn-nbctl create load_balancer name=none 'vips:"1.1.1.1:1"=""' external_ids:k8s.ovn.org/owner=Service/default/none`,
		"a route is there twice":           `ovn-nbctl --id=@r create logical_router_static_route ip_prefix=0.0.0.0/0 nexthop=172.18.0.1 external_ids:k8s.ovn.org/owner=Node/node-a -- add logical_router GR_node-a static_routes @r`,
		"a row of ours that nobody wanted": `ovn-nbctl lr-add stray -- set logical_router stray external_ids:k8s.ovn.org/owner=Node/node-z`,
		"everything":                       `ovn-nbctl --all destroy logical_router -- --all destroy logical_switch -- --all destroy load_balancer -- --all destroy address_set -- --all destroy load_balancer_group -- --all destroy static_mac_binding`,
	}
}

// foreign adds foreign rows, and foreign keys in Hairpin's rows.
const foreign = `
ovn-nbctl lr-add foreign -- lrp-add foreign fp 00:00:00:00:00:01 10.1.1.1/24 -- lr-route-add foreign 10.2.0.0/16 10.1.1.2 -- lr-policy-add foreign 5 ip4 drop
ovn-nbctl ls-add fsw -- lsp-add fsw fport -- acl-add fsw to-lport 5 ip4 drop -- lb-add flb 1.1.1.1:80 2.2.2.2:80 -- ls-lb-add node-a flb -- ls-lb-add fsw flb
ovn-nbctl create load_balancer_group name=fgroup -- create address_set name=fset addresses=1.1.1.1
ovn-nbctl create static_mac_binding logical_port=rtoe-GR_node-a ip=1.1.1.1 'mac="00:00:00:00:00:01"'
ovn-nbctl lr-nat-add ovn_cluster_router dnat_and_snat 169.254.9.9 10.244.9.9
ovn-nbctl lr-route-add GR_node-a 10.3.0.0/16 172.18.0.77 -- lr-policy-add ovn_cluster_router 7 ip4 allow
ovn-nbctl lsp-add node-a foreign-port -- acl-add node-a to-lport 6 ip4 allow
ovn-nbctl set nb_global . options:foreign=1 external_ids:foreign=1 -- set load_balancer none options:foreign=1 external_ids:foreign=1 -- set logical_switch_port default_web options:foreign=1 external_ids:foreign=1
ovn-sbctl chassis-add fchassis geneve 10.9.9.9
`

// showForeign prints them. It looks for keys only in rows that Rich has.
const showForeign = `
ovn-nbctl --columns=name,ports,static_routes,policies,options,external_ids list logical_router foreign
ovn-nbctl list logical_router_port fp
ovn-nbctl find logical_router_static_route nexthop=10.1.1.2
ovn-nbctl find logical_router_policy priority=5
ovn-nbctl list logical_switch fsw
ovn-nbctl --columns=name,addresses,type,options list logical_switch_port fport
ovn-nbctl find acl priority=5
ovn-nbctl list load_balancer flb
ovn-nbctl list load_balancer_group fgroup
ovn-nbctl list address_set fset
ovn-nbctl find static_mac_binding ip=1.1.1.1
ovn-nbctl get nb_global . options:foreign external_ids:foreign
ovn-sbctl --columns=name,encaps,other_config list chassis fchassis
`
