package ops

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric is one metric of a process, as docs/reference/metrics.md lists it.
type Metric struct {
	Name   string
	Kind   string // "gauge", "counter", "histogram"
	Labels []string
	Help   string
	Of     string // "agent", "controller" or "both"
}

// Kinds of metrics, and the processes that have them.
const (
	gauge, counter, histogram     = "gauge", "counter", "histogram"
	OfAgent, OfController, ofBoth = "agent", "controller", "both"
)

// ClaimsDropped counts the claims of egress addresses that were not checked.
const ClaimsDropped = "hairpin_egress_claims_dropped_total"

// Metrics returns the metrics of the processes, except those of every Go program (go_*, process_*).
// A new metric is a line in one of the lists below, and its value: for a gauge or counter that is
// read at each scrape, in agent/measure.go or controller/monitoring.go; for a histogram or a
// counter of events, a call of Took or Count where it happens. eventCounter names the counters of
// events.
func Metrics() []Metric {
	return slices.Concat(commonMetrics(), partMetrics(), nodeMetrics(), datapathMetrics(), egressMetrics(),
		controllerMetrics())
}

// eventCounter reports whether events update a counter; other counters are read at each scrape.
func eventCounter(name string) bool {
	switch name {
	case ClaimsDropped, "hairpin_cni_errors_total", "hairpin_controller_node_ids_given_total",
		"hairpin_controller_egress_assignments_total", "hairpin_controller_load_balancer_allocations_total":
		return true
	}
	return false
}

func commonMetrics() []Metric {
	return []Metric{
		{"hairpin_build_info", gauge, []string{"version", "goversion"},
			"The version and Go version of this build; always 1.", ofBoth},
		{"hairpin_ready", gauge, nil,
			"1 if /readyz answers 200: everything was in order once and is being maintained. It does not mean that " +
				"every packet arrives.", ofBoth},
		{"hairpin_api_reachable", gauge, nil,
			"1 if the Kubernetes API answered the last call of this process; 0 before the first call. A server " +
				"error (5xx) for one resource counts as an answer; errors for two do not, nor does 401. Meanwhile " +
				"the last known state stays in use.", ofBoth},
		{"hairpin_problems", gauge, nil,
			"Problems of objects that this process knows, as `hairpin status` and Events report them.", ofBoth},
		{"hairpin_plan_duration_seconds", histogram, nil,
			"Time to compute a node's desired state from facts in memory, without writing it.", ofBoth},
		{"hairpin_listener_up", gauge, []string{"for", "address"}, "1 if the process listens on a configured address.",
			ofBoth},
	}
}

func partMetrics() []Metric {
	part := []string{"part"}
	return []Metric{
		{"hairpin_pending_since_timestamp_seconds", gauge, nil,
			"Unix time since when the desired state of the node has a change that is not applied everywhere; 0 if " +
				"there is none.", OfAgent},
		{"hairpin_part_in_sync", gauge, part,
			"1 if the part (ovn, openvswitch, nft, host, connections, and uplink if the agent made the gateway " +
				"bridge) equals the desired state, as far as the agent knows: a change by others counts from its " +
				"notification. For ovn this means rows of the Northbound database, not flows.", OfAgent},
		{"hairpin_part_since_timestamp_seconds", gauge, part, "Unix time at which hairpin_part_in_sync got its value.",
			OfAgent},
		{"hairpin_part_reads_total", counter, part, "Reads of the part from the real system.", OfAgent},
		{"hairpin_part_applies_total", counter, part, "Successful transactions.", OfAgent},
		{"hairpin_part_written_total", counter, part,
			"Changes in successful transactions: rows, flows, elements, routes.", OfAgent},
		{"hairpin_part_drift_total", counter, part,
			"Changes by others to a part that was in sync, found by a read; the agent repairs them. Changes that " +
				"were undone between two reads are not seen.", OfAgent},
		{"hairpin_part_errors_total", counter, part, "Failed reads and transactions. Each is retried.", OfAgent},
		{"hairpin_part_apply_duration_seconds", histogram, part,
			"Time of one transaction with the part, failed ones included. For ovn it ends when the database has the " +
				"rows, not when flows are installed.", OfAgent},
		{"hairpin_pass_duration_seconds", histogram, nil,
			"Time to compare all parts with the desired state, including the reads and transactions it needed.",
			OfAgent},
	}
}

