// Package report defines the report of an agent: the agent writes it, commands read it. It also has
// what commands share: output formats, text that is safe on a terminal, and the program's version.
package report

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"hairpin/cluster"
)

// AgentSocket is the name of the agent's socket in the run directory.
const AgentSocket = "agent.sock"

// Report is the state of an agent.
type Report struct {
	Node     string   `json:"node"`
	Version  string   `json:"version"`
	Ready    bool     `json:"ready"`
	Reason   string   `json:"reason,omitempty"` // why not Ready
	Parts    []Part   `json:"parts"`
	Problems []string `json:"problems,omitempty"`
	Pods     int      `json:"pods"`
	Services int      `json:"services"` // frontends: one per address family and port
	// NetworkPolicies and ClusterNetworkPolicies are those of the cluster. IsolatedPods are the
	// pods of this node to which any of them applies in some direction.
	NetworkPolicies        int `json:"networkPolicies,omitempty"`
	ClusterNetworkPolicies int `json:"clusterNetworkPolicies,omitempty"`
	IsolatedPods           int `json:"isolatedPods,omitempty"`

	Engine   string `json:"serviceEngine"` // what serves pods' connections to Services: "ovn" or "openflow"
	Restarts uint64 `json:"restarts"`      // of Open vSwitch, detected and repaired

	Degraded  string     `json:"degraded,omitempty"`  // why the data plane is degraded
	NoRepair  bool       `json:"noRepair,omitempty"`  // drift is not repaired ([default] repair)
	Leaving   bool       `json:"draining,omitempty"`  // the Node is being deleted, or about to be: /healthz fails
	API       *API       `json:"api,omitempty"`       // nil if the agent reads manifests
	Listeners []Listener `json:"listeners,omitempty"` // the addresses that the agent listens on

	Switch   *Switch   `json:"openvswitch,omitempty"` // nil until its version is known
	Redirect *Redirect `json:"redirect,omitempty"`    // nil without eBPF programs
	Egress   []Egress  `json:"egress,omitempty"`      // every egress address of the cluster
}

// Switch is the node's Open vSwitch.
type Switch struct {
	Version   string `json:"version"` // of the running ovs-vswitchd
	Userspace bool   `json:"userspace"`
	// the userspace datapath accepts TCP segments that the kernel has not split (TSO)
	TSO    bool     `json:"tso"`
	Faults []string `json:"faults,omitempty"` // known bugs of this version
}

// Redirect counts packets that the eBPF programs redirected, and those left to the host's stack.
type Redirect struct {
	Requests  uint64 `json:"requests"`  // redirected to the gateway router
	Replies   uint64 `json:"replies"`   // redirected to a link
	Fragments uint64 `json:"fragments"` // left, whatever their destination
	// replies that were left: the host has no route to the client, or none with a sufficient MTU
	NoRoute uint64 `json:"noRoute"`
}

// Part is one system of the node.
type Part struct {
	System  string    `json:"system"`
	InSync  bool      `json:"inSync"`
	Since   time.Time `json:"since"`
	Error   string    `json:"error,omitempty"`
	Reads   uint64    `json:"reads"`
	Applies uint64    `json:"applies"`
	Written uint64    `json:"written"`
	Drift   uint64    `json:"drift"`
	Errors  uint64    `json:"errors"`
}

// Listener is an address that the process should listen on.
type Listener struct {
	For     string `json:"for"` // "healthz", "metrics"
	Address string `json:"address"`
	Error   string `json:"error,omitempty"` // why it does not listen there
}

// API is the state of the API server, as this process observes it.
type API struct {
	Unreachable bool      `json:"unreachable"`
	Since       time.Time `json:"since,omitzero"` // when it became unreachable
	Error       string    `json:"error,omitempty"`
}

// Egress is one egress address.
type Egress struct {
	EgressIP string `json:"egressIP"` // its name; "NAMESPACE/NAME" of an EgressService
	Address  string `json:"address"`
	Node     string `json:"node,omitempty"` // its egress node, as the agent knows it
	Next     string `json:"next,omitempty"` // the node that would take over; empty: none could
	BGP      string `json:"bgp,omitempty"`  // the nodes that announce it by BGP, for people
	// Since is when Node got the address; zero if that was before this agent started.
	Since time.Time `json:"since,omitzero"`
	Why   string    `json:"why,omitempty"` // no node, a node that does not answer, or another node than in the status
}

// ControllerSocket is the name of a controller's socket in its run directory, which another
// controller on the node does not share.
const ControllerSocket = "controller.sock"

// AsJSON requests a State in JSON instead of text: it follows a path on the agent's socket.
const AsJSON = "?output=json"

// names01 are the fields with another name in the reports of v0.1.0. During an upgrade, agents of
// both versions answer.
type names01 struct {
	Degraded  string     `json:"neglected"`
	Leaving   bool       `json:"leaving"`
	Listeners []Listener `json:"doors"`
	API       struct {
		Unreachable bool `json:"away"`
	} `json:"api"`
}

// Parse reads the report of an agent. The agent is not trusted: Parse makes its texts safe to print
// on a terminal.
func Parse(body []byte) (*Report, error) {
	var r Report
	var old names01
	if err := errors.Join(json.Unmarshal(body, &r), json.Unmarshal(body, &old)); err != nil {
		return nil, fmt.Errorf("answer of the agent: %w", err)
	}
	r.Degraded, r.Listeners = cmp.Or(r.Degraded, old.Degraded), append(r.Listeners, old.Listeners...)
	r.Leaving = r.Leaving || old.Leaving
	if r.API != nil {
		r.API.Unreachable = r.API.Unreachable || old.API.Unreachable
	}
	if r.Node == "" {
		return nil, errors.New("answer of the agent: names no node")
	}
	PlainStrings(&r)
	return &r, nil
}

// OpenFlow reports whether flows and groups serve Services. Agents of v0.1.0, which had only OVN's
// load balancers, report no engine.
func (r *Report) OpenFlow() bool { return r.Engine == cluster.EngineOpenFlow }

// Healthy reports whether every component is healthy. Problems of objects do not count: any user of
// the cluster can cause one, and `status --wait` would not end.
func (r *Report) Healthy() bool {
	for _, p := range r.Parts {
		if !p.InSync {
			return false
		}
	}
	for _, d := range r.Listeners {
		if d.Error != "" {
			return false
		}
	}
	return r.Ready && r.Degraded == "" && (r.API == nil || !r.API.Unreachable)
}
