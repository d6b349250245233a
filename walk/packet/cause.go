package packet

// Cause is the kind of event that ended a packet before it arrived. Package why finds the reason by
// it: a rule is in the last Step, an address or an object in the Snapshot.
type Cause uint8

// The causes.
const (
	Other      Cause = iota // the Reason describes it
	ByRule                  // the rule of the last Step drops or rejects the packet
	ByPolicies              // NetworkPolicies or ClusterNetworkPolicies drop it
	NoEndpoint              // a load balancer has no endpoint for it
	Learning                // OVN drops the packet from which it learns the client's endpoint
	Unclaimed               // nothing on the external network has its destination
	NoNeighbor              // nothing on the last network has its destination, or the next hop
	NoRoute                 // a host or router has no route to its destination
	NotLocal                // it is for an address that its host neither has nor forwards to
	NotItsOwn               // its sender may not use its source address
	InPod                   // it cannot leave the pod
)