func nodeMetrics() []Metric {
	return []Metric{
		{"hairpin_data_plane_kept", gauge, nil,
			"1 if the data plane is being maintained; health checks of load balancers and /healthz answer " +
				"accordingly, except for taints. An agent that starts while the API is down counts its predecessor's " +
				"state as maintained.", OfAgent},
		{"hairpin_node_eligible", gauge, nil,
			"0 if the Node is being deleted or about to be, so that /healthz makes load balancers avoid it.", OfAgent},
		{"hairpin_node_info", gauge, []string{"mode", "engine", "datapath", "openvswitch", "ovn"},
			"The gateway mode, service engine and datapath (kernel or userspace) of this node, and the versions of " +
				"Open vSwitch and OVN; always 1. None before all are known.", OfAgent},
		{"hairpin_snapshot_objects", gauge, []string{"kind"},
			"Objects of the cluster that the agent knows: nodes, frontends (one per Service port and family), backends.", OfAgent},
		{"hairpin_pods", gauge, nil, "Pods of this node that have an interface or are getting one.", OfAgent},
		{"hairpin_ovs_restarts_total", counter, nil, "Restarts of ovs-vswitchd that the agent detected and repaired.",
			OfAgent},
		{"hairpin_redirect_packets_total", counter, []string{"packets"},
			"Packets that the eBPF programs of `nodeport-path = redirect` processed: requests and replies that they " +
				"redirected, fragments of any kind and replies without a route that they left to the host. None " +
				"without programs; it restarts at 0 when all of them were removed.", OfAgent},
		{"hairpin_openvswitch_entries", gauge, []string{"of"},
			"Entries of Open vSwitch that have a limit, with `service-engine = openflow`: connections of pods " +
				"(conntrack zone 64003), and affinity clients, the learned flows for session affinity. " +
				"None without a limit.", OfAgent},
		{"hairpin_openvswitch_entries_limit", gauge, []string{"of"},
			"The limit of hairpin_openvswitch_entries, also where an administrator set it. Beyond it, new " +
				"connections of pods are not tracked, and further clients have no affinity.", OfAgent},
		{"hairpin_policy_isolated_pods", gauge, nil,
			"Pods of this node to which a NetworkPolicy or a ClusterNetworkPolicy applies in some direction.",
			OfAgent},
		{"hairpin_policy_enforcement_duration_seconds", histogram, nil,
			"Time from when the agent received a change of NetworkPolicies until everything that it changes on " +
				"this node is applied. Changes that arrive together are one sample, and those that change nothing " +
				"here count too. None with manifests.", OfAgent},
		{"hairpin_policy_packets_total", counter, []string{"policy", "direction"},
			"Packets, without replies, that rules of a NetworkPolicy or a ClusterNetworkPolicy accepted for pods of " +
				"this node, by NAMESPACE/NAME, or NAME of a ClusterNetworkPolicy. Equal rules of several policies " +
				"of a pod count for the first by name. Packets of " +
				"the last moment before a rule changes may be missing.", OfAgent},
		{"hairpin_policy_denied_packets_total", counter, []string{"policy", "direction"},
			"Packets from or to pods of this node that rules of a ClusterNetworkPolicy denied, by NAME. Packets of " +
				"the last moment before a rule changes may be missing.", OfAgent},
		{"hairpin_policy_dropped_packets_total", counter, []string{"namespace", "pod", "direction"},
			"Packets from or to a pod of this node that no rule of its NetworkPolicies accepts. Packets of the " +
				"last moment before the pod's policies change may be missing.", OfAgent},
		{"hairpin_health_check_node_ports", gauge, []string{"state"},
			"Health check node ports of Services, by state: listening or failed.", OfAgent},
		{"hairpin_cni_duration_seconds", histogram, []string{"command"},
			"Time of a CNI plugin's request in the agent, failed ones included, without the start of " +
				"the plugin's process.", OfAgent},
		{"hairpin_cni_errors_total", counter, []string{"command", "code"},
			"Failed requests of the CNI plugin, by the error code of the CNI specification.", OfAgent},
		{"kubeproxy_network_programming_duration_seconds", histogram, []string{"ip_family"},
			"Time from a change of a Service's endpoints (annotation " +
				"endpoints.kubernetes.io/last-change-trigger-time, by the control plane's clock) until " +
				"ovn-controller has confirmed this node's flows (hv_cfg). Changes before the agent's start do not " +
				"count. One sample per Service, family and change.", OfAgent},
	}
}

