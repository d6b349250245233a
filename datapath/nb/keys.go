package nb

import "fmt"

// Claimed tells whether a key of a row's options (of a switch: other_config) is Hairpin's to write. Other keys in the
// same map belong to others (ovn-northd keeps notes in NB_Global's options, an administrator may set one by hand):
// they are not read, not compared and not removed. Who lets plan write another key adds it here.
func Claimed(t Table, key string) bool {
	// The keys of ovn-nb(5) that configure a row. Those that ovn-northd writes itself (mac_prefix, max_tunid,
	// svc_monitor_mac, northd_internal_version …) are left out on purpose.
	switch t {
	case TableGlobal:
		switch key {
		case "name", "default_acl_drop", "enable_chassis_nb_cfg_update", "fdb_removal_limit", "ignore_lsp_down",
			"mac_binding_removal_limit", "northd-backoff-interval-ms", "northd_probe_interval", "use_ct_inv_match",
			"use_logical_dp_groups":
			return true
		}
	case TableRouter:
		switch key {
		case "chassis", "lb_force_snat_ip", "dnat_force_snat_ip", "snat-ct-zone", "dynamic_neigh_routers",
			"always_learn_from_arp_request", "mac_binding_age_threshold", "requested-tnl-key", "mcast_relay", "ct-zone-limit":
			return true
		}
	case TableRouterPort:
		switch key {
		case "gateway_mtu", "gateway_mtu_bypass", "requested-tnl-key", "redirect-type", "reside-on-redirect-chassis", "mcast_flood":
			return true
		}
	case TableSwitch:
		switch key {
		case "subnet", "ipv6_prefix", "exclude_ips", "interconn-ts", "requested-tnl-key", "mcast_snoop", "mcast_querier",
			"mcast_flood_unregistered", "broadcast-arps-to-all-routers", "fdb_age_threshold", "ct-zone-limit":
			return true
		}
	case TableSwitchPort:
		switch key {
		case "router-port", "nat-addresses", "exclude-lb-vips-from-garp", "arp_proxy", "network_name", "requested-tnl-key",
			"requested-chassis", "iface-id-ver", "mcast_flood", "localnet_learn_fdb", "disable_arp_nd_rsp", "force_fdb_lookup":
			return true
		}
	case TablePolicy:
		return key == "pkt_mark"
	case TableLoadBalancer:
		switch key {
		case "reject", "hairpin_snat_ip", "skip_snat", "add_route", "neighbor_responder", "affinity_timeout", "ct_flush",
			"use_stateless_nat", "event":
			return true
		}
	}
	return false
}

// CheckKeys refuses a row with an option key that is not Claimed: it could be written, but never be found again.
func CheckKeys(r Row) error {
	for key := range Options(r) {
		if t := r.Key().Table; !Claimed(t, key) {
			return fmt.Errorf("%s: option %q is not one that Hairpin writes (nb.Claimed)", r.Key(), key)
		}
	}
	return nil
}

// Options gives the row's options, or a switch's other_config; nil for rows that have none.
func Options(r Row) map[string]string {
	switch r := r.(type) {
	case *Global:
		return r.Options
	case *Router:
		return r.Options
	case *RouterPort:
		return r.Options
	case *Switch:
		return r.OtherConfig
	case *SwitchPort:
		return r.Options
	case *Policy:
		return r.Options
	case *LoadBalancer:
		return r.Options
	}
	return nil
}

// String gives the table's name in OVN's schema.
func (t Table) String() string {
	switch t {
	case TableGlobal:
		return "NB_Global"
	case TableChassis:
		return "Chassis"
	case TableAddressSet:
		return "Address_Set"
	case TableGroup:
		return "Load_Balancer_Group"
	case TableRouter:
		return "Logical_Router"
	case TableRouterPort:
		return "Logical_Router_Port"
	case TableSwitch:
		return "Logical_Switch"
	case TableSwitchPort:
		return "Logical_Switch_Port"
	case TableQoS:
		return "QoS"
	case TableMACBinding:
		return "Static_MAC_Binding"
	case TableRoute:
		return "Logical_Router_Static_Route"
	case TablePolicy:
		return "Logical_Router_Policy"
	case TableNAT:
		return "NAT"
	case TableLoadBalancer:
		return "Load_Balancer"
	}
	return fmt.Sprintf("Table(%d)", uint8(t))
}

// String names a row for messages: `Logical_Router "GR_node-a"`.
func (k Key) String() string { return fmt.Sprintf("%s %q", k.Table, k.Name) }