// datapathMetrics are those of Open vSwitch, OVN and the kernel.
func datapathMetrics() []Metric {
	return []Metric{
		{"hairpin_services_without_local_endpoints", gauge, nil,
			"Services with externalTrafficPolicy Local that have ready endpoints, but none on this node.", OfAgent},
		{"hairpin_conntrack_entries", gauge, []string{"table"},
			"Connections in a conntrack table: kernel, of the host and on the kernel datapath also of pods, and " +
				"userspace, of the userspace datapath.", OfAgent},
		{"hairpin_conntrack_entries_limit", gauge, []string{"table"},
			"The limit of hairpin_conntrack_entries. Beyond it, packets of new connections are dropped.", OfAgent},
		{"hairpin_dropped_packets_total", counter, []string{"bridge", "reason"},
			"Packets that Hairpin's flows dropped: without a local endpoint (traffic policy Local), from sources " +
				"that are not in the source ranges of a load balancer, by network policies, or in the table that is " +
				"the reason (docs/design/openflow-pipeline.md). Packets of the last moment before a flow is " +
				"removed may be missing.", OfAgent},
		{"hairpin_openvswitch_dropped_packets_total", counter, []string{"reason"},
			"Packets that ovs-vswitchd dropped for other reasons than a flow: lost upcalls, because a queue was " +
				"full, and the coverage counters datapath_drop_* and drop_action_* of the userspace datapath. It " +
				"restarts at 0 when ovs-vswitchd starts.", OfAgent},
		{"hairpin_openvswitch_upcalls_total", counter, nil,
			"Packets without a megaflow, which ovs-vswitchd handled. It restarts at 0 when ovs-vswitchd starts.",
			OfAgent},
		{"hairpin_openvswitch_objects", gauge, []string{"of"},
			"Objects in the memory of ovs-vswitchd (memory/show): rules are OpenFlow flows of all bridges, udpif " +
				"keys megaflows.", OfAgent},
		{"hairpin_openvswitch_planned", gauge, []string{"of"},
			"Hairpin's own flows and groups in the desired state of the node.", OfAgent},
		{"hairpin_ovn_connected", gauge, []string{"client", "database"},
			"1 if a client of an OVN database is connected to it. A daemon of OVN that does not answer is not " +
				"connected.", OfAgent},
		{"hairpin_daemon_responds", gauge, []string{"daemon"},
			"0 if a daemon of Open vSwitch or OVN that the node needs has not responded for three seconds, because it " +
				"hangs or does not run.", OfAgent},
		{"hairpin_ovn_database_cells", gauge, []string{"database"},
			"Values in an OVN database of the node, which determine the size of its file and the memory of its server.",
			OfAgent},
	}
}

func egressMetrics() []Metric {
	return []Metric{
		{ClaimsDropped, counter, nil,
			"Frames claiming an egress address of this node that were not checked, because the same claim was being " +
				"checked or there were too many.", OfAgent},
		{"hairpin_egress_node_addresses", gauge, nil, "Egress addresses that this node has.", OfAgent},
		{"hairpin_egress_move_duration_seconds", histogram, nil,
			"Time from when the agent knew that an egress address is this node's until it announced it for the first " +
				"time. Addresses that the node had at the agent's start do not count.", OfAgent},
		{"hairpin_egress_unreachable_nodes", gauge, nil,
			"Nodes that do not answer the probes of this process for egress addresses.", ofBoth},
		{"hairpin_controller_egress_addresses", gauge, []string{"state"},
			"Addresses of EgressIPs, by state: assigned to a node that answers, or not (unassigned). Only the " +
				"leader has them.", OfController},
		{"hairpin_controller_egress_assignment_duration_seconds", histogram, nil,
			"Time from when the leader found an address of an EgressIP without a node, or on a node that must lose " +
				"it, until it had written another one.", OfController},
	}
}

func controllerMetrics() []Metric {
	return []Metric{
		{"hairpin_controller_leader", gauge, nil, "1 on the controller that holds the Lease.", OfController},
		{"hairpin_controller_nodes", gauge, nil, "Nodes of the cluster that the leader knows; 0 on other controllers.",
			OfController},
		{"hairpin_controller_services_without_endpoints", gauge, nil,
			"Services of the cluster that have no ready endpoint, of any port and family. Only the leader has them.",
			OfController},
		{"hairpin_controller_node_ids_given_total", counter, nil, "Node IDs assigned by this process.", OfController},
		{"hairpin_controller_egress_assignments_total", counter, nil,
			"Changes of EgressIP assignments written by this process. It does not mean that the nodes " +
				"have the addresses yet.", OfController},
		{"hairpin_controller_load_balancer_allocations_total", counter, nil,
			"Changes of load balancer addresses written by this process into the status of Services.", OfController},
		{"hairpin_controller_load_balancer_addresses", gauge, []string{"pool", "state"},
			"Addresses of a LoadBalancerPool, by state (used, free); none on controllers that do not hold the Lease.",
			OfController},
		{"hairpin_controller_bgp_advertised", gauge, []string{"advertisement"},
			"1 if all prefixes of a BGPAdvertisement are in FRRConfigurations, else 0: its condition Advertised. " +
				"Only the leader has it.", OfController},
		{"hairpin_controller_bgp_prefixes", gauge, []string{"advertisement"},
			"Different prefixes that nodes announce for a BGPAdvertisement. Only the leader has them.", OfController},
		{"hairpin_controller_bgp_nodes", gauge, []string{"advertisement"},
			"Nodes that announce a prefix for a BGPAdvertisement. Only the leader has them.", OfController},
	}
}

// buckets returns the buckets of a histogram: 0.5 ms to 16 s for work on this machine. The metric
// of kube-proxy has kube-proxy's, 0.25 s to 5 min, so that its dashboards and alerts fit.
func buckets(name string) []float64 {
	if name != "kubeproxy_network_programming_duration_seconds" {
		return prometheus.ExponentialBuckets(0.0005, 2, 16)
	}
	return slices.Concat(prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
}
